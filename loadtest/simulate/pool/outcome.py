"""Outcome of each request, and of the pool over time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from struct import Struct
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np

from loadtest.simulate.engine.replica import SimRequest
from loadtest.simulate.pool.fleet import Fleet
from loadtest.simulate.pool.gaps import GapTally
from loadtest.simulate.setup import Setup, Slo
from penstock.models import RequestClass

Array: TypeAlias = "np.ndarray[Any, Any]"


class RequestEnd(StrEnum):
    """How a request ended. Each has exactly one."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """Refused at arrival (no room in line, or too long a wait by estimate), or not started within its queue timeout."""
    UNFINISHED = "unfinished"
    """Not ended when the run was given up."""


class Outcome(NamedTuple):
    """The end of one request. `arrival_s` counts from the first arrival, other times from the request's own."""

    number: int
    end: RequestEnd
    request_class: RequestClass
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    queue_s: float = 0.0
    """From arrival to the last grant."""
    ttft_s: float = math.nan
    e2e_s: float = math.nan
    itl_mean_s: float = 0.0
    itl_p95_s: float = 0.0
    """0 for one token."""
    preemptions: int = 0

    def attains(self, slo: Slo) -> bool:
        """Return whether it was completed within its SLO."""
        return self.end is RequestEnd.COMPLETED and self.ttft_s <= slo.ttft_s and self.itl_p95_s <= slo.itl_s


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one moment."""

    at_s: float
    ready: int
    starting: int
    draining: int
    desired: int
    limit: int
    """Batch limits of all ready replicas together."""
    running: int
    """Requests that hold a slot."""
    waiting: int
    kv_usage: float
    """Mean of the ready replicas, 0 to 1."""


_ENDS, _CLASSES = tuple(RequestEnd), tuple(RequestClass)
_CODES: Mapping[str, Mapping[Any, int]] = {
    name: {each: code for code, each in enumerate(every)}
    for name, every in (("end", _ENDS), ("request_class", _CLASSES))
}
"""Numbers of the values that are none."""
_COUNTS = ("number", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
_TYPES = {name: "b" if name in _CODES else "q" if name in _COUNTS else "d" for name in Outcome._fields}
_ROW = Struct(f"={''.join(_TYPES.values())}")
_COLUMNS = np.dtype(list(_TYPES.items()))
_END_CODES, _CLASS_CODES = _CODES["end"], _CODES["request_class"]


class Outcomes(Sequence[Outcome]):
    """Outcomes as rows of a table: ninety bytes each, an object four hundred. One is made when it is asked for."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._rows = bytearray()
        for each in outcomes:
            self.append(each)

    def append(self, outcome: Outcome) -> None:
        """Add an outcome at the end."""
        number, end, request_class, *rest = outcome
        self._rows += _ROW.pack(number, _END_CODES[end], _CLASS_CODES[request_class], *rest)

    def column(self, name: str) -> Array:
        """Return a field of all outcomes, the number of its value where it is no number."""
        return np.frombuffer(self._rows, _COLUMNS)[name].copy()

    def ended(self, end: RequestEnd) -> Array:
        """Return which outcomes ended so."""
        found: Array = self.column("end") == _CODES["end"][end]
        return found

    def of_class(self, request_class: RequestClass) -> Array:
        """Return which outcomes are of a class."""
        found: Array = self.column("request_class") == _CODES["request_class"][request_class]
        return found

    def attain(self, slo: Slo) -> Array:
        """Return which outcomes attain an SLO."""
        in_time = (self.column("ttft_s") <= slo.ttft_s) & (self.column("itl_p95_s") <= slo.itl_s)
        return in_time & self.ended(RequestEnd.COMPLETED)

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    @overload
    def __getitem__(self, place: int) -> Outcome: ...

    @overload
    def __getitem__(self, place: slice) -> list[Outcome]: ...

    def __getitem__(self, place: int | slice) -> Outcome | list[Outcome]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        number, end, request_class, *rest = _ROW.unpack_from(self._rows, range(len(self))[place] * _ROW.size)
        return Outcome(number, _ENDS[end], _CLASSES[request_class], *rest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


@dataclass(slots=True)
class SimulatedRun:
    """Results of a simulation."""

    fleet: Fleet
    replicas_at_first: int
    outcomes: Outcomes = field(default_factory=Outcomes)
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    """Virtual time from the first arrival to the last end."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue: str = ""
    """What ran the queue, in words."""
    tally: GapTally = field(default_factory=GapTally)
    """Gaps between tokens of steps that the replicas' logs have dropped."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the cluster's parts; none where it has none."""
    beside: int = 0
    """Replicas that were there all the time beside the fleet."""

    def hours(self, until: float) -> float:
        """Return the hours of all replicas until a time."""
        return self.fleet.hours(until) + self.beside * until / 3600


def completed(item: SimRequest, request_class: RequestClass, now: float, setup: Setup) -> Outcome:
    """Return the outcome of a request whose last token came now. All its tokens are later by what a first token takes
    beside queue and steps.
    """
    request, gaps = item.request, item.gaps
    first = item.first_token_at if item.first_token_at is not None else now
    itl_s = (now - first) / len(gaps) if gaps else 0.0
    step_s = itl_s
    if setup.parts.speculation is not None and gaps:
        # Tokens of one step come together.
        step_s = (now - first) / max(1, len(gaps) - gaps.count(0.0))
    around_s = setup.overhead_s + setup.overhead_steps * step_s
    return Outcome(
        request.number,
        RequestEnd.COMPLETED,
        request_class,
        item.arrived_at,
        request.prompt_tokens,
        request.output_tokens,
        item.cached_tokens,
        item.started_at - item.arrived_at,
        first - item.arrived_at + around_s,
        now - item.arrived_at + around_s,
        itl_s,
        percentile(gaps, 0.95),
        item.preemptions,
    )


def percentile(values: array[float], part: float) -> float:
    """Return the smallest value that at least this part of the values does not exceed; 0 for none. Reorder them."""
    if not values:
        return 0.0
    place, found = math.ceil(part * len(values)) - 1, np.frombuffer(values)
    found.partition(place)
    return float(found[place])
