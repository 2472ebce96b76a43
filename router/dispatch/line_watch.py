"""Watch of a pool's line: it notes why choices wait here, and shows the line to operators.

Nothing is asked or noted while nothing waits. The queue is asked at most once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from cluster.errors import QueueUnavailableError
from cluster.queue.line import ASKED, Line
from cluster.queue.settings import limits_from
from cluster.settings import QueueSettings
from penstock.models import ReplicaState
from router.dispatch.pool_context import PoolContext
from router.dispatch.reasons import Glance, PoolNow, Waiting, lacks_a_slot_only
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.generation.wait import WaitReason
from router.links.replicas import ReplicaSet

_LOG = logging.getLogger(__name__)
LOOK_S, SLOW_LOOK_S = 0.25, 1.0
"""Seconds between two looks at the choices that wait: usually, and with more than `FEW` choices that do, or
`FEW_CHOICES` that live here.
"""
FEW, FEW_CHOICES = 100, 2_000
ASK_S = 1.0
"""Least seconds between two reports of the queue."""
SILENT_S = 0.5
"""A report that takes longer is no answer: its time counts as one in which the queue did not answer."""
LOOKED = 256
"""Most choices that one look describes: each takes some 60 us."""
LOOK_BACK_S = 2.0
"""Longest time for which a report corrects what was noted before it."""


class LineWatch:
    """Watch of one pool's line by one router."""

    def __init__(
        self,
        context: PoolContext,
        replicas: ReplicaSet,
        available: Callable[[], bool],
        settings: QueueSettings,
    ) -> None:
        """`available` says whether this router has its lease."""
        self._context = context
        self._replicas = replicas
        self._available = available
        self._shares = limits_from(settings).class_shares
        self._line: Line | None = None
        self._asked_at = float("-inf")
        self._passed: dict[str, int] = {}
        """How often the entries of the last report were passed over."""
        self._passing: frozenset[str] = frozenset()
        """Entries that were passed over between the last two reports."""
        self._turn = 0
        """Number of the choice that the next look begins with."""
        self._asking: asyncio.Task[None] | None = None

    async def line(self) -> Line | None:
        """Return the line, at most a second old; None where the queue does not answer."""
        if self._asking is None and time.monotonic() - self._asked_at >= ASK_S:
            self._asking = self._context.owner.spawn(self._ask(self._waiting()), "line")
        if self._asking is not None:
            await asyncio.wait((self._asking,))
        return self._line

    async def watch(self) -> None:
        """Note reasons until cancelled."""
        many = False
        while True:
            await asyncio.sleep(SLOW_LOOK_S if many or len(self._context.choices) > FEW_CHOICES else LOOK_S)
            waiting = self._waiting()
            many = len(waiting) > FEW
            if not waiting:
                continue
            try:
                await self._look(waiting)
            except Exception:  # noqa: BLE001 - a reason that is not known must not end the watch
                _LOG.exception("line.look_failed")

    def _waiting(self) -> list[Choice]:
        return [choice for choice in self._context.choices.values() if choice.state.waits]

    async def _ask(self, waiting: Sequence[Choice]) -> None:
        began_at, last_at = time.monotonic(), self._asked_at
        try:
            self._line = await self._context.queue.line([choice.entry.request_id for choice in waiting[:ASKED]])
        except QueueUnavailableError:
            self._line = None
        finally:
            self._asking = None
            self._asked_at = time.monotonic()
        if self._line is not None:
            self._follow(self._line, waiting, min(LOOK_BACK_S, began_at - last_at))
        if self._asked_at - began_at > SILENT_S:
            for choice in waiting:
                if choice.state.waits:
                    choice.wait.note(WaitReason.QUEUE_UNAVAILABLE, choice.queued_at, self._asked_at)

    def _follow(self, line: Line, waiting: Sequence[Choice], since_s: float) -> None:
        """Learn which entries were passed over since the last report, `since_s` ago."""
        passed = {name: place.passed for name, place in line.places.items()}
        self._passing = frozenset(name for name, times in passed.items() if times > self._passed.get(name, 0))
        self._passed = passed
        pool = self._pool_now()
        for choice in waiting:
            if choice.entry.request_id in self._passing and lacks_a_slot_only(self._describe(choice, line, 0), pool):
                choice.wait.correct(WaitReason.NO_ROOM, WaitReason.AFFINITY, since_s)

    async def _look(self, waiting: Sequence[Choice]) -> None:
        line = await self.line()
        if not self._available():
            line = None
        now, glance = time.monotonic(), Glance(line, self._pool_now())
        ranks = Counter[tuple[int, str]]()
        # In a longer line they take turns. What was not looked at in between counts as the next look finds it.
        first = self._turn if self._turn < len(waiting) else 0
        self._turn = first + LOOKED
        for number, choice in enumerate(waiting):
            group = (choice.entry.request_class.value, choice.entry.tenant)
            rank, ranks[group] = ranks[group], ranks[group] + 1
            if not first <= number < first + LOOKED or not choice.state.waits:
                continue
            described, wait = self._describe(choice, line, rank), choice.wait
            # The window also with others ahead: it says why these wait.
            reason, window = glance.at(described)
            wait.note(reason, choice.queued_at, now, window)
            if line is None:
                continue
            wait.note_holders(glance.shares)
            if wait.ahead is None and choice.state is ChoiceState.WAITING:
                ahead = glance.ahead(described)
                if ahead is not None:
                    wait.ahead = [(each.request_class, each.tenant, each.waiting) for each in ahead]

    def _describe(self, choice: Choice, line: Line | None, rank: int) -> Waiting:
        entry = choice.entry
        place = line.places.get(entry.request_id) if line is not None else None
        return Waiting(
            entry.tenant,
            entry.request_class,
            entry.prompt_tokens + entry.expected_tokens,
            entry.kv_tokens,
            entry.prompt_tokens,
            own_ahead=rank if place is None else place.own_ahead,
            passed=entry.request_id in self._passing,
            held=choice.state is ChoiceState.HELD,
            unplaced=place is None,
        )

    def _pool_now(self) -> PoolNow:
        reached = frozenset(self._replicas.connected())
        ready = [
            record
            for name, record in self._replicas.records.items()
            if record.state is ReplicaState.READY and name in reached
        ]
        return PoolNow(ready, self._shares)
