"""One streamed request, as its client saw it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.v1 import inference_pb2
from penstock.values.slo import ClassSlo
from penstock.wire import duration_from_wire


@dataclass(slots=True)
class StreamObservation:
    """Observations of one stream. Times are `time.monotonic`."""

    due_at: float
    """Due time. Latencies count from here, also where the generator was late."""
    first_at: float | None = None
    last_at: float = 0.0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    """Seconds between messages with output."""
    finished: inference_pb2.Finished | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time from the due time to the first token."""
        return None if self.first_at is None else self.first_at - self.due_at

    @property
    def e2e_s(self) -> float:
        """Time from the due time to the last token."""
        return self.last_at - self.due_at

    @property
    def queue_s(self) -> float | None:
        """Wait in the queue as the cluster reports it; None before the end."""
        if self.finished is None or not self.finished.receipt.attempts:
            return None
        return sum(duration_from_wire(each.queue_time) for each in self.finished.receipt.attempts)

    @property
    def tpot_s(self) -> float | None:
        """Decode time per further token; None with fewer than two tokens."""
        if self.first_at is None or self.tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.tokens - 1)

    @property
    def itl_p95_s(self) -> float:
        """95th percentile of its gaps: the smallest one that at least 95 % do not exceed, as in the simulator; 0
        without gaps.
        """
        if not self.gaps:
            return 0.0
        return sorted(self.gaps)[math.ceil(0.95 * len(self.gaps)) - 1]

    def within(self, slo: ClassSlo) -> bool:
        """Return whether a completed request met its SLO."""
        ttft = self.ttft_s
        if slo.ttft_p99_s is not None and (ttft is None or ttft > slo.ttft_p99_s):
            return False
        return slo.itl_p95_s is None or self.itl_p95_s <= slo.itl_p95_s


async def follow(
    call: Any, seen: StreamObservation, on_first: Callable[[float, int], None], on_gap: Callable[[float, int], None]
) -> None:
    """Read a stream to its end.

    Args:
        call: a call of StreamGenerate.
        seen: updated with each message.
        on_first: takes the TTFT, and the tokens that came.
        on_gap: takes each later gap, and the tokens that ended it.

    Raises:
        grpc.RpcError: the call failed.
    """
    clock, gaps = time.monotonic, seen.gaps
    async for message in call:
        if message.HasField("delta"):
            now = clock()
            new = len(message.delta.token_ids)
            if not new:
                continue
            if seen.first_at is None:
                seen.first_at = now
                on_first(now - seen.due_at, new)
            else:
                gap = now - seen.last_at
                gaps.append(gap)
                on_gap(gap, new)
            seen.last_at = now
            seen.tokens += new
        elif message.HasField("finished"):
            seen.finished = message.finished
            seen.last_at = max(seen.last_at, clock()) if seen.first_at is None else seen.last_at
