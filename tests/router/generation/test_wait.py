"""What a choice is told whose wait was too long."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from cluster.errors import DeadlineError, NotInTimeError, PenstockError, QueueTimeoutError
from router.generation.wait import Wait
from tests.cluster.queue.backends import entry


@pytest.mark.parametrize(
    ("bound_ms", "run_s", "adopted", "kind", "text"),
    [
        (2_000, None, False, QueueTimeoutError, "queue_timeout: the request waited 2.5 s and could not start within 2"),
        (2_000, 4.0, False, NotInTimeError, "deadline: 3.5 s is less than the estimated 4.0 s"),
        (2_000, 0.0, False, DeadlineError, "the deadline passed"),
        (9_000, None, True, QueueTimeoutError, "queue_timeout: the request waited 2.5 s and could not start in time"),
        (9_000, 4.0, True, QueueTimeoutError, "queue_timeout: the request waited 2.5 s and could not start in time"),
    ],
    ids=["queue timeout", "deadline", "passed", "of another call", "of another call than one with a deadline"],
)
def test_who_waited_too_long_hears_of_the_bound_that_was_set(
    monkeypatch: pytest.MonkeyPatch,
    bound_ms: int,
    run_s: float | None,
    adopted: bool,
    kind: type[PenstockError],
    text: str,
) -> None:
    clock = Mock()
    monkeypatch.setattr("router.generation.wait.time", clock)
    clock.monotonic.return_value = 100.0
    wait = Wait(entry("q", start_within_ms=bound_ms), None)
    wait.run_s, wait.adopted = run_s, adopted
    clock.monotonic.return_value = 102.5
    error = wait.overdue()
    assert kind is type(error)
    assert str(error).startswith(text)
