"""Quarantine: suspects of an engine's death run one at a time, and all routers turn convicted contents away."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from cluster.errors import QuarantinedError, QueueUnavailableError
from cluster.queue.entries import Mark
from router.dispatch.pool_context import PoolContext
from router.dispatch.suspects import Suspects
from router.generation.attempt import content_digest
from router.generation.choice import Choice

_LOG = logging.getLogger(__name__)


class Quarantine:
    """Quarantine of one pool in one router. Held choices keep their slots on dead engines until they may run."""

    def __init__(
        self,
        context: PoolContext,
        quarantine_s: float,
        line_up: Callable[[Choice], None],
    ) -> None:
        """`quarantine_s` of 0 holds no choice and turns none away; `line_up` lets a choice that was held wait again."""
        self._router_id = context.router_id
        self._queue = context.queue
        self._owner = context.owner
        self._choices = context.choices
        self._quarantine_s = quarantine_s
        self._line_up = line_up
        self._suspects = Suspects()
        self._dying: list[str] = []
        """Choices that lost their engine in this turn of the loop."""
        self.held: set[str] = set()
        """Choices whose slots are not given back yet."""
        self._untold: dict[bytes, tuple[Mark, float]] = {}
        """Marks that the queue has missed, by content, with the monotonic time of their end."""
        self._telling = False
        self.marks = 0
        """Number of the newest known mark of the pool's routers (`Marks.count`)."""

    def check(self, choice: Choice) -> None:
        """Let a new choice pass.

        Raises:
            QuarantinedError: its content killed engines.
        """
        if (error := self._turned_away(choice)) is not None:
            raise error

    def _turned_away(self, choice: Choice) -> QuarantinedError | None:
        if not self._suspects.watchful:
            return None
        now = time.monotonic()
        known = self._suspects.turned_away(content_digest(choice.start, choice.images), now)
        return None if known is None else QuarantinedError(known.incident, known.until - now)

    # --- suspects -----------------------------------------------------------------------------------------------------

    def suspect(self, choice: Choice) -> None:
        """Hold a choice, and judge it together with the others that lost their engine in the same turn of the loop."""
        if not self._quarantine_s:
            self._line_up(choice)
            return
        if not self._dying:
            asyncio.get_running_loop().call_soon(self._judge)
        self._dying.append(choice.entry.request_id)
        self.held.add(choice.entry.request_id)

    def clear(self, choice: Choice) -> None:
        """Suspect a choice no more, and let the next one run."""
        self._suspects.clear(choice.entry.request_id)
        self._run_canary()

    def leave(self, request_id: str) -> bool:
        """Forget a choice that is over; says whether it was held and still has its slot."""
        was_held = request_id in self.held
        self.held.discard(request_id)
        return was_held

    def _judge(self) -> None:
        names, self._dying = self._dying, []
        # Some may have been cancelled since, and a copy of what was convicted meanwhile accuses no other choice.
        left = [name for name in names if (choice := self._choices.get(name)) is not None and not self._dismiss(choice)]
        convicted = self._suspects.death(left)
        if convicted is not None and (choice := self._choices.get(convicted)) is not None:
            mark = Mark(
                content_digest(choice.start, choice.images), secrets.token_hex(8), round(self._quarantine_s * 1000)
            )
            self._owner.spawn(self._convict(convicted, mark), "convict")
        self._run_canary()

    def _run_canary(self) -> None:
        while (name := self._suspects.next_canary()) is not None:
            choice = self._choices.get(name)
            if choice is not None and not self._dismiss(choice):
                self.held.discard(name)
                self._line_up(choice)
                return
            self.held.discard(name)
            self._suspects.clear(name)

    # --- the convicted ------------------------------------------------------------------------------------------------

    async def _convict(self, name: str, mark: Mark) -> None:
        """Tell all routers to turn a content away, and only then its client, which may turn to another router."""
        _LOG.error("request.quarantined", extra={"request": name, "incident": mark.incident})
        self._learn((mark,), besides=name)
        try:
            await self._queue.quarantine(self._router_id, mark)
        except QueueUnavailableError as error:
            self._untold[mark.content] = mark, time.monotonic() + mark.left_ms / 1000
            _LOG.warning("quarantine.not_shared", extra={"incident": mark.incident, "error": str(error)})
        if (choice := self._choices.get(name)) is not None:
            self._dismiss(choice)

    def tell_again(self) -> None:
        """Tell what the queue has missed."""
        if self._untold and not self._telling and not self._owner.closed:
            self._telling = True
            self._owner.spawn(self._tell_again(), "marks")

    async def _tell_again(self) -> None:
        try:
            for mark, until in list(self._untold.values()):
                left_ms = round((until - time.monotonic()) * 1000)
                if left_ms > 0:
                    await self._queue.quarantine(self._router_id, replace(mark, left_ms=left_ms))
                if self._untold.get(mark.content) == (mark, until):
                    del self._untold[mark.content]
        except QueueUnavailableError:
            # The next heartbeat that comes through tries again.
            return
        finally:
            self._telling = False

    async def follow(self) -> None:
        """Learn what other routers turned away.

        Raises:
            QueueUnavailableError: the queue does not answer.
        """
        found = await self._queue.quarantine(self._router_id)
        self.marks = found.count
        if self._quarantine_s:
            self._learn(found.marks)

    def _learn(self, marks: Iterable[Mark], besides: str = "") -> None:
        now = time.monotonic()
        for mark in marks:
            self._suspects.quarantine(mark.content, mark.incident, now + mark.left_ms / 1000)
        for choice in self._choices.snapshot():
            if choice.entry.request_id != besides:
                self._dismiss(choice)

    def _dismiss(self, choice: Choice) -> bool:
        """End a choice that waits, had no output and is turned away by now; says whether it was."""
        if not choice.state.waits or choice.tokens:
            return False
        error = self._turned_away(choice)
        if error is not None:
            choice.give_up(error)
        return error is not None
