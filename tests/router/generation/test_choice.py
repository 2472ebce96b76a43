"""A choice's state machine by itself, with a link that is told and a pool that is asked."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from cluster.errors import GenerationFailedError, InvalidRequestError
from cluster.queue.entries import Grant
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.links.failure import Failure, RecoveryLimits
from router.links.placement import Placement
from tests.cluster.queue.backends import entry


def test_who_was_to_give_way_and_was_refused_instead_gives_way_the_next_time() -> None:
    """The order was for the attempt that never began."""
    choice, link = Choice(0, entry("q"), pb.Start(), Mock()), Mock(replica_id="r1")
    place = Placement(link, "g", 0.0, "")
    choice.run_on(Grant("q", "q.1", "r1"), place)
    choice.ordered("preempt")
    choice.on_refused(pb.Refusal(reason=pb.REFUSAL_REASON_WINDOW_FULL))
    assert ChoiceState.WAITING is choice.state

    choice.run_on(Grant("q", "q.2", "r1"), place)
    link.send_abort.reset_mock()
    choice.ordered("preempt")

    link.send_abort.assert_called_once()


def test_who_cannot_go_on_hears_why() -> None:
    choice = Choice(0, entry("q", max_tokens=9), pb.Start(), Mock(recovery=RecoveryLimits(3, 60.0, 60.0)))
    place = Placement(Mock(replica_id="r1", output_at=0.0), "g", 0.0, "")
    choice.run_on(Grant("q", "q.1", "r1"), place)
    choice.on_delta(0, [7], "x", [])
    choice.on_lost(Failure.LINK)
    choice.run_on(Grant("q", "q.2", "r1"), place)
    choice.on_refused(pb.Refusal(reason=pb.REFUSAL_REASON_INVALID, detail="this engine cannot resume penalties"))

    assert isinstance(choice.error, GenerationFailedError)
    assert str(choice.error).endswith("; attempts lost: 1; this engine cannot resume penalties")


@pytest.mark.parametrize(("part", "field"), [("sampling", "sampling"), ("pooling", "")])
def test_what_an_engine_refuses_is_named_as_its_request_has_it(part: str, field: str) -> None:
    """A request for vectors has no `sampling`."""
    start = pb.Start()
    getattr(start, part).SetInParent()
    for refuse in ("end", "refusal"):
        choice = Choice(0, entry("q"), start, Mock())
        choice.run_on(Grant("q", "q.1", "r1"), Placement(Mock(replica_id="r1", output_at=0.0), "g", 0.0, ""))
        if refuse == "end":
            end = pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, error="NaN", invalid_request=True)
            choice.on_end(end)
        else:
            choice.on_refused(pb.Refusal(reason=pb.REFUSAL_REASON_INVALID, detail="NaN"))
        assert isinstance(choice.error, InvalidRequestError)
        assert [(field, "refused by the engine: NaN")] == [(v.field, v.description) for v in choice.error.violations]


def test_output_that_can_not_satisfy_its_constraint_is_not_tried_again() -> None:
    """Another engine would take the last token of such output for its end, and call it complete."""
    pool = Mock(recovery=RecoveryLimits(3, 60.0, 60.0))
    choice = Choice(0, entry("q", max_tokens=9), pb.Start(), pool)
    choice.run_on(Grant("q", "q.1", "r1"), Placement(Mock(replica_id="r1", output_at=0.0), "g", 0.0, ""))
    choice.on_delta(0, [1], "", [])
    end = pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, output_tokens=1, gpu_seconds=0.5, invalid_request=True)
    end.error = "the constraint can't be followed: NoExtension"
    choice.on_end(end)

    assert isinstance(choice.error, GenerationFailedError)
    assert str(choice.error).endswith("can't go on after 1 token; the constraint can't be followed: NoExtension")
    assert ([0.5], 0) == ([ran.gpu_seconds for ran in choice.metering.receipts()], choice.error.attempts)
    pool.requeue.assert_not_called()
    pool.note_loss.assert_not_called()


def _gap(choice: Choice) -> None:
    choice.on_delta(5, [9], "z", [])


def _cancelled_and_given_up(choice: Choice) -> None:
    """The link breaks after the cancel, and the replica has given it up by the time that the link is back."""
    choice.cancel()
    choice.on_refused(pb.Refusal(reason=pb.REFUSAL_REASON_UNKNOWN))


@pytest.mark.parametrize("end", [_gap, _cancelled_and_given_up])
def test_an_attempt_whose_end_is_never_told_is_charged_for_what_came(end: Callable[[Choice], None]) -> None:
    choice = Choice(0, entry("q", prompt_tokens=9), pb.Start(), Mock(recovery=RecoveryLimits(3, 60.0, 60.0)))
    choice.run_on(Grant("q", "q.1", "r1"), Placement(Mock(replica_id="r1", output_at=0.0), "g", 0.0, ""))
    choice.on_delta(0, [7, 8], "xy", [])
    end(choice)

    assert ChoiceState.ENDED is choice.state
    assert [2] == [receipt.output_tokens for receipt in choice.metering.receipts()]
    used = choice.metering.final(choice.tokens)
    assert used is not None
    assert (1, 9, 2) == (used.requests, used.prompt_tokens, used.output_tokens)


def test_who_is_cancelled_while_its_link_is_broken_ends_as_cancelled() -> None:
    choice = Choice(0, entry("q"), pb.Start(), Mock(recovery=RecoveryLimits(3, 60.0, 60.0)))
    choice.run_on(Grant("q", "q.1", "r1"), Placement(Mock(replica_id="r1", output_at=0.0), "g", 0.0, ""))
    choice.on_delta(0, [7], "x", [])
    _cancelled_and_given_up(choice)
    assert choice.end is not None
    assert (types.FINISH_REASON_CANCELLED, None) == (choice.end.finish_reason, choice.error)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What the choice's time is: set `monotonic.return_value`."""
    clock = Mock()
    monkeypatch.setattr("router.generation.choice.time", clock)
    monkeypatch.setattr("router.generation.attempt.time", clock)
    monkeypatch.setattr("router.generation.wait.time", clock)
    clock.monotonic.return_value = 100.0
    return clock


