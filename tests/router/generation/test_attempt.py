"""One attempt: what it tells the replica's link, and what is known of it at its end."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

import pytest

from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.generation import attempt as module
from router.generation.attempt import Attempt
from router.generation.metering import AttemptOutcome
from router.links.placement import Placement


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def place() -> tuple[Any, Placement]:
    link = Mock(replica_id="replica", output_at=0.0)
    link.open_sink.return_value = 4
    return link, Placement(link, "group", 0.5, "model")


def test_a_start_goes_out_on_a_number_of_its_own_until_it_is_closed_once(clock: Clock) -> None:
    link, where = place()
    run, receiver, start = Attempt("a", where, 99.0, 3, granted=True), Mock(), pb.Start()
    run.start(receiver, "r", start)
    assert call(receiver, "r", "a", 3) == link.open_sink.call_args
    link.send_start.assert_called_once_with(4, start)
    run.close(acknowledge=True)
    run.close(acknowledge=False)
    link.close_sink.assert_called_once_with(4, acknowledge=True)


@pytest.mark.parametrize(("deadline", "until"), [(None, float("inf")), (107.0, 107.0)])
def test_who_takes_over_says_until_when(clock: Clock, deadline: float | None, until: float) -> None:
    link, where = place()
    run = Attempt("a", where, 99.0, 3, granted=False)
    run.attach(Mock(), "r", deadline)
    assert until == link.open_sink.call_args.kwargs["deadline"]
    link.send_attach.assert_called_once_with(4)


def test_its_times_are_the_routers_own(clock: Clock) -> None:
    _link, where = place()
    run = Attempt("a", where, 98.0, 0, granted=True)
    clock.now = 100.25
    run.began_at = clock.now
    ran = run.over(pb.AttemptEnd(prefill_s=9.0), 5, AttemptOutcome.COMPLETED)
    assert (2.0, 0.25) == (ran.queue_s, ran.prefill_s)
    assert ("replica", "group", 0.5) == (ran.replica_id, ran.group_id, ran.price_per_s)


@pytest.mark.parametrize("granted", [True, False])
def test_where_another_router_got_the_slot_or_nothing_came_the_replica_says_how_long_the_prefill_was(
    clock: Clock, granted: bool
) -> None:
    _link, where = place()
    run = Attempt("a", where, 98.0, 0, granted=granted)
    if not granted:
        run.began_at = 101.0
    ran = run.over(pb.AttemptEnd(prefill_s=9.0), 5, AttemptOutcome.COMPLETED)
    assert (2.0 if granted else 0.0, 9.0) == (ran.queue_s, ran.prefill_s)


def test_a_replica_that_is_lost_leaves_what_the_link_saw(clock: Clock) -> None:
    link, where = place()
    run = Attempt("a", where, 98.0, 5, granted=True)
    run.began_at, link.output_at, clock.now = 101.0, 103.0, 110.0
    ran = run.over(None, 8, AttemptOutcome.LOST, "link")
    assert (types.FINISH_REASON_ERROR, 3, 2.0) == (ran.end.finish_reason, ran.end.output_tokens, ran.end.decode_s)
    assert 7.0 == ran.lost_s


def test_one_without_output_is_silent_since_its_grant(clock: Clock) -> None:
    link, where = place()
    run = Attempt("a", where, 98.0, 0, granted=True)
    # Of others on this link.
    link.output_at, clock.now = 109.0, 110.0
    ran = run.over(None, 0, AttemptOutcome.LOST, "link")
    assert (10.0, 0.0) == (ran.lost_s, ran.end.decode_s)


def test_of_one_that_was_taken_over_and_said_nothing_no_silence_is_known(clock: Clock) -> None:
    _link, where = place()
    clock.now = 110.0
    assert 0.0 == Attempt("a", where, 98.0, 0, granted=False).silent_s
