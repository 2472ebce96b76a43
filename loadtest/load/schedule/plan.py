"""Which request comes when: a function of the scenario and its seed alone."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError
from loadtest.load.schedule.arrivals import arrival_times
from loadtest.load.schedule.kinds import Kind
from loadtest.load.schedule.scenario import Scenario
from loadtest.traces import read_trace
from penstock.models import RequestClass

_SHARED_MOST = 0.9


@dataclass(frozen=True, slots=True)
class Planned:
    """Is a request that is going to be sent."""

    number: int
    """Counts from 0 in the order of arrival, over all processes."""
    at_s: float
    """When it is due, from the start of the run."""
    kind: str
    request_class: int
    prompt_tokens: int
    output_tokens: int
    group: str = ""
    """Prompts of one group begin alike."""
    shared_tokens: int = 0
    session: str = ""
    blocks: tuple[int, ...] = ()
    """Of a trace that says which blocks prompts share."""
    block_tokens: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Return plain values for `Planned(**...)`."""
        return asdict(self)


def plan(
    scenario: Scenario, shard: int = 0, shards: int = 1, *, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Planned]:
    """Give one process' part of a scenario, in the order of arrival.

    The parts of all processes together are the same requests at the same times, however many processes there are.

    Args:
        scenario: the load.
        shard: this process, from 0.
        shards: number of processes.
        tell: hears how many lines of a trace are left out, if any are.

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


def plan_of_user(scenario: Scenario, kind: str, rate: float, user: str) -> Iterator[Planned]:
    """Give the requests of one user that goes on for ever; times are from the user's start.

    Args:
        scenario: gives pattern, lengths and seed.
        kind: of all requests.
        rate: of this user, requests per second.
        user: tells users apart.

    Raises:
        SettingsError: the rate is out of range.
    """
    if not 0 < rate < math.inf:
        raise SettingsError(f"user-rate must be a number above 0, got {rate:g}")
    seed = f"{scenario.seed}/{user}"
    kinds = {kind: scenario.kind(kind)}
    times = arrival_times(scenario.arrivals, rate, scenario.duration_s, seed)
    return (_drawn(scenario, kinds, number, at_s, f"{seed}/{number}") for number, at_s in enumerate(times))


def _drawn(scenario: Scenario, kinds: Mapping[str, Kind], number: int, at_s: float, seed: str) -> Planned:
    # Every request has a generator of its own, so that a process need not draw the requests of the others.
    rnd = random.Random(seed)
    name = next(iter(kinds))
    if len(kinds) > 1:
        (name,) = rnd.choices(list(kinds), [scenario.mix[each] for each in kinds])
    kind = kinds[name]
    prompt, output = kind.lengths.draw(rnd)
    group = f"{name}-{rnd.randrange(kind.groups)}" if kind.groups else ""
    shared = min(kind.shared_tokens, int(_SHARED_MOST * prompt)) if group else 0
    session = group if kind.sticky else ""
    return Planned(number, at_s, name, int(kind.request_class), prompt, output, group, shared, session)


def _replay(scenario: Scenario, shard: int, shards: int, tell: Callable[[str], None]) -> Iterator[Planned]:
    for request in read_trace(Path(scenario.trace), tell=tell):
        at_s = request.arrival_s / scenario.scale_rate
        if at_s >= scenario.duration_s:
            return
        if request.number % shards != shard:
            continue
        request_class = RequestClass.STANDARD if request.request_class is None else request.request_class
        yield Planned(
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
