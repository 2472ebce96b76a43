"""A router's heartbeat to all cells of a pool.

A cell that is cut off must not make the router late in the others. So none is waited for longer than a part of the
time that Redis has for an answer, and one that is known to be away not at all; what comes later counts with the next
heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.cell import Cell, CellOrders, read_layout
from cluster.queue.cells.ids import EntryCells
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import Mail
from cluster.queue.heartbeats import RouterBeat, RouterBeatReply

_LOG = logging.getLogger(__name__)

WAIT_S = 0.5
"""Longest wait for the other cells after the first has answered."""


class CellBeats:
    """Heartbeats of one router to the cells of a pool."""

    def __init__(self, seen: CellsSeen, cell: Callable[[int], Cell]) -> None:
        self._seen = seen
        self._cell = cell
        self._under_way: dict[int, asyncio.Task[RouterBeatReply]] = {}
        """Heartbeats without an answer yet, by cell."""
        self._untold: dict[int, tuple[tuple[str, str], ...]] = {}
        """Started grants of which a cell has not been told."""
        self._brought: dict[int, CellOrders] = {}
        """Orders that a cell was brought last; forgotten when it does not answer."""
        self._telling: dict[int, tuple[tuple[str, str], ...]] = {}

    async def send(self, beat: RouterBeat) -> RouterBeatReply:
        """Send a heartbeat to all cells; return the pool's answer.

        Raises:
            QueueUnavailableError: no cell answers.
        """
        reply = await self._send_all(beat)
        seen = self._seen
        if seen.layout.is_due and 0 not in seen.away:
            # After the heartbeat, which must not wait for it.
            with suppress(QueueUnavailableError):
                await read_layout(self._cell(0), seen.layout)
        return reply

    async def _send_all(self, beat: RouterBeat) -> RouterBeatReply:
        seen = self._seen
        if seen.layout.span == 1:
            reply = await self._cell(0).heartbeat_router(beat)
            seen.heard(0, reply)
            return reply
        for cell in range(seen.layout.span):
            self._note_started(cell, beat)
            if cell not in self._under_way:
                self._under_way[cell] = asyncio.create_task(self._send(cell, beat), name=f"beat-{cell}")
        return await self._answers()

    async def _answers(self) -> RouterBeatReply:
        await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)
        away_before = self._seen.away
        late = [task for cell, task in self._under_way.items() if not task.done() and cell not in away_before]
        if late:
            await asyncio.wait(late, timeout=WAIT_S)
        mails, away = dict[int, Mail](), set[int]()
        error: QueueUnavailableError | None = None
        for cell, task in list(self._under_way.items()):
            if not task.done():
                away.add(cell)
                continue
            del self._under_way[cell]
            try:
                reply = task.result()
            except QueueUnavailableError as failure:
                error = failure
                away.add(cell)
                self._note_untold(cell, self._telling.pop(cell, ()))
                continue
            self._telling.pop(cell, None)
            self._seen.heard(cell, reply)
            mails[cell] = self._seen.own_mail(cell, reply.mail)
        self._note_away(frozenset(away))
        if not mails:
            raise error or QueueUnavailableError("no cell of the pool has answered yet")
        await self._bring_orders()
        grants = tuple(replace(grant, cell=cell) for cell, mail in mails.items() for grant in mail.grants)
        orders = tuple(order for mail in mails.values() for order in mail.orders)
        return self._seen.reply(Mail(grants, orders))

    def _note_started(self, cell: int, beat: RouterBeat) -> None:
        entries = self._seen.entries
        own = tuple(pair for pair in beat.started if entries.get(pair[0]) in (cell, None))
        self._note_untold(cell, own)

    def _note_untold(self, cell: int, pairs: Iterable[tuple[str, str]]) -> None:
        # A heartbeat that fails in all cells is sent again with the same pairs.
        self._untold[cell] = tuple(dict.fromkeys((*self._untold.get(cell, ()), *pairs)))

    async def _send(self, cell: int, beat: RouterBeat) -> RouterBeatReply:
        seen, entries = self._seen, self._seen.entries
        self._telling[cell] = started = self._untold.pop(cell, ())
        members = seen.replicas(cell)
        own = replace(
            beat,
            connected=tuple(name for name in beat.connected if name in members),
            started=started,
            positions_of=tuple(name for name in beat.positions_of if entries.get(name) in (cell, None)),
        )
        return await self._cell(cell).heartbeat_router(own)

    def _note_away(self, away: frozenset[int]) -> None:
        for cell in away:
            self._brought.pop(cell, None)
        for cell in away - self._seen.away:
            _LOG.warning("cell.away", extra={"cell": cell})
        for cell in self._seen.away - away:
            _LOG.warning("cell.back", extra={"cell": cell})
        self._seen.lost(away)

    async def _bring_orders(self) -> None:
        """Bring the autoscaler's orders, which are in cell 0, to the other cells: those that end each time, others when
        they have changed.
        """
        seen = self._seen
        if 0 in seen.away:
            return
        try:
            orders = await self._cell(0).read_orders()
        except QueueUnavailableError:
            return
        ending = orders.relief_ms or orders.standby_ms
        cells = [
            cell
            for cell in range(1, seen.layout.span)
            if cell not in seen.away and (ending or self._brought.get(cell) != orders.standing)
        ]
        calls = (self._cell(cell).copy_orders(orders) for cell in cells)
        for cell, failure in zip(cells, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if failure is None:
                self._brought[cell] = orders.standing
            elif not isinstance(failure, QueueUnavailableError):
                raise failure

    async def close(self) -> None:
        """End heartbeats that are under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def newest(mail: Mail, entries: EntryCells) -> Mail:
    """Return the mail of a heartbeat as it holds when it is delivered: without grants of cells that their entries have
    left since.
    """
    grants = tuple(grant for grant in mail.grants if entries.get(grant.request_id) in (grant.cell, None))
    return mail if len(grants) == len(mail.grants) else Mail(grants, mail.orders)
