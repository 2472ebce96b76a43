"""A trace in columns gives back the requests that it was made of."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from loadtest.traces import TraceRequest
from loadtest.traces.columns import Trace
from penstock.models import RequestClass


def drawn(more: bool) -> list[TraceRequest]:
    rnd = random.Random(1)
    plain = [TraceRequest(n, float(n // 3), rnd.randint(1, 900), rnd.randint(1, 90)) for n in range(30)]
    if not more:
        return plain
    # Only a few have more than lengths.
    changed = {
        7: {"tenant": "a"},
        8: {"request_class": RequestClass.BATCH},
        20: {"block_ids": (1, 2), "block_tokens": 512},
    }
    return [replace(each, **changed.get(each.number, {})) for each in plain]  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [False, True])
def test_requests_come_back_as_they_were(more: bool) -> None:
    requests = drawn(more)
    trace = Trace.of(requests)
    assert requests == list(trace)
    assert trace == requests
    assert requests[5:12:3] == trace[5:12:3]
    assert requests[-2] == trace[-2]
    with pytest.raises(IndexError):
        trace[30]


@pytest.mark.parametrize("more", [False, True])
def test_the_first_requests_are_a_trace_too(more: bool) -> None:
    requests = drawn(more)
    trace = Trace.of(requests)
    for end in (1, 15, -1, 40):
        first = trace[:end]
        assert isinstance(first, Trace)
        assert requests[:end] == first
    assert [] == trace[:0]


@pytest.mark.parametrize("more", [False, True])
def test_sorting_keeps_requests_of_one_time_in_order(more: bool) -> None:
    requests = drawn(more)
    mixed = [*requests[20:], *requests[:20]]
    wanted = sorted(mixed, key=lambda each: each.arrival_s)
    found = Trace.of(mixed).sorted()
    assert [replace(each, number=number) for number, each in enumerate(wanted)] == list(found)
    assert list(found)[:4] == list(Trace.of(mixed).sorted(4))
