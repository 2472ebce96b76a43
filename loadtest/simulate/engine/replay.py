"""One engine alone, without a queue in front, as a benchmark of vLLM itself measures it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.settings import SimSettings
from loadtest.simulate.engine.replica import SimReplica, SimRequest
from loadtest.simulate.engine.steps import StepLog, StepTimes
from loadtest.traces import TraceRequest


@dataclass(slots=True)
class Replay:
    """Outcome of each request, in the order of the trace, and the engine's steps."""

    items: list[SimRequest]
    log: StepLog
    ends: array[float] = field(default_factory=lambda: array("d"))
    """End of each step."""


def replay(trace: Sequence[TraceRequest], engine: SimSettings, times: StepTimes | None = None) -> Replay:
    """Hand each request to one engine when it arrives, and run until all have ended."""
    replica = SimReplica("engine", engine, step_times=times)
    result = Replay([], replica.log)
    for request in trace:
        _steps_until(replica, request.arrival_s, result)
        item = SimRequest(str(request.number), request, "", request.arrival_s)
        result.items.append(item)
        replica.start(item, request.arrival_s)
        replica.begin(request.arrival_s)
    _steps_until(replica, math.inf, result)
    return result


def _steps_until(replica: SimReplica, now: float, result: Replay) -> None:
    while replica.ends_at is not None and replica.ends_at <= now:
        at = replica.ends_at
        replica.end()
        fresh = array("d", [at])
        for seconds in reversed(replica.log.seconds[len(result.ends) + 1 :]):
            fresh.append(fresh[-1] - seconds)
        fresh.reverse()
        result.ends.extend(fresh)
        replica.begin(at)
