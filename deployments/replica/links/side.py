"""What all links of a replica share."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.trust.link_proof import LinkClaim
from cluster.trust.secret import ClusterSecret
from deployments.replica.attempts import AttemptTable
from deployments.replica.links.questions import Questions
from penstock.internal.v1 import replica_pb2 as pb

PROTOCOL_VERSIONS = (1,)
"""Frame versions that this replica speaks, newest first."""
UNPROVED = pb.Rejection(
    reason=pb.REJECTION_REASON_UNAUTHENTICATED, detail="the caller did not prove the cluster secret"
)
"""Answer to a router whose claim is wrong."""


@dataclass(frozen=True, slots=True)
class ReplicaSide:
    """Replica as its links see it."""

    replica_id: str
    table: AttemptTable
    secret: ClusterSecret
    questions: Questions
    attach_grace_s: float

    def prove(self, claim: LinkClaim) -> bytes | None:
        """Return the proof for a router that it reached this replica; None where its own claim is wrong."""
        return claim.answer(self.secret, self.replica_id)

    def welcome(self, proof: bytes, hello: pb.Hello | None) -> pb.Welcome | pb.Rejection:
        """Return the answer to a router whose claim is right; a rejection where no version is common."""
        common = [v for v in PROTOCOL_VERSIONS if hello is not None and v in hello.protocol_versions]
        if not common:
            spoken = ", ".join(map(str, PROTOCOL_VERSIONS))
            return pb.Rejection(
                reason=pb.REJECTION_REASON_VERSION,
                detail=f"the first command must be hello with a protocol version of: {spoken}",
            )
        return pb.Welcome(
            protocol_version=common[0],
            replica_id=self.replica_id,
            proof=proof,
            attach_grace_ms=int(self.attach_grace_s * 1000),
        )
