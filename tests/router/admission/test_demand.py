"""What a router counts of its requests for the autoscaler."""

from __future__ import annotations

import time
from dataclasses import astuple
from unittest.mock import Mock

import pytest

from cluster.autoscaler.router_report import unpack_report
from cluster.errors import PenstockError, QuarantinedError, QueueTimeoutError, SlowReaderError
from cluster.queue.entries import Grant
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import RequestClass
from penstock.v1 import types_pb2 as types
from penstock.values.slo import ClassSlo, OperatingPoint
from router.admission.demand import DemandCounter, Verdict
from router.generation.choice import Choice
from router.links.placement import Placement
from tests.cluster.queue.backends import entry

INTERACTIVE, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH
POINT = OperatingPoint(interactive=ClassSlo(ttft_p99_s=1.0, itl_p95_s=0.05))


def counted(arrivals: DemandCounter, request_class: RequestClass = INTERACTIVE) -> tuple[float, ...]:
    return astuple(unpack_report(arrivals.report()).counts[request_class])


def test_requests_count_when_they_arrive_with_what_they_are_likely_to_take() -> None:
    arrivals = DemandCounter(POINT)
    arrivals.arrived(INTERACTIVE, prompt_tokens=100, max_tokens=4096, usual_tokens=256, choices=2)
    assert (2, 200, 0, 512, 0, 0) == counted(arrivals)
    # They turned out to be shorter, and half of the prompt was cached.
    arrivals.ended(INTERACTIVE, prompt_tokens=100, cached_tokens=50, output_tokens=40)
    arrivals.arrived(INTERACTIVE, 100, 4096, 256, 1)
    assert pytest.approx((3, 300, 50, 552, 0, 0)) == counted(arrivals)
    # Nobody produces more than it may.
    arrivals.arrived(INTERACTIVE, 100, 8, 256, 1)
    assert pytest.approx((4, 400, 100, 560, 0, 0)) == counted(arrivals)
    assert (0, 0, 0, 0, 0, 0) == counted(arrivals, BATCH)


def test_lengths_follow_what_is_seen() -> None:
    arrivals = DemandCounter(POINT)
    for _ in range(200):
        arrivals.ended(INTERACTIVE, 10, 0, 10)
    for _ in range(200):
        arrivals.ended(INTERACTIVE, 10, 0, 90)
    arrivals.arrived(INTERACTIVE, 10, 4096, 256, 1)

    assert 85 < counted(arrivals)[3] <= 90


@pytest.mark.parametrize(
    ("ttft_s", "itl_s", "verdict"),
    [
        (0.9, 0.04, Verdict.MET),
        (1.1, 0.04, Verdict.TTFT),
        (0.9, 0.06, Verdict.ITL),
        (1.1, 0.06, Verdict.BOTH),
        (0.9, None, Verdict.MET),
        (None, None, Verdict.MET),
    ],
)
def test_an_ended_request_is_held_against_the_slo(ttft_s: float | None, itl_s: float | None, verdict: Verdict) -> None:
    arrivals = DemandCounter(POINT)
    arrivals.judge(INTERACTIVE, ttft_s, itl_s)

    assert (1, int(verdict is Verdict.MET)) == counted(arrivals)[4:]
    assert {(INTERACTIVE, verdict): 1} == {which: count for which, count in arrivals.verdicts.items() if count}


def test_who_is_turned_away_is_a_miss_and_who_is_promised_nothing_is_not_judged() -> None:
    arrivals = DemandCounter(POINT)
    arrivals.turned_away(INTERACTIVE)
    arrivals.turned_away(BATCH)
    arrivals.judge(BATCH, 100.0, 1.0)

    assert (1, 0) == counted(arrivals)[4:]
    assert (0, 0) == counted(arrivals, BATCH)[4:]
    arrivals.point = OperatingPoint(batch=ClassSlo(ttft_p99_s=200.0))
    arrivals.judge(BATCH, 100.0, 1.0)
    assert (1, 1) == counted(arrivals, BATCH)[4:]
    found = {which: count for which, count in arrivals.verdicts.items() if count}
    assert {(INTERACTIVE, Verdict.NOT_SERVED): 1, (BATCH, Verdict.MET): 1} == found


@pytest.mark.parametrize(
    ("error", "verdicts"),
    [
        (SlowReaderError(2, 1), {}),
        (QuarantinedError("i1", 3.0), {}),
        (QueueTimeoutError(3.0), {(INTERACTIVE, Verdict.NOT_SERVED): 1}),
        (None, {(INTERACTIVE, Verdict.TTFT): 1}),
    ],
)
def test_a_promise_counts_from_the_arrival_and_not_for_who_broke_it_himself(
    error: PenstockError | None, verdicts: dict[tuple[RequestClass, Verdict], int]
) -> None:
    arrivals = DemandCounter(POINT)
    choice = Choice(0, entry("q", request_class=INTERACTIVE), pb.Start(), Mock(), arrived_at=time.monotonic() - 3600)
    choice.run_on(Grant("q", "a", "r1"), Placement(Mock(replica_id="r1"), "g", 0.0, "m"))
    choice.on_delta(0, [7], "x", [])
    choice.end = pb.AttemptEnd(finish_reason=types.FINISH_REASON_LENGTH, output_tokens=1)
    choice.error = error

    arrivals.over(choice)

    assert verdicts == {which: count for which, count in arrivals.verdicts.items() if count}
