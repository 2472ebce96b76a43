"""Resubmission of what waits here, when the store turns out to be another one: restarted, failed over or emptied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from cluster.errors import KeyReusedError, QueueFullError, QueueUnavailableError, QuotaExceededError
from cluster.queue.entries import NO_QUOTA, Grant, QueueEntry, Submitted
from router.dispatch.pool_context import PoolContext

_LOG = logging.getLogger(__name__)

GIVEN_UP = "given up"
"""Store of a choice that should be in line, and is not."""


class Resubmit:
    """Resubmission in one pool of one router."""

    def __init__(
        self,
        context: PoolContext,
        granted: Callable[[Grant], None],
        besides: Callable[[], Collection[str]],
    ) -> None:
        """`granted` takes the grants of choices that find a place at once; `besides` lists requests that are put in
        line elsewhere: they are adopted, or go to another cell.
        """
        self._pool = context.name
        self._router_id = context.router_id
        self._queue = context.queue
        self._choices = context.choices
        self._granted = granted
        self._besides = besides
        self.run_id = ""
        """The store's identity, as last heard."""
        self.changes = 0
        """How often the store was found to be another one, since start."""
        self.submitted = 0
        """Waiting choices that were put in line again after that."""

    def heard(self, run_id: str) -> bool:
        """Learn the store's identity; returns whether `submit_all` has to follow."""
        forgotten = bool(self.run_id)
        self.run_id = run_id
        self.changes += forgotten
        return forgotten

    async def submit_all(self) -> None:
        """Put everything that waits in line again, after the store may have forgotten it."""
        # What is held has its slot on record.
        waiting = [choice for choice in self._choices.waiting() if choice.run_id]
        waiting.sort(key=lambda choice: choice.wait.submitted_at)
        _LOG.warning("pool.store_changed", extra={"pool": self._pool, "waiting": len(waiting)})
        for choice in waiting:
            if choice.entry.request_id in self._besides():
                # Reconciliation finds it if it is in no line afterwards.
                continue
            try:
                await self.submit(choice.entry.request_id)
                self.submitted += 1
            except QueueUnavailableError:
                # The next heartbeat that comes through finds another store, or this one with all that is in it.
                self.run_id = "?"
                return

    async def submit_again(self, request_id: str) -> bool:
        """Put a choice in line that the store has given up, although it is the same store; False where it has the
        request as another router's.

        Raises:
            QueueUnavailableError: the queue does not answer.
        """
        choice = self._choices.get(request_id)
        if choice is None:
            return True
        choice.run_id = GIVEN_UP
        await self.submit(request_id)
        return choice.run_id != GIVEN_UP

    async def submit(self, request_id: str) -> None:
        """Put a choice in line if the store has forgotten it; harmless where it has not.

        Raises:
            QueueUnavailableError: the queue does not answer.
        """
        choice = self._choices.get(request_id)
        if choice is None or not choice.state.waits or choice.run_id == self.run_id:
            return
        entry = choice.wait.entry_now()
        # Its place, its quota and its key were given when it came; what has happened since does not take them away. Who
        # comes back to a line that is full stands at its head.
        free = replace(entry, quota=NO_QUOTA, client_key="")
        submitted = (
            await self._line_up(entry)
            or await self._line_up(free)
            or await self._queue.submit(self._router_id, replace(free, resume=True))
        )
        if submitted.elsewhere:
            # Its client is there, or the store forgot that it came here; the audit finds out. It looks at what has been
            # in line, and this one may not have been from here.
            choice.run_id = choice.run_id or GIVEN_UP
            return
        choice.run_id = self.run_id
        choice.wait.position = submitted.position
        if submitted.grant is not None:
            self._granted(submitted.grant)

    async def _line_up(self, entry: QueueEntry) -> Submitted | None:
        try:
            submitted = await self._queue.submit(self._router_id, entry)
        except (QueueFullError, QuotaExceededError, KeyReusedError):
            return None
        return submitted if submitted.known is None else None
