"""Engines alone, without a queue in front, as a benchmark of vLLM itself measures them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.settings import SimSettings
from loadtest.simulate.engine.replica import SimReplica, SimRequest
from loadtest.simulate.engine.steps import StepLog, StepTimes
from loadtest.traces import TraceRequest

_WAITING = 4
"""Running requests that a waiting one counts as where ranks are chosen, as in vLLM."""


@dataclass(slots=True)
class EngineLog:
    """Steps of one engine."""

    log: StepLog
    ends: array[float] = field(default_factory=lambda: array("d"))
    """End of each step."""


@dataclass(slots=True)
class Replay:
    """Outcome of each request, in the order of the trace, and the engines' steps."""

    items: list[SimRequest]
    engines: list[EngineLog]
    served_by: list[int] = field(default_factory=list)
    """Number of the engine that served each request."""


def replay(
    trace: Sequence[TraceRequest], engine: SimSettings, times: StepTimes | None = None, ranks: int = 1
) -> Replay:
    """Hand each request to an engine when it arrives, and run until all have ended. Of several ranks, each with the
    limits of `engine`, the least loaded one gets it.
    """
    replicas = [SimReplica(f"engine-{rank}", engine, step_times=times) for rank in range(ranks)]
    result = Replay([], [EngineLog(replica.log) for replica in replicas])
    for request in trace:
        for replica, log in zip(replicas, result.engines, strict=True):
            _steps_until(replica, request.arrival_s, log)
        chosen = min(range(ranks), key=lambda rank: _load(replicas[rank], request.arrival_s)) if ranks > 1 else 0
        item = SimRequest(str(request.number), request, "", request.arrival_s)
        result.items.append(item)
        result.served_by.append(chosen)
        replicas[chosen].start(item, request.arrival_s)
        replicas[chosen].begin(request.arrival_s)
    for replica, log in zip(replicas, result.engines, strict=True):
        _steps_until(replica, math.inf, log)
    return result


def _load(replica: SimReplica, now: float) -> int:
    core = replica.sync(now)
    return _WAITING * core.waiting + core.running


def _steps_until(replica: SimReplica, now: float, result: EngineLog) -> None:
    while replica.ends_at is not None and replica.ends_at <= now:
        at = replica.ends_at
        replica.end()
        fresh = array("d", [at])
        for seconds in reversed(replica.log.seconds[len(result.ends) + 1 :]):
            fresh.append(fresh[-1] - seconds)
        fresh.reverse()
        result.ends.extend(fresh)
        replica.begin(at)
