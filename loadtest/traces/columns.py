"""A trace as columns: some twenty bytes per request, where a request of its own takes two hundred."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from operator import le
from typing import Any, NamedTuple, overload

from loadtest.traces.request import TraceRequest
from penstock.models import RequestClass


class _Rest(NamedTuple):
    """What few traces have of a request."""

    request_class: RequestClass | None = None
    tenant: str = ""
    session: str = ""
    block_ids: Sequence[int] = ()
    block_tokens: int = 0


_NOTHING = _Rest()


class Trace(Sequence[TraceRequest]):
    """Requests in the order of arrival, numbered from 0. Each is made when it is asked for."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self._arrivals = array("d")
        self._prompts = array("l")
        self._outputs = array("l")
        self._rest: list[_Rest] = []
        """Empty while no request has more."""

    @classmethod
    def of(cls, requests: Iterable[TraceRequest]) -> Trace:
        """Return requests as a trace of their own."""
        trace = cls()
        for each in requests:
            rest = (each.request_class, each.tenant, each.session, each.block_ids, each.block_tokens)
            trace.add(each.arrival_s, each.prompt_tokens, each.output_tokens, rest)
        return trace

    def add(self, arrival_s: float, prompt_tokens: int, output_tokens: int, rest: tuple[Any, ...] = _NOTHING) -> None:
        """Add a request at the end. `rest` has the fields of a request from its class on."""
        if rest != _NOTHING and not self._rest:
            self._rest = [_NOTHING] * len(self._arrivals)
        self._arrivals.append(arrival_s)
        self._prompts.append(prompt_tokens)
        self._outputs.append(output_tokens)
        if self._rest or rest != _NOTHING:
            self._rest.append(_NOTHING if rest == _NOTHING else _Rest(*rest))

    def at_times(self, time: Callable[[float], float]) -> Trace:
        """Return the same requests at other times, in the same order."""
        trace = Trace()
        trace._arrivals = array("d", map(time, self._arrivals))
        trace._prompts, trace._outputs, trace._rest = self._prompts, self._outputs, self._rest
        return trace

    def sorted(self, limit: int | None = None) -> Trace:
        """Return the earliest requests in the order of their times, those of one time as they are."""
        times = self._arrivals
        if all(map(le, times, islice(times, 1, None))) and limit is None:
            return self
        order = sorted(range(len(times)), key=times.__getitem__)[:limit]
        trace = Trace()
        trace._arrivals = array("d", [times[place] for place in order])
        trace._prompts = array("l", [self._prompts[place] for place in order])
        trace._outputs = array("l", [self._outputs[place] for place in order])
        trace._rest = [self._rest[place] for place in order] if self._rest else []
        return trace

    @property
    def kinds(self) -> set[tuple[RequestClass | None, str]]:
        """Classes and tenants that occur together."""
        return {(each.request_class, each.tenant) for each in self._rest or ([_NOTHING] if self._arrivals else ())}

    @property
    def ends(self) -> tuple[float, float]:
        """Times of the first and the last request."""
        return self._arrivals[0], self._arrivals[-1]

    def __len__(self) -> int:
        return len(self._arrivals)

    @overload
    def __getitem__(self, place: int) -> TraceRequest: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[TraceRequest]: ...

    def __getitem__(self, place: int | slice) -> TraceRequest | Sequence[TraceRequest]:
        if isinstance(place, slice):
            places = range(*place.indices(len(self)))
            return (
                self._first(places.stop) if places[:1] == range(1) and places.step == 1 else [self[n] for n in places]
            )
        number = range(len(self))[place]
        rest = self._rest[number] if self._rest else _NOTHING
        return TraceRequest(number, self._arrivals[number], self._prompts[number], self._outputs[number], *rest)

    def _first(self, requests: int) -> Trace:
        trace = Trace()
        trace._arrivals, trace._rest = self._arrivals[:requests], self._rest[:requests]
        trace._prompts, trace._outputs = self._prompts[:requests], self._outputs[:requests]
        return trace

    def __iter__(self) -> Iterator[TraceRequest]:
        if not self._rest:
            return map(TraceRequest, count(), self._arrivals, self._prompts, self._outputs)
        rows = zip(count(), self._arrivals, self._prompts, self._outputs, self._rest, strict=False)
        return (TraceRequest(number, at, prompt, output, *more) for number, at, prompt, output, more in rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def kinds_of(trace: Sequence[TraceRequest]) -> set[tuple[RequestClass | None, str]]:
    """Return the classes and tenants that occur together in a trace; None is no class."""
    return trace.kinds if isinstance(trace, Trace) else {(each.request_class, each.tenant) for each in trace}
