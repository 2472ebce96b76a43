"""One streamed request, and what its client saw."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.v1 import inference_pb2
from penstock.values.slo import ClassSlo
from penstock.wire import duration_from_wire

Clock = Callable[[], float]


@dataclass(slots=True)
class Seen:
    """Is what a client has seen of a stream; times are `time.monotonic`."""

    due_at: float
    """When it should have been sent: latencies count from here, also where the generator was late."""
    first_at: float | None = None
    last_at: float = 0.0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    """Seconds between messages with output."""
    finished: inference_pb2.Finished | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, from the due time."""
        return None if self.first_at is None else self.first_at - self.due_at

    @property
    def e2e_s(self) -> float:
        """Time to the last token, from the due time."""
        return self.last_at - self.due_at

    @property
    def queue_s(self) -> float | None:
        """The wait in the queue as the cluster says; None before the end."""
        if self.finished is None or not self.finished.receipt.attempts:
            return None
        return sum(duration_from_wire(each.queue_time) for each in self.finished.receipt.attempts)

    @property
    def tpot_s(self) -> float | None:
        """Decode time per further token; None with fewer than two."""
        if self.first_at is None or self.tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.tokens - 1)

    @property
    def itl_p95_s(self) -> float:
        """The smallest gap that at least 95 % of its gaps do not exceed, as the simulator has it; 0 without any."""
        if not self.gaps:
            return 0.0
        return sorted(self.gaps)[math.ceil(0.95 * len(self.gaps)) - 1]

    def within(self, slo: ClassSlo) -> bool:
        """Say whether a completed request was served as promised."""
        ttft = self.ttft_s
        if slo.ttft_p99_s is not None and (ttft is None or ttft > slo.ttft_p99_s):
            return False
        return slo.itl_p95_s is None or self.itl_p95_s <= slo.itl_p95_s


async def follow(
    call: Any, seen: Seen, on_first: Callable[[float, int], None], on_gap: Callable[[float, int], None]
) -> None:
    """Read a stream to its end.

    Args:
        call: a call of StreamGenerate.
        seen: is kept up to date.
        on_first: told the TTFT, and the tokens that came.
        on_gap: told each later gap, and the tokens that ended it.

    Raises:
        grpc.RpcError: as the call does.
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
