"""Retries are bounded in number and time, and spread."""

import itertools

import grpc
import pytest

from cluster.clock import ManualClock
from penstock.client import (
    DeadlineExceededError,
    ErrorDetails,
    InternalError,
    PenstockClientError,
    QueueFullError,
    QuotaExceededError,
    RetryPolicy,
    UnavailableError,
)
from penstock.client.connection import next_target
from penstock.client.retry import Attempts

POLICY = RetryPolicy(max_attempts=5, base_delay=0.1, max_delay=0.3, max_retry_after=30.0)


def largest(_low: float, high: float) -> float:
    return high


def error(kind: type[PenstockClientError], retry_after: float | None = None) -> PenstockClientError:
    return kind("x", grpc.StatusCode.UNKNOWN, ErrorDetails(retry_after=retry_after))


def test_the_random_wait_doubles_up_to_its_bound():
    waits = [POLICY.delay(failures, error(UnavailableError), largest) for failures in range(1, 6)]

    assert waits == [pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.3), pytest.approx(0.3), None]


def test_the_random_wait_has_its_bound_however_often_it_was_tried():
    patient = RetryPolicy(max_attempts=10_000, resume_for=1e6)
    assert patient.delay(5_000, error(UnavailableError), largest) == patient.max_delay
    assert patient.resume_delay(5_000, 0.0, error(UnavailableError), largest) == patient.max_delay


def test_the_wait_is_drawn_from_zero():
    """Full jitter: clients that failed together must not come back together."""
    assert POLICY.delay(2, error(UnavailableError), lambda low, _high: low) == 0.0


def test_the_routers_own_wait_comes_first():
    assert POLICY.delay(1, error(QueueFullError, 2.0), largest) == pytest.approx(2.1)
    assert POLICY.delay(1, error(UnavailableError, 30.0), largest) == pytest.approx(30.1)
    assert POLICY.delay(1, error(UnavailableError, 30.1), largest) is None


@pytest.mark.parametrize("kind", [DeadlineExceededError, InternalError, PenstockClientError])
def test_other_errors_are_final(kind):
    assert POLICY.delay(1, error(kind, 0.0), largest) is None


def test_a_quota_is_waited_for_unless_no_wait_would_help():
    assert POLICY.delay(1, error(QuotaExceededError, 2.0), largest) == pytest.approx(2.1)
    assert POLICY.delay(1, error(QuotaExceededError), largest) is None


def test_one_attempt_switches_retries_off():
    assert RetryPolicy(max_attempts=1).delay(1, error(UnavailableError), largest) is None


def test_no_attempt_starts_after_the_deadline():
    clock = ManualClock()
    attempts = Attempts(POLICY, 1.0, now=clock.monotonic, uniform=largest)

    assert attempts.time_left() == pytest.approx(1.0)
    assert attempts.wait_after(error(UnavailableError)) == pytest.approx(0.1)
    clock.advance(0.8)
    assert attempts.time_left() == pytest.approx(0.2)
    assert attempts.wait_after(error(UnavailableError)) is None


def test_without_a_deadline_only_the_number_counts():
    attempts = Attempts(POLICY, None, uniform=largest)

    assert attempts.time_left() is None
    waits = [attempts.wait_after(error(UnavailableError, 20.0)) for _ in range(5)]
    assert [wait is None for wait in waits] == [False, False, False, False, True]


def test_time_left_is_never_negative():
    """A negative timeout would be an argument error instead of a deadline."""
    clock = ManualClock()
    attempts = Attempts(POLICY, 1.0, now=clock.monotonic)
    clock.advance(5.0)

    assert attempts.time_left() == 0.0


def test_a_broken_stream_is_tried_for_a_time_and_not_a_number():
    clock = ManualClock()
    attempts = Attempts(RetryPolicy(base_delay=0.1, resume_for=3.0), None, now=clock.monotonic, uniform=largest)
    waits = []
    while (wait := attempts.wait_to_resume(error(UnavailableError))) is not None:
        waits.append(wait)
        clock.advance(wait)

    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])
    attempts.progressed()
    assert attempts.wait_to_resume(error(UnavailableError)) == pytest.approx(0.1)
    assert attempts.wait_to_resume(error(InternalError)) is None


def test_a_broken_stream_is_not_tried_past_its_deadline():
    clock = ManualClock()
    attempts = Attempts(RetryPolicy(base_delay=2.0), 1.0, now=clock.monotonic, uniform=largest)
    assert attempts.wait_to_resume(error(UnavailableError)) is None


def test_a_policy_without_waits_does_not_spin():
    attempts = Attempts(RetryPolicy(base_delay=0.0), None)
    assert [attempts.wait_to_resume(error(UnavailableError)) for _ in range(3)] == [0.0, 0.05, 0.05]


def test_whoever_shows_what_goes_on_hears_of_waits_and_not_of_the_end():
    clock, heard = ManualClock(), []
    policy = RetryPolicy(max_attempts=2, on_wait=lambda seconds, failure: heard.append((seconds, type(failure))))
    attempts = Attempts(policy, None, now=clock.monotonic, uniform=largest)
    attempts.wait_after(error(QuotaExceededError, 7.0))
    attempts.wait_to_resume(error(UnavailableError, 1.0))
    attempts.wait_after(error(QuotaExceededError, 7.0))
    attempts.wait_to_resume(error(InternalError))

    assert heard == [(pytest.approx(7.1), QuotaExceededError), (pytest.approx(1.1), UnavailableError)]


def test_the_last_error_knows_what_the_call_was_waiting_for():
    clock = ManualClock()
    attempts = Attempts(RetryPolicy(), 60.0, now=clock.monotonic, uniform=largest)
    reason, late = error(UnavailableError), error(DeadlineExceededError)
    attempts.wait_after(reason)
    attempts.wait_after(late)
    assert (reason, None) == (late.waited_for, reason.waited_for)

    attempts.progressed()
    later = error(DeadlineExceededError)
    attempts.wait_after(later)
    assert later.waited_for is None


def test_endless_timeouts_are_none_and_what_is_no_number_is_refused():
    assert Attempts(POLICY, float("inf")).time_left() is None
    assert Attempts(POLICY, 1e12).time_left() is None
    with pytest.raises(ValueError, match="timeout: must be seconds, got nan"):
        Attempts(POLICY, float("nan"))


def test_a_call_that_failed_goes_to_another_router_next():
    """Whatever other calls of the client have taken from their common rotation meanwhile."""
    for others in range(5):
        rotation = itertools.cycle(range(2))
        attempts = Attempts(RetryPolicy(), None)
        first = next_target(rotation, attempts)
        for _ in range(others):
            next_target(rotation, Attempts(RetryPolicy(), None))
        assert 1 - first == next_target(rotation, attempts)
        assert first == next_target(rotation, attempts)


def test_the_only_router_is_tried_again():
    attempts = Attempts(RetryPolicy(), None)
    rotation = itertools.cycle(range(1))
    assert [0, 0] == [next_target(rotation, attempts) for _ in range(2)]
