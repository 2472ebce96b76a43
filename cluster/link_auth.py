"""How the two ends of a link prove that they know the cluster secret.

The router sends its id, a random nonce and an HMAC over both; the replica answers with an HMAC over the nonce. Neither
sends the secret. Without TLS a listener on the wire could replay the router's proof, so use TLS on networks you do not
trust.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Sequence

from cluster.secret import ClusterSecret

ROUTER_HEADER = "penstock-router"
NONCE_HEADER = "penstock-nonce"
PROOF_HEADER = "penstock-proof"
_CALLER = "link-caller/1"
_ANSWER = "link-answer/1"

Metadata = Sequence[tuple[str, str]]


def caller_metadata(secret: ClusterSecret, router_id: str) -> tuple[Metadata, bytes]:
    """Return the metadata of a call and the answer to expect from the replica."""
    nonce = secrets.token_hex(16)
    proof = base64.b64encode(secret.sign(_CALLER, f"{router_id}\0{nonce}".encode())).decode()
    metadata = ((ROUTER_HEADER, router_id), (NONCE_HEADER, nonce), (PROOF_HEADER, proof))
    return metadata, secret.sign(_ANSWER, nonce.encode())


def check_caller(secret: ClusterSecret, metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[str, bytes] | None:
    """Return the router's id and our answer to its nonce; None when the proof is missing or wrong."""
    fields = {key: value for key, value in metadata or () if isinstance(value, str)}
    router_id, nonce = fields.get(ROUTER_HEADER, ""), fields.get(NONCE_HEADER, "")
    try:
        proof = base64.b64decode(fields.get(PROOF_HEADER, ""), validate=True)
    except ValueError:
        return None
    if not router_id or not nonce or not secret.verify(_CALLER, f"{router_id}\0{nonce}".encode(), proof):
        return None
    return router_id, secret.sign(_ANSWER, nonce.encode())
