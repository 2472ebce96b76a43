"""Both ends of a link, as a router knows them before it connects."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.errors import LinkRefusedError
from cluster.trust.link_proof import LinkClaim
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from penstock.internal.v1 import replica_pb2 as pb

PROTOCOL_VERSIONS = (1,)
"""Frame versions that this router speaks, newest first."""
_MOST_MS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """Router and replica, and the proofs that they give each other."""

    replica_id: str
    """Id of the replica that must answer."""
    address: str
    """host:port of the replica."""
    router_id: str
    secret: ClusterSecret
    dialer: LinkDialer
    ping_s: float
    """Pause between pings, and the longest wait for an answer, seconds."""

    def claim(self) -> tuple[LinkClaim, bytes]:
        """Return a claim for one connection, and the answer to expect."""
        return LinkClaim.make(self.secret, self.router_id, self.replica_id)

    def hello(self, claim: LinkClaim | None = None) -> pb.LinkRequest:
        """Return the first message; without a claim where metadata have it."""
        hello = pb.Hello(protocol_versions=PROTOCOL_VERSIONS, router_id=self.router_id, reads_text_deltas=True)
        if claim is not None:
            hello.nonce, hello.proof, hello.ping_ms = claim.nonce, claim.proof, min(int(self.ping_s * 1000), _MOST_MS)
        return pb.LinkRequest(commands=[pb.LinkCommand(hello=hello)])

    def check_welcome(self, first: pb.LinkResponse, answer: bytes) -> None:
        """Check the answer to a hello.

        Raises:
            LinkRefusedError: it is no welcome, or not of this replica of this cluster.
        """
        if first.HasField("rejection"):
            raise LinkRefusedError(f"{self.replica_id} refuses the link: {first.rejection.detail}")
        if not first.HasField("welcome"):
            raise LinkRefusedError(f"{self.replica_id} did not welcome us")
        if not hmac.compare_digest(first.welcome.proof, answer) or first.welcome.replica_id != self.replica_id:
            raise LinkRefusedError(f"{self.address} is not {self.replica_id} of this cluster")


@dataclass(frozen=True, slots=True)
class WireNews:
    """What a connection reports. It is called on the router's loop."""

    on_frame: Callable[[pb.LinkResponse], None]
    on_full: Callable[[], None]
    """Called when the replica reads slowly: nothing more should be written."""
    on_writable: Callable[[], None]
    """Called when more may be written."""


class Wire(Protocol):
    """Connection to a replica that has welcomed this router."""

    def carry(self, news: WireNews) -> None:
        """Report from now on."""
        ...

    def write(self, commands: Sequence[pb.LinkCommand]) -> None:
        """Send commands in one message."""
        ...

    @property
    def unsent(self) -> int:
        """Whether something waits to be sent; 0 where nothing does."""
        ...

    def break_off(self) -> None:
        """End the connection at once."""
        ...

    async def wait_closed(self) -> None:
        """Wait for the end of the connection.

        Raises:
            LinkLostError: always, at the end, with its reason.
        """
        ...
