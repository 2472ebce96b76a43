"""What a link tells the receiver of an attempt's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.v1 import replica_pb2 as pb
from router.links.failure import Failure


class Receiver(Protocol):
    """Gets one attempt's output; called on the router's loop, never blocks."""

    def on_delta(self, offset: int, token_ids: Sequence[int], text: str, logprobs: Sequence[object]) -> None:
        """Take new output; `logprobs` are PositionLogprobs messages, empty when not asked for."""
        ...

    def on_history(self, history: pb.History) -> None:
        """Take the output before the offset to which this receiver attached; comes before any delta."""
        ...

    def on_end(self, end: pb.AttemptEnd) -> None:
        """Learn that the attempt ended; the last call but for nothing."""
        ...

    def on_refused(self, refusal: pb.Refusal) -> None:
        """Learn that a start or attach was refused."""
        ...

    def on_detached(self) -> None:
        """Learn that another router took over."""
        ...

    def on_lost(self, failure: Failure) -> None:
        """Learn that nothing more comes: the replica is out of reach for good, or produces nothing."""
        ...
