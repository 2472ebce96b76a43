"""Calls that were refused, and come back."""

from __future__ import annotations

from cluster.clock import ManualClock
from cluster.errors import QueueFullError, QuotaExceededError
from router.admission.refusals import MOST_REMEMBERED, REMEMBERED_S, CallName, Refusals
from router.validation import ChatPrompt, Image, Message

FULL = QueueFullError("demo", 10, 1.0)
QUOTA = QuotaExceededError("demo", "acme", "tokens_per_minute", 1000, 2.0)


def test_a_call_that_comes_back_knows_when_it_was_refused_first_and_why() -> None:
    clock = ManualClock()
    refusals, call = Refusals(clock.monotonic), CallName("acme", "hello")
    began_at = clock.monotonic()
    refusals.note(call, QUOTA)
    clock.advance(3)
    refusals.note(CallName("acme", "hello"), FULL)
    clock.advance(1)

    assert refusals.take(CallName("acme", "other")) is refusals.take(CallName("other", "hello")) is None
    found = refusals.take(call)
    assert found is not None
    assert (began_at, began_at + 3, 2, QUOTA.reason) == (found.first_at, found.last_at, found.times, found.reason)
    assert refusals.take(call) is None


def test_after_a_while_the_same_words_are_another_call() -> None:
    clock = ManualClock()
    refusals, call = Refusals(clock.monotonic), CallName("acme", "hello")
    refusals.note(call, FULL)
    clock.advance(REMEMBERED_S + 1)
    assert refusals.take(call) is None
    assert 0 == len(refusals)


def test_no_more_than_a_bounded_number_is_remembered() -> None:
    refusals = Refusals(ManualClock().monotonic)
    for number in range(MOST_REMEMBERED + 5):
        refusals.note(CallName("acme", number), FULL)
    assert MOST_REMEMBERED == len(refusals)
    assert refusals.take(CallName("acme", 0)) is None
    assert refusals.take(CallName("acme", 5)) is not None


def test_refusals_by_quota_are_counted_for_a_minute() -> None:
    clock = ManualClock()
    refusals = Refusals(clock.monotonic)
    for number in range(3):
        refusals.note(CallName("acme", number), QUOTA)
    refusals.note(CallName("calm", 1), FULL)
    assert {"acme": 3} == refusals.refused()
    clock.advance(61)
    assert {} == refusals.refused()


def test_calls_with_other_images_are_others() -> None:
    """Many have the same question, and images of the same size."""
    names = {
        CallName("acme", ChatPrompt((Message("user", "What is this?", (Image(data, 640, 480),)),))).digest()
        for data in (b"a", b"b", b"a")
    }
    assert 2 == len(names)
