"""Proof by both ends of a link that they know the cluster secret.

The router sends its id, a random nonce and an HMAC over both and the replica's id; the replica answers with an HMAC
over the nonce and both ids. Neither sends the secret. The replica's id is part of the
proof, so that an attacker at the address of a dead replica can't pass a router's proof on to a live one. An attacker on
the wire could still replay a proof to the same replica, and read all traffic, so use `replica.tls` on networks that you
do not trust.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Sequence

from cluster.trust.secret import ClusterSecret

ROUTER_HEADER = "penstock-router"
NONCE_HEADER = "penstock-nonce"
PROOF_HEADER = "penstock-proof"
_CALLER = "link-caller/2"
_ANSWER = "link-answer/2"

Metadata = Sequence[tuple[str, str]]


def caller_metadata(secret: ClusterSecret, router_id: str, replica_id: str) -> tuple[Metadata, bytes]:
    """Return the metadata of a call to one replica, and the answer to expect from it."""
    nonce = secrets.token_hex(16)
    claim = _claim(router_id, replica_id, nonce)
    # The secret may change between two uses.
    signer = secret.signer()
    proof = base64.b64encode(signer.sign(_CALLER, claim)).decode()
    metadata = ((ROUTER_HEADER, router_id), (NONCE_HEADER, nonce), (PROOF_HEADER, proof))
    return metadata, signer.sign(_ANSWER, claim)


def check_caller(
    secret: ClusterSecret, replica_id: str, metadata: Iterable[tuple[str, str | bytes]] | None
) -> tuple[str, bytes] | None:
    """Return the router's id and our answer to its nonce; None if the proof is missing, wrong or another replica's."""
    fields = {key: value for key, value in metadata or () if isinstance(value, str)}
    router_id, nonce = fields.get(ROUTER_HEADER, ""), fields.get(NONCE_HEADER, "")
    try:
        proof = base64.b64decode(fields.get(PROOF_HEADER, ""), validate=True)
    except ValueError:
        return None
    claim = _claim(router_id, replica_id, nonce)
    signer = secret.signer_of(_CALLER, claim, proof) if router_id and nonce else None
    # The answer is signed as the question was: the router may not know our newest secret yet.
    return None if signer is None else (router_id, signer.sign(_ANSWER, claim))


def _claim(router_id: str, replica_id: str, nonce: str) -> bytes:
    return "\0".join((router_id, replica_id, nonce)).encode()
