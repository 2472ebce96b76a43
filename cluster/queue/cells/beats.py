"""A router's heartbeat to all cells of a pool.

A cell that is cut off must not make the router late in the others. So none is waited for longer than a part of the
time that Redis has for an answer, and one that is known to be away not at all; what comes later counts with the next
heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

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
        self._slow: set[int] = set()
        """Cells whose last heartbeat took longer than any is waited for."""
        self._took: dict[int, float] = {}
        """Seconds that the last heartbeat of a cell took until it was answered."""
        self._untold: dict[int, tuple[tuple[str, str], ...]] = {}
        """Started grants of which a cell has not been told."""
        self._brought: dict[int, CellOrders] = {}
        """Orders that a cell was brought last; forgotten when it does not answer."""
        self._telling: dict[int, tuple[tuple[str, str], ...]] = {}
        self._following: asyncio.Task[None] | None = None
        """What came after a heartbeat and has not ended."""

    async def send(self, beat: RouterBeat) -> RouterBeatReply:
        """Send a heartbeat to all cells; return the pool's answer.

        Raises:
            QueueUnavailableError: no cell answers, or the number of cells can't be known.
        """
        await self._learn_number()
        reply = await self._send_all(beat)
        await self._follow_up()
        return reply

    async def _follow_up(self) -> None:
        """Do what comes after a heartbeat. A server that hangs from now on must not keep the answer back: this goes on
        by itself then, and begins anew with a heartbeat after its end.
        """
        layout = self._seen.layout
        if self._following is None:
            if layout.span == 1 and not layout.is_due:
                return
            self._following = asyncio.create_task(self._bring_and_read(), name="beat-orders")
            await asyncio.wait([self._following], timeout=WAIT_S)
        if self._following.done():
            ended, self._following = self._following, None
            ended.result()

    async def _bring_and_read(self) -> None:
        seen = self._seen
        if seen.layout.span > 1:
            await self._bring_orders()
        if seen.layout.is_due and 0 not in seen.away:
            with suppress(QueueUnavailableError):
                await read_layout(self._cell(0), seen.layout)

    async def _learn_number(self) -> None:
        """Read how many cells there are before the first heartbeat. While cell 0 is away the settings suffice."""
        layout = self._seen.layout
        if layout.known or (layout.suffices and 0 in self._seen.away):
            return
        try:
            await read_layout(self._cell(0), layout)
        except QueueUnavailableError:
            if not layout.suffices:
                raise
            _LOG.warning("cell.number_unread", extra={"cells": layout.count})

    async def _send_all(self, beat: RouterBeat) -> RouterBeatReply:
        seen = self._seen
        if seen.layout.span == 1:
            reply = await self._cell(0).heartbeat_router(beat)
            seen.heard(0, reply)
            return reply
        # Answers that came since. Without them a cell that takes its time would get every second heartbeat only.
        mails = dict[int, Mail]()
        self._take(mails)
        for cell in range(seen.layout.span):
            self._note_started(cell, beat)
            if cell not in self._under_way:
                self._under_way[cell] = asyncio.create_task(self._send(cell, beat), name=f"beat-{cell}")
        return await self._answers(mails)

    async def _answers(self, mails: dict[int, Mail]) -> RouterBeatReply:
        await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)
        # One that refuses at once has not answered, and the others have all the time of a call; without any answer also
        # those that take theirs.
        while not any(map(_has_answered, self._under_way.values())) and (
            late := self._late(self._slow) or (self._late() if not mails else [])
        ):
            await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        if late := self._late(self._slow):
            await asyncio.wait(late, timeout=WAIT_S)
        error = self._take(mails)
        self._slow |= self._under_way.keys()
        self._note_away(frozenset(range(self._seen.layout.span)) - mails.keys())
        if not mails:
            raise error or QueueUnavailableError("no cell of the pool has answered yet")
        grants = tuple(replace(grant, cell=cell) for cell, mail in mails.items() for grant in mail.grants)
        orders = tuple(order for mail in mails.values() for order in mail.orders)
        return self._seen.reply(Mail(grants, orders))

    def _take(self, mails: dict[int, Mail]) -> QueueUnavailableError | None:
        """Take the answers that have come, and their mail; return the error of a cell that has failed."""
        error: QueueUnavailableError | None = None
        for cell, task in [(cell, task) for cell, task in self._under_way.items() if task.done()]:
            del self._under_way[cell]
            try:
                reply = task.result()
            except QueueUnavailableError as failure:
                error = failure
                mails.pop(cell, None)
                self._note_untold(cell, self._telling.pop(cell, ()))
                continue
            self._telling.pop(cell, None)
            if self._took.pop(cell, 0.0) <= WAIT_S:
                self._slow.discard(cell)
            self._seen.heard(cell, reply)
            # Each answer has the whole mailbox, so of two the newer one counts.
            mails[cell] = self._seen.own_mail(cell, reply.mail)
        return error

    def _late(self, besides: Collection[int] = ()) -> list[asyncio.Task[RouterBeatReply]]:
        """List the heartbeats without an answer to cells that answered the last one, besides some."""
        passed = self._seen.away.union(besides)
        return [task for cell, task in self._under_way.items() if not task.done() and cell not in passed]

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
        began = time.monotonic()
        reply = await self._cell(cell).heartbeat_router(own)
        self._took[cell] = time.monotonic() - began
        return reply

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
        await asyncio.gather(*(self._bring(cell, orders) for cell in cells))

    async def _bring(self, cell: int, orders: CellOrders) -> None:
        with suppress(QueueUnavailableError):
            await self._cell(cell).copy_orders(orders)
            self._brought[cell] = orders.standing

    async def close(self) -> None:
        """End heartbeats that are under way."""
        tasks: list[asyncio.Task[Any]] = [*self._under_way.values()]
        if self._following is not None:
            tasks.append(self._following)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _has_answered(task: asyncio.Task[RouterBeatReply]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def newest(mail: Mail, entries: EntryCells) -> Mail:
    """Return the mail of a heartbeat as it holds when it is delivered: without grants of cells that their entries have
    left since.
    """
    grants = tuple(grant for grant in mail.grants if entries.get(grant.request_id) in (grant.cell, None))
    return mail if len(grants) == len(mail.grants) else Mail(grants, mail.orders)
