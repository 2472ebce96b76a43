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
from dataclasses import dataclass

from cluster.trust.secret import ClusterSecret

_CALLER = "link-caller/2"
_ANSWER = "link-answer/2"
_ROUTER_HEADER = "penstock-router"
_NONCE_HEADER = "penstock-nonce"
_PROOF_HEADER = "penstock-proof"

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class LinkClaim:
    """What a router says to one replica to prove that it belongs to the cluster."""

    router_id: str
    nonce: str
    proof: bytes

    @classmethod
    def make(cls, secret: ClusterSecret, router_id: str, replica_id: str) -> tuple[LinkClaim, bytes]:
        """Make a claim with a new nonce. Return it with the answer to expect from the replica."""
        nonce = secrets.token_hex(16)
        said = _said(router_id, replica_id, nonce)
        # The secret may change between two uses.
        signer = secret.signer()
        return cls(router_id, nonce, signer.sign(_CALLER, said)), signer.sign(_ANSWER, said)

    def answer(self, secret: ClusterSecret, replica_id: str) -> bytes | None:
        """Return the replica's answer; None if the proof is missing, wrong or for another replica."""
        said = _said(self.router_id, replica_id, self.nonce)
        signer = secret.signer_of(_CALLER, said, self.proof) if self.router_id and self.nonce else None
        # The answer is signed as the claim was: the router may not know our newest secret yet.
        return None if signer is None else signer.sign(_ANSWER, said)

    def metadata(self) -> Metadata:
        """Return the claim as metadata of a gRPC call, for replicas of release 0.2."""
        proof = base64.b64encode(self.proof).decode()
        return (_ROUTER_HEADER, self.router_id), (_NONCE_HEADER, self.nonce), (_PROOF_HEADER, proof)

    @classmethod
    def of_metadata(cls, metadata: Iterable[tuple[str, str | bytes]] | None) -> LinkClaim:
        """Read a claim from metadata. What is missing or malformed is empty."""
        fields = {key: value for key, value in metadata or () if isinstance(value, str)}
        try:
            proof = base64.b64decode(fields.get(_PROOF_HEADER, ""), validate=True)
        except ValueError:
            proof = b""
        return cls(fields.get(_ROUTER_HEADER, ""), fields.get(_NONCE_HEADER, ""), proof)


def _said(router_id: str, replica_id: str, nonce: str) -> bytes:
    return "\0".join((router_id, replica_id, nonce)).encode()
