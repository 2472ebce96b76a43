"""A pool's queue over its cells, as routers and all who look at a pool see it.

A request's cell is chosen when it is submitted; from then on its entry is in that cell, and calls about it go there. A
call about an entry whose cell is not known goes to all cells: in all but one it changes nothing, because owners and
attempts are compared. With one cell nothing comes between a call and it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cluster.errors import QueueFullError, QueueUnavailableError, QuotaExceededError
from cluster.queue.cells.beats import CellBeats
from cluster.queue.cells.budgets import CellBudgets
from cluster.queue.cells.cancels import CellCancels
from cluster.queue.cells.cell import Cell, CellViews, ask, ask_each, first, read_layout, search
from cluster.queue.cells.choice import pinned
from cluster.queue.cells.key_homes import KeyHomes
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.merge import merge_costs, merge_lines, merge_marks, merge_usage, merge_views, page, read_page
from cluster.queue.cells.names import cell_name
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.cells.weights import EntryWeights
from cluster.queue.entries import (
    RETRY_FULL_S,
    Adopted,
    CostLine,
    Holdings,
    KnownRequest,
    Mail,
    Mark,
    Marks,
    QueueEntry,
    Quota,
    Settlement,
    Submitted,
    UsageLine,
    Where,
)
from cluster.queue.heartbeats import (
    PoolView,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaTimes,
    RouterBeat,
    RouterBeatReply,
)
from cluster.queue.line import ASKED, Line

Answer = TypeVar("Answer")
Call = Coroutine[Any, Any, Answer]


class CellQueue:
    """Queue of a pool. It belongs to the event loop that makes the first call, as each of its cells does."""

    def __init__(
        self,
        pool: str,
        open_cell: Callable[[str], Cell],
        seen: CellsSeen | None = None,
        *,
        max_waiting: int = 0,
        keys_last_s: float = 600.0,
    ) -> None:
        """Open a pool's queue.

        Args:
            pool: the pool's name.
            open_cell: opens a cell by its name.
            seen: what this process knows of the cells; None for one that only looks on, and takes the number of cells
                from the store.
            max_waiting: most waiting entries of the pool; 0 leaves the bound to each cell.
            keys_last_s: how long clients' keys are kept.
        """
        self.pool = pool
        self.seen = seen or CellsSeen(Layout(0))
        self._layout = self.seen.layout
        self._open = open_cell
        self._cells = [open_cell(pool)]
        self._max_waiting = max_waiting
        self._budgets = CellBudgets(pool, self.seen, self.cell)
        self._homes = KeyHomes(self.seen, keys_last_s)
        self._beats = CellBeats(self.seen, self.cell)
        self._cancels = CellCancels(self.seen, self.cell, self._homes)
        self._weights, self._views = EntryWeights(self._layout), CellViews(self.cell)
        self._listed: list[tuple[str, int]] = []
        """Entries on record in the pages that were read so far."""
        # No secret depends on it.
        self._random = random.Random()  # noqa: S311

    def cell(self, number: int) -> Cell:
        while len(self._cells) <= number:
            self._cells.append(self._open(cell_name(self.pool, len(self._cells))))
        return self._cells[number]

    @property
    def _one(self) -> Cell | None:
        """The only cell; None where there may be several."""
        return self._cells[0] if self._layout.span == 1 else None

    async def _look(self) -> Cell | None:
        """Read how many cells there are, where this process does not know it for good; return the only one."""
        if not self._layout.known:
            await read_layout(self._cells[0], self._layout)
        return self._one

    async def _all(self, call: Callable[[Cell], Awaitable[Answer]], cells: Iterable[int] | None = None) -> list[Answer]:
        """Return the answers of all cells, or of some.

        Raises:
            QueueUnavailableError: one does not answer.
        """
        numbers = range(self._layout.span) if cells is None else cells
        found, away = await ask(call(self.cell(number)) for number in numbers)
        if away is not None:
            raise away
        return found

    def _near(self) -> list[int]:
        """List the cells that answered the last heartbeat; all where none did, so that a call fails for a reason."""
        span, away = range(self._layout.span), self.seen.away
        return [cell for cell in span if cell not in away] or list(span)

    async def _search(self, call: Callable[[Cell], Awaitable[Answer | None]], cells: Iterable[int]) -> Answer | None:
        return await search(cells, self.seen.away, lambda number: call(self.cell(number)))

    # --- requests -----------------------------------------------------------------------------------------------------

    def submit(self, router_id: str, entry: QueueEntry) -> Call[Submitted]:
        if (one := self._one) is not None:
            return one.submit(router_id, entry)
        return self._submit(router_id, entry)

    async def _submit(self, router_id: str, entry: QueueEntry) -> Submitted:
        seen, layout = self.seen, self._layout
        layout.settle()
        cell = seen.entries.get(entry.request_id)
        if cell is None:
            # Not a further choice of a request that was let in: its part of the quota is taken.
            full = entry.choices > 0 and not entry.resume and 0 < self._max_waiting <= seen.waiting
            # A request that is here already is found in a full pool, too, and while a former home is away.
            if entry.client_key and (full or self._homes.former(entry.tenant)):
                key = entry.tenant, entry.client_key, entry.request_id, entry.digest
                known = await self._search(lambda cell: cell.find_key(*key), self._homes.cells(entry.tenant))
                if known is not None:
                    return Submitted(None, 0, known)
            if full:
                raise QueueFullError(self.pool, self._max_waiting, RETRY_FULL_S)
            cell = self._place(entry)
        spent = await self._budgets.elsewhere(entry, cell)
        try:
            quota = spent.left(self._part(entry))
            weight = self._weights.of(entry, cell)
            same = quota is entry.quota and weight == entry.weight
            own = entry if same else replace(entry, quota=quota, weight=weight)
            submitted = await self.submit_to(cell, router_id, own)
        except QuotaExceededError as error:
            raise spent.refused(error) from None
        except QueueFullError as error:
            limit = entry.quota.max_waiting if error.tenant else self._max_waiting or error.limit
            raise QueueFullError(self.pool, limit, error.retry_after_s, error.tenant) from None
        return spent.whole(submitted)

    async def submit_to(self, cell: int, router_id: str, entry: QueueEntry) -> Submitted:
        seen = self.seen
        # Before the call: its answer may be lost, and the entry is there all the same.
        seen.entries.put(entry.request_id, cell)
        seen.sent(cell)
        try:
            submitted = await self.cell(cell).submit(router_id, entry)
        except QueueUnavailableError:
            seen.entries.put(entry.request_id, cell)
            raise
        except Exception:
            seen.entries.drop(entry.request_id)
            raise
        # Again: a look at the records that began and ended meanwhile did not find it.
        seen.entries.put(entry.request_id, cell)
        if submitted.known is not None:
            seen.entries.drop(entry.request_id)
        position = seen.position(cell, submitted.position) if submitted.position else 0
        marks = seen.marks(cell, submitted.marks)
        if (position, marks) == (submitted.position, submitted.marks):
            return submitted
        return replace(submitted, position=position, marks=marks)

    def _place(self, entry: QueueEntry) -> int:
        return self.seen.place(entry.tenant, entry.preferred_replicas, self._random, pinned=pinned(entry))

    def _part(self, entry: QueueEntry) -> Quota:
        """Return an entry's quota with its cell's part of the bound on how many entries of its tenant wait."""
        most, count = entry.quota.max_waiting, self._layout.count
        # In a pool with a short line no tenant is near its bound.
        if not most or count == 1 or self.seen.most_waiting * 2 * count < most or pinned(entry):
            return entry.quota
        return replace(entry.quota, max_waiting=-(-most // count))

    async def find_key(self, tenant: str, client_key: str, request_id: str, digest: str) -> KnownRequest | None:
        async def find(cell: Cell) -> KnownRequest | None:
            return await cell.find_key(tenant, client_key, request_id, digest)

        if (one := self._one) is not None:
            return await find(one)
        return await self._search(find, self._homes.cells(tenant))

    async def finish_key(self, router_id: str, tenant: str, client_key: str, request_id: str, result: bytes) -> bool:
        async def finish(cell: Cell) -> bool | None:
            return await cell.finish_key(router_id, tenant, client_key, request_id, result) or None

        if (one := self._one) is not None:
            return bool(await finish(one))
        # A cell that does not have the key keeps nothing.
        return bool(await self._search(finish, self._homes.cells(tenant, request_id)))

    async def await_key(self, tenant: str, client_key: str, request_id: str, *, note: bool) -> bool:
        async def wait(cell: Cell) -> bool | None:
            return await cell.await_key(tenant, client_key, request_id, note=note) or None

        if (one := self._one) is not None:
            return bool(await wait(one))
        return bool(await self._search(wait, self._homes.cells(tenant, request_id)))

    # --- entries ------------------------------------------------------------------------------------------------------

    def release(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Call[Mail]:
        def call(cell: Cell) -> Call[Mail]:
            return cell.release(router_id, request_id, attempt, settlement)

        return call(one) if (one := self._one) is not None else self._about(request_id, call, last=True)

    def requeue(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Call[Mail]:
        if (one := self._one) is not None:
            return one.requeue(router_id, request_id, attempt, settlement)
        return self._about(request_id, lambda cell: cell.requeue(router_id, request_id, attempt, settlement))

    def withdraw(
        self, router_id: str, request_id: str, used: Settlement | None, *, refused: bool = False
    ) -> Call[Mail]:
        def call(cell: Cell) -> Call[Mail]:
            return cell.withdraw(router_id, request_id, used, refused=refused)

        return call(one) if (one := self._one) is not None else self._about(request_id, call, last=True)

    def refuse(self, router_id: str, request_id: str, attempt: str) -> Call[Mail]:
        if (one := self._one) is not None:
            return one.refuse(router_id, request_id, attempt)
        return self._about(request_id, lambda cell: cell.refuse(router_id, request_id, attempt))

    async def _about(self, request_id: str, call: Callable[[Cell], Awaitable[Mail]], *, last: bool = False) -> Mail:
        """Make a call about an entry in its cell; `last` where nothing follows it."""
        entries = self.seen.entries
        cell = entries.get(request_id)
        cells = range(self._layout.span) if cell is None else [cell]
        mails = await self._all(call, cells)
        if last and entries.get(request_id) == cell:
            entries.drop(request_id)
        return self.seen.all_mail(dict(zip(cells, mails, strict=True)))

    async def move(self, router_id: str, request_id: str, entry: QueueEntry, to: int) -> tuple[Mail, Submitted] | None:
        """Move a waiting entry that is this router's to another cell. It leaves one before it enters the other, so it
        is never in two. Return the mail of the one and the answer of the other; None where it stays, because it was
        granted, cancelled or adopted meanwhile.

        Raises:
            QueueUnavailableError: a cell does not answer; the entry may be in none.
        """
        source = self.seen.entries.get(request_id)
        mail = None if source is None else await self.cell(source).take_out(router_id, request_id)
        if source is None or mail is None:
            return None
        mail = self.seen.own_mail(source, mail)
        try:
            submitted = await self.submit_to(to, router_id, replace(entry, quota=self._part(entry)))
        except (QueueFullError, QuotaExceededError):
            # It was let in once, and goes back to the head of its tenant's line.
            submitted = await self.submit_to(source, router_id, replace(entry, resume=True))
        return mail, submitted

    async def adopt(self, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        if (one := self._one) is not None:
            return await one.adopt(router_id, tenant, request_id)
        known, away = self.seen.entries.get(request_id), self.seen.away
        # One after the other, the likely one first: an entry that moves could be found twice otherwise.
        cells = sorted((cell for cell in range(self._layout.span) if cell not in away), key=lambda cell: cell != known)
        failure: QueueUnavailableError | None = None
        # Twice: an entry that moves is in no cell for the time of one call.
        for cell in cells * 2:
            try:
                adopted = await self._adopt(cell, router_id, tenant, request_id)
            except QueueUnavailableError as error:
                failure = error
                continue
            if adopted is not None:
                return adopted
        # Last and together: each may take the time of a call to say nothing. Nothing moves between them.
        found, later = await ask(self._adopt(cell, router_id, tenant, request_id) for cell in sorted(away))
        return first(found, later or failure)

    async def _adopt(self, cell: int, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        adopted = await self.cell(cell).adopt(router_id, tenant, request_id)
        if adopted is None:
            return None
        self.seen.entries.put(request_id, cell)
        return replace(adopted, position=self.seen.position(cell, adopted.position))

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool = False) -> str | None:
        if (one := self._one) is not None:
            return await one.cancel(router_id, tenant, target, by_key=by_key)
        return await self._cancels.cancel(router_id, tenant, target, by_key=by_key)

    async def collect(self, router_id: str) -> Mail:
        if (one := self._one) is not None:
            return await one.collect(router_id)
        # What a cell has that does not answer comes with its next heartbeat.
        return self.seen.all_mail(await ask_each(self._near(), lambda cell: self.cell(cell).collect(router_id)))

    async def holdings(self, router_id: str, after: bytes = b"", limit: int = 500) -> Holdings:
        if (one := self._one) is not None:
            return await one.holdings(router_id, after, limit)
        cell, inner = read_page(after)
        if not after:
            self.seen.entries.begin()
            self._listed = []
        found = await self.cell(cell).holdings(router_id, inner, limit)
        # News of an entry that another router has by now is no place: this one may have it again, in another cell.
        self._listed += [(each.request_id, cell) for each in found.page if each.where is not Where.MAIL]
        if found.last:
            return replace(found, last=page(cell, found.last))
        if cell + 1 < self._layout.span:
            return replace(found, last=page(cell + 1, b""))
        self.seen.entries.finish(self._listed)
        return found

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    async def heartbeat_router(self, beat: RouterBeat) -> RouterBeatReply:
        return await self._beats.send(beat)

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        return await self._cells[0].heartbeat_replica(beat)

    async def account(self, replica_id: str, times: ReplicaTimes, told: ReplicaTimes | None = None) -> None:
        await self._cells[0].account(replica_id, times, told)

    async def retire_router(self, router_id: str, *, keep: bool = False) -> None:
        await self._all(lambda cell: cell.retire_router(router_id, keep=keep))

    async def retire_replica(self, replica_id: str) -> None:
        await self._all(lambda cell: cell.retire_replica(replica_id))

    # --- the pool as a whole ------------------------------------------------------------------------------------------

    async def quarantine(self, router_id: str, mark: Mark | None = None) -> Marks:
        if (one := self._one) is not None:
            return await one.quarantine(router_id, mark)
        # A router hears of a mark from any cell that has it, so those that answer suffice.
        parts = await ask_each(self._near(), lambda number: self.cell(number).quarantine(router_id, mark))
        for cell, part in parts.items():
            self.seen.marks(cell, part.count)
        return replace(merge_marks(list(parts.values())), count=self.seen.marks())

    async def usage(self, tenant: str, first_day: int, last_day: int, limit: int = 10_000) -> Sequence[UsageLine]:
        if (one := await self._look()) is not None:
            return await one.usage(tenant, first_day, last_day, limit)
        return merge_usage(await self._all(lambda cell: cell.usage(tenant, first_day, last_day, limit)), limit)

    async def costs(self, first_hour: int, last_hour: int) -> Sequence[CostLine]:
        if (one := await self._look()) is not None:
            return await one.costs(first_hour, last_hour)
        return merge_costs(await self._all(lambda cell: cell.costs(first_hour, last_hour)))

    async def observe(self, *, whole: bool = True) -> PoolView:
        if (one := await self._look()) is not None:
            return await one.observe()
        if not whole:
            return await self._views.look(range(self._layout.span))
        return merge_views(await self._all(lambda cell: cell.observe()))

    async def line(self, ask: Sequence[str] = ()) -> Line:
        if (one := self._one) is not None:
            return await one.line(ask)
        entries, asked = self.seen.entries, list(ask[:ASKED])

        async def show(cell: int) -> Line:
            return await self.cell(cell).line([name for name in asked if entries.get(name) in (cell, None)])

        return merge_lines(list((await ask_each(self._near(), show)).values()))

    async def reap(self) -> int:
        return sum(await self._all(lambda cell: cell.reap()))

    async def close(self) -> None:
        await self._beats.close()
        await asyncio.gather(*(cell.close() for cell in self._cells))