def test_a_start_that_was_refused_leaves_the_wait_before_it_in_the_receipt(clock: Mock) -> None:
    choice, link = Choice(0, entry("q"), pb.Start(), Mock()), Mock(replica_id="r1", output_at=0.0)
    place = Placement(link, "g", 0.0, "")
    clock.monotonic.return_value = 102.0
    choice.run_on(Grant("q", "q.1", "r1"), place)
    choice.on_refused(pb.Refusal(reason=pb.REFUSAL_REASON_WINDOW_FULL))
    clock.monotonic.return_value = 103.0
    choice.run_on(Grant("q", "q.2", "r1"), place)
    choice.on_end(pb.AttemptEnd(finish_reason=types.FINISH_REASON_LENGTH))
    assert [3.0] == [receipt.queue_time.seconds for receipt in choice.metering.receipts()]


@pytest.mark.parametrize(("tokens", "lost_s"), [(2, 4.0), (0, 9.0)])
def test_what_nobody_heard_of_a_lost_attempt_is_in_the_receipt(clock: Mock, tokens: int, lost_s: float) -> None:
    """Queue, prefill, decode and this add up to the whole."""
    pool = Mock(recovery=RecoveryLimits(3, 60.0, 60.0))
    choice, link = Choice(0, entry("q"), pb.Start(), pool), Mock(replica_id="r1")
    clock.monotonic.return_value = 101.0
    choice.run_on(Grant("q", "q.1", "r1"), Placement(link, "g", 0.0, ""))
    for number in range(tokens):
        clock.monotonic.return_value = link.output_at = 103.0 + 3.0 * number
        choice.on_delta(number, [7], "x", [])
    clock.monotonic.return_value = 110.0
    choice.on_lost(Failure.LINK)
    (receipt,) = choice.metering.receipts()
    parts = (receipt.queue_time, receipt.prefill_time, receipt.decode_time, receipt.lost_time)
    assert lost_s == receipt.lost_time.seconds
    assert 10.0 == sum(part.ToTimedelta().total_seconds() for part in parts)
