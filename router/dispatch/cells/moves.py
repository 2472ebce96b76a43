"""Waiting requests that go from a full cell to one with room.

Routers place requests by what cells looked like at the last heartbeat, and replicas come and go. So a cell may have
room while requests wait in another one.
"""

from __future__ import annotations

import logging
from collections import defaultdict

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.choice import CellMove, moves, pinned
from router.dispatch.adoption import Adoption
from router.dispatch.cells.pool_cells import PoolCells
from router.dispatch.mailbox import Mailbox
from router.dispatch.pool_context import PoolContext
from router.dispatch.releases import Releases
from router.dispatch.resubmit import Resubmit
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState

_LOG = logging.getLogger(__name__)


class CellMoves:
    """Moves of one router's waiting choices between the cells of a pool."""

    def __init__(
        self,
        context: PoolContext,
        cells: PoolCells,
        adoption: Adoption,
        mailbox: Mailbox,
        releases: Releases,
        resubmit: Resubmit,
    ) -> None:
        self._context = context
        self._cells = cells
        self._adoption = adoption
        self._mailbox = mailbox
        self._releases = releases
        self._resubmit = resubmit
        self._busy = False
        self.moved = 0
        """Choices that went to another cell, since start."""

    def look(self) -> None:
        """CellMove what should go, after a heartbeat."""
        if self._busy or self._cells.layout.span == 1:
            return
        views = self._cells.seen.views()
        if all(view.waiting for view in views) or not any(view.waiting for view in views):
            return
        free = self._free()
        if planned := moves(views, {cell: len(choices) for cell, choices in free.items()}):
            self._busy = True
            self._context.owner.spawn(self._carry_out(planned, free), "moves")

    def _free(self) -> dict[int, list[Choice]]:
        """Return the waiting choices that may go, by cell, the oldest first."""
        found = defaultdict[int, list[Choice]](list)
        entries = self._cells.seen.entries
        for choice in self._context.choices.waiting():
            # One with output goes on where it has its place at the head of the line.
            fresh = choice.run_id and not choice.attempt and choice.wait.waited_s is None
            if fresh and not pinned(choice.entry) and (cell := entries.get(choice.entry.request_id)) is not None:
                found[cell].append(choice)
        for choices in found.values():
            choices.sort(key=lambda each: each.wait.submitted_at)
        return found

    async def _carry_out(self, planned: list[CellMove], free: dict[int, list[Choice]]) -> None:
        try:
            for move in planned:
                for choice in free[move.source][: move.entries]:
                    await self._move(choice, move.target)
        except QueueUnavailableError as error:
            # What is in no line now is found by reconciliation.
            _LOG.warning("moves.broken_off", extra={"pool": self._context.name, "error": str(error)})
        finally:
            self._busy = False

    async def _move(self, choice: Choice, target: int) -> None:
        context, request_id = self._context, choice.entry.request_id
        if not self._waits(choice):
            return
        # A grant of the old cell that is on its way must not start it: its slot is given back.
        with self._adoption.held_open(request_id):
            moved = await self._cells.queue.move(context.router_id, request_id, choice.wait.entry_now(), target)
        if moved is None:
            return
        mail, submitted = moved
        self.moved += 1
        self._mailbox.deliver(mail)
        if not self._waits(choice):
            # It was cancelled meanwhile, and its withdrawal may have come between the two cells.
            if request_id not in context.choices:
                self._releases.withdraw(request_id, None)
            return
        choice.wait.position = submitted.position
        if submitted.grant is not None:
            self._mailbox.granted(submitted.grant)

    def _waits(self, choice: Choice) -> bool:
        here = self._context.choices.get(choice.entry.request_id) is choice
        # What is not known to be in line in the stores of now may be on its way into a cell again.
        placed = choice.run_id == self._resubmit.run_id
        return here and placed and choice.state is ChoiceState.WAITING and not choice.attempt
