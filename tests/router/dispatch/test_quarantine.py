"""Marks of contents that kill engines, where Redis misses them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from cluster.queue.entries import Mark, Marks
from router.dispatch.quarantine import Quarantine
from router.generation.choice_table import ChoiceTable
from tests.cluster.queue.backends import turns


class Away:
    """A queue that may be away."""

    def __init__(self) -> None:
        self.away = True
        self.calls = 0
        self.told: list[Mark] = []

    async def quarantine(self, _router: str, mark: Mark | None = None) -> Marks:
        self.calls += 1
        if self.away:
            raise QueueUnavailableError("away")
        assert mark is not None
        self.told.append(mark)
        return Marks(1, (mark,))


def quarantine_of(queue: Away) -> Quarantine:
    """Return the quarantine of one pool."""
    context: Any = SimpleNamespace(router_id="A", queue=queue, owner=TaskOwner("test"), choices=ChoiceTable())
    return Quarantine(context, 600.0, lambda _: None)


async def test_a_mark_that_the_queue_missed_is_told_once_it_answers() -> None:
    queue = Away()
    quarantine = quarantine_of(queue)
    await quarantine._convict("r", Mark(b"content", "incident", 600_000))
    quarantine.tell_again()
    quarantine.tell_again()
    await turns(5)
    # One call finds that the queue is still away.
    assert 2 == queue.calls
    queue.away = False
    for _ in range(2):
        quarantine.tell_again()
        await turns(5)
    (mark,) = queue.told
    assert (b"content", "incident") == (mark.content, mark.incident)
    # What is left of its time.
    assert 0 < mark.left_ms <= 600_000


async def test_a_mark_whose_time_is_over_is_told_no_more() -> None:
    queue = Away()
    quarantine = quarantine_of(queue)
    await quarantine._convict("r", Mark(b"content", "incident", 0))
    queue.away = False
    for _ in range(2):
        quarantine.tell_again()
        await turns(5)
    assert [] == queue.told
    assert {} == quarantine._untold
