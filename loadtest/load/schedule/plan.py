"""The plan of requests. It depends only on the scenario and its seed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError
from loadtest.load.schedule.arrivals import arrival_times
from loadtest.load.schedule.kinds import RequestKind
from loadtest.load.schedule.scenario import Scenario
from loadtest.traces import read_trace
from penstock.models import RequestClass

_SHARED_MOST = 0.9


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """Planned request."""

    number: int
    """Number in the order of arrival, from 0, over all processes."""
    at_s: float
    """Due time in seconds from the start of the run."""
    kind: str
    request_class: int
    prompt_tokens: int
    output_tokens: int
    group: str = ""
    """Group whose prompts begin alike."""
    shared_tokens: int = 0
    session: str = ""
    blocks: tuple[int, ...] = ()
    """Shared blocks of the prompt, for a trace that records them."""
    block_tokens: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Return plain values for `PlannedRequest(**...)`."""
        return asdict(self)


def plan(
    scenario: Scenario, shard: int = 0, shards: int = 1, *, tell: Callable[[str], None] = lambda _: None
) -> Iterator[PlannedRequest]:
    """Yield one process's part of a scenario, in the order of arrival.

    Together the parts of all processes are the same requests at the same times, for any number of processes.

    Args:
        scenario: the load.
        shard: this process, from 0.
        shards: number of processes.
        tell: takes a message if some lines of a trace are left out.

    Raises:
        TraceError: a file of the scenario cannot be read.
    """
    if scenario.trace:
        return _replay(scenario, shard, shards, tell)
    times = arrival_times(scenario.arrivals, scenario.rate, scenario.duration_s, f"{scenario.seed}/arrivals")
    due = itertools.takewhile(lambda at_s: at_s < scenario.duration_s, times)
    kinds = {name: scenario.kind(name) for name in scenario.mix}
    return (
        _drawn(scenario, kinds, number, at_s, f"{scenario.seed}/{number}")
        for number, at_s in enumerate(due)
        if number % shards == shard
    )


def until_last(scenario: Scenario) -> Scenario:
    """Return a scenario without the seconds behind the last request of its trace. They would count as time of the load,
    so that rates were too low.

    Raises:
        TraceError: the trace cannot be read.
        SettingsError: the warm-up is as long as the trace.
    """
    if not scenario.trace:
        return scenario
    _, last_s = read_trace(Path(scenario.trace)).ends
    return replace(scenario, duration_s=min(scenario.duration_s, math.floor(last_s / scenario.scale_rate) + 1.0))


def plan_of_user(scenario: Scenario, kind: str, rate: float, user: str) -> Iterator[PlannedRequest]:
    """Yield the requests of one user without end. Times are from the user's start.

    Args:
        scenario: gives pattern, lengths and seed.
        kind: of all requests.
        rate: of this user, requests per second.
        user: name that distinguishes users.

    Raises:
        SettingsError: the rate is out of range.
    """
    if not 0 < rate < math.inf:
        raise SettingsError(f"user-rate must be a number above 0, got {rate:g}")
    seed = f"{scenario.seed}/{user}"
    kinds = {kind: scenario.kind(kind)}
    times = arrival_times(scenario.arrivals, rate, scenario.duration_s, seed)
    return (_drawn(scenario, kinds, number, at_s, f"{seed}/{number}") for number, at_s in enumerate(times))


def _drawn(scenario: Scenario, kinds: Mapping[str, RequestKind], number: int, at_s: float, seed: str) -> PlannedRequest:
    # Every request has its own generator, so a process need not draw the requests of the others.
    rnd = random.Random(seed)
    name = next(iter(kinds))
    if len(kinds) > 1:
        (name,) = rnd.choices(list(kinds), [scenario.mix[each] for each in kinds])
    kind = kinds[name]
    prompt, output = kind.lengths.draw(rnd)
    group = f"{name}-{rnd.randrange(kind.groups)}" if kind.groups else ""
    shared = min(kind.shared_tokens, int(_SHARED_MOST * prompt)) if group else 0
    session = group if kind.sticky else ""
    return PlannedRequest(number, at_s, name, int(kind.request_class), prompt, output, group, shared, session)


def _replay(scenario: Scenario, shard: int, shards: int, tell: Callable[[str], None]) -> Iterator[PlannedRequest]:
    for request in read_trace(Path(scenario.trace), tell=tell):
        at_s = request.arrival_s / scenario.scale_rate
        if at_s >= scenario.duration_s:
            return
        if request.number % shards != shard:
            continue
        request_class = RequestClass.STANDARD if request.request_class is None else request.request_class
        yield PlannedRequest(
            request.number,
            at_s,
            "trace",
            int(request_class),
            request.prompt_tokens,
            request.output_tokens,
            session=request.session,
            blocks=tuple(request.block_ids),
            block_tokens=request.block_tokens,
        )
