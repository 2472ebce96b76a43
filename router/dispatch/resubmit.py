"""Puts what waits here in line again when the store turns out to be another one: restarted, failed over or emptied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from cluster.errors import KeyReusedError, QueueFullError, QueueUnavailableError, QuotaExceededError
from cluster.queue.contract import Queue
from cluster.queue.entries import NO_QUOTA, Grant, QueueEntry, Submitted
from router.generation.choice import Choice, ChoiceState

_LOG = logging.getLogger(__name__)

GIVEN_UP = "given up"
"""Stands for the store of a choice that is to be in line, and is not."""


class Resubmit:
    """Belongs to one pool of one router."""

    def __init__(
        self,
        pool: str,
        router_id: str,
        queue: Queue,
        choices: Mapping[str, Choice],
        held: Callable[[str], bool],
        granted: Callable[[Grant], None],
    ) -> None:
        """`choices` are those that wait or run; `held` says which of them keep their slots for now, although they wait;
        `granted` takes the grants of those that find one at once.
        """
        self._pool = pool
        self._router_id = router_id
        self._queue = queue
        self._choices = choices
        self._held = held
        self._granted = granted
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
        waiting = [
            choice
            for name, choice in self._choices.items()
            if choice.state is ChoiceState.WAITING and choice.run_id and not self._held(name)
        ]
        waiting.sort(key=lambda choice: choice.submitted_at)
        _LOG.warning("pool.store_changed", extra={"pool": self._pool, "waiting": len(waiting)})
        for choice in waiting:
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
        if choice is None or choice.state is not ChoiceState.WAITING or choice.run_id == self.run_id:
            return
        entry = choice.entry_now()
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
        choice.position = submitted.position
        if submitted.grant is not None:
            self._granted(submitted.grant)

    async def _line_up(self, entry: QueueEntry) -> Submitted | None:
        try:
            submitted = await self._queue.submit(self._router_id, entry)
        except (QueueFullError, QuotaExceededError, KeyReusedError):
            return None
        return submitted if submitted.known is None else None
