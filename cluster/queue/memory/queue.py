"""The queue in memory, for tests and simulations: the same contract as `redis/queue.py`."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

from cluster.clock import Clock, SystemClock
from cluster.errors import QueueFullError, QueueUnavailableError, QuotaExceededError
from cluster.queue.checks import check_entry, check_id, check_mark, check_router_beat
from cluster.queue.entries import (
    RETRY_FULL_S,
    Adopted,
    Grant,
    Holdings,
    KnownRequest,
    Mail,
    Mark,
    Marks,
    QueueEntry,
    QueueLimits,
    Settlement,
    Submitted,
    UsageLine,
    choice_ids,
)
from cluster.queue.heartbeats import PoolView, ReplicaBeat, ReplicaBeatReply, RouterBeat, RouterBeatReply
from cluster.queue.memory.fill import (
    find_room,
    forget,
    free_slot,
    give_back,
    grant,
    move,
    order,
    place,
    run_fills,
    tell_moved,
    withdraw,
)
from cluster.queue.memory.heartbeats import beat_replica, beat_router, mailbox, view
from cluster.queue.memory.holdings import holdings
from cluster.queue.memory.keys import field_of, find_key, finish_key, id_of_key, open_key
from cluster.queue.memory.leases import drop_waiting, park, part_router, reap, remove_replica
from cluster.queue.memory.ledger import enter_ledger, read_ledger
from cluster.queue.memory.line import enter_line, know_router, next_place, position, serve
from cluster.queue.memory.marks import add_mark, marks
from cluster.queue.memory.quotas import note_output, return_part, settle_quota, take_quota
from cluster.queue.memory.state import CHUNK, IN_FLIGHT, ORDERED, WAITING, Entry, Load, PoolState


class MemoryStore:
    """Data that several routers, replicas and threads share. It takes the place of a Redis server."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._pools: dict[str, PoolState] = {}
        self._bells: dict[str, set[MemoryBell]] = {}
        self.run_id = uuid.uuid4().hex
        self.down = False
        """Whether every call raises QueueUnavailableError."""

    def restart(self, *, forget: bool = False) -> None:
        """Take a new run id, as a restarted server does; with `forget` lose all data."""
        with self._lock:
            self.run_id = uuid.uuid4().hex
            if forget:
                self._pools.clear()

    @contextmanager
    def call(self, pool: str, limits: QueueLimits, caller: str) -> Iterator[PoolState]:
        """Lock a pool for one call, and fill its replicas at the end."""
        with self._lock:
            if self.down:
                raise QueueUnavailableError("the queue does not answer: it is down")
            state = self._pools.get(pool)
            if state is None:
                state = self._pools[pool] = PoolState(pool, self._ring)
            state.open(self._clock.wall_ms(), limits, caller)
            yield state
            run_fills(state)

    def add_bell(self, router_id: str, bell: MemoryBell) -> None:
        """Ring this bell, too, when a router has mail."""
        with self._lock:
            self._bells.setdefault(router_id, set()).add(bell)

    def remove_bell(self, router_id: str, bell: MemoryBell) -> None:
        """Undo `add_bell`."""
        with self._lock:
            self._bells.get(router_id, set()).discard(bell)

    def _ring(self, router_id: str, pool: str) -> None:
        for bell in self._bells.get(router_id, ()):
            bell.ring(pool)


class MemoryQueue:
    """One pool's queue in a `MemoryStore`."""

    def __init__(self, store: MemoryStore, pool: str, limits: QueueLimits | None = None) -> None:
        self.pool = pool
        self.limits = limits or QueueLimits()
        self._store = store
        self._closed = False

    async def submit(self, router_id: str, entry: QueueEntry) -> Submitted:
        check_id("router_id", router_id)
        check_entry(entry)
        with self._call(router_id) as pool:
            stored = pool.entries.get(entry.request_id)
            if _begins_anew(stored, router_id, entry.tenant):
                _forget_ordered(pool, stored)
                if stored.owner != router_id:
                    tell_moved(pool, entry.request_id, stored.owner, router_id)
                stored = None
            if stored is not None and stored.owner != router_id:
                return Submitted(None, 0, elsewhere=True)
            if stored is None and entry.client_key and not entry.resume:
                known = find_key(pool, entry.tenant, entry.client_key, entry.request_id, entry.digest)
                if known is not None:
                    return Submitted(None, 0, known)
            if stored is None:
                stored = self._admit(pool, router_id, entry)
            if stored.state == IN_FLIGHT:
                return Submitted(_grant_of(stored), 0, marks=pool.marks)
            return Submitted(None, position(pool, stored), marks=pool.marks)

    async def release(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        with self._call(router_id) as pool:
            entry = pool.entries.get(request_id)
            if entry is None or entry.owner != router_id:
                _answer_move(pool, router_id, request_id)
                return Mail()
            if entry.state == ORDERED:
                if attempt in ("", entry.attempt):
                    _forget_ordered(pool, entry)
                return Mail()
            if entry.state != IN_FLIGHT or entry.attempt != attempt:
                return Mail()
            pool.caused = []
            _settle(pool, entry, settlement)
            free_slot(pool, entry)
            forget(pool, entry, ended=True)
            return _filled(pool)

    async def requeue(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        with self._call(router_id) as pool:
            entry = pool.entries.get(request_id)
            if entry is None or entry.owner != router_id or entry.state != IN_FLIGHT or entry.attempt != attempt:
                return Mail()
            pool.caused = []
            used = Settlement(0, gpu_seconds=settlement.gpu_seconds, cost=settlement.cost)
            enter_ledger(pool, entry.request.tenant, used)
            if entry.order == "f":
                entry.preemptions += 1
            entry.start_by = entry.late_at = 0
            give_back(pool, entry)
            if entry.state == WAITING:
                place(pool, entry)
            return _filled(pool)

    async def withdraw(self, router_id: str, request_id: str, used: Settlement | None) -> Mail:
        with self._call(router_id) as pool:
            entry = pool.entries.get(request_id)
            if entry is None or entry.owner != router_id:
                _answer_move(pool, router_id, request_id)
                return Mail()
            pool.caused = []
            _settle(pool, entry, used)
            if entry.state == IN_FLIGHT:
                free_slot(pool, entry)
            else:
                withdraw(pool, entry)
            forget(pool, entry)
            pool.want_free(4)
            return _filled(pool)

    async def adopt(self, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        check_id("router_id", router_id)
        with self._call(router_id) as pool:
            entry = pool.entries.get(request_id)
            if entry is None or entry.request.tenant != tenant or entry.state == ORDERED or entry.order == "c":
                return None
            pool.caused = []
            if entry.owner != router_id:
                move(pool, entry, router_id)
            if entry.state == WAITING:
                place(pool, entry)
            run_fills(pool)
            if any(other is not entry for other in pool.caused):
                pool.ring(router_id)
            age_ms = pool.now - entry.submitted
            if entry.state == IN_FLIGHT:
                return Adopted(_grant_of(entry), 0, entry.id in pool.owned(router_id).running, age_ms)
            return Adopted(None, position(pool, entry), age_ms=age_ms)

    async def find_key(self, tenant: str, client_key: str, request_id: str, digest: str) -> KnownRequest | None:
        with self._call("") as pool:
            return find_key(pool, tenant, client_key, request_id, digest)

    async def finish_key(self, router_id: str, tenant: str, client_key: str, request_id: str, result: bytes) -> bool:
        with self._call(router_id) as pool:
            return finish_key(pool, field_of(tenant, client_key), request_id, result)

    async def usage(self, tenant: str, first_day: int, last_day: int, limit: int = 10_000) -> Sequence[UsageLine]:
        with self._call("") as pool:
            return read_ledger(pool, tenant, first_day, last_day, limit)

    async def refuse(self, router_id: str, request_id: str, attempt: str) -> Mail:
        with self._call(router_id) as pool:
            entry = pool.entries.get(request_id)
            if entry is None or entry.owner != router_id or entry.state != IN_FLIGHT or entry.attempt != attempt:
                return Mail()
            pool.caused = []
            load = pool.loads.get(entry.replica)
            if load is not None:
                load.closed = True
            give_back(pool, entry)
            if entry.state == WAITING:
                place(pool, entry)
            return _filled(pool)

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool = False) -> str | None:
        with self._call(router_id) as pool:
            request_id = id_of_key(pool, tenant, target) if by_key else target
            names = (request_id,) if request_id in pool.entries else choice_ids(request_id)[::-1]
            named = [pool.entries[name] for name in names if name in pool.entries]
            found = [entry for entry in named if entry.request.tenant == tenant]
            for entry in found:
                if entry.state != IN_FLIGHT and entry.owner == router_id and not entry.number:
                    withdraw(pool, entry)
                    forget(pool, entry)
                else:
                    order(pool, entry, "c")
            if not found:
                return None
            pool.want_free(4)
            return request_id

    async def collect(self, router_id: str) -> Mail:
        with self._call(router_id) as pool:
            return mailbox(pool, router_id)

    async def heartbeat_router(self, beat: RouterBeat) -> RouterBeatReply:
        check_router_beat(beat)
        with self._call(beat.router_id) as pool:
            return beat_router(pool, beat, self._store.run_id)

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        check_id("replica_id", beat.replica_id)
        with self._call(beat.replica_id) as pool:
            return beat_replica(pool, beat, self._store.run_id)

    async def holdings(self, router_id: str, after: bytes = b"", limit: int = 500) -> Holdings:
        with self._call(router_id) as pool:
            return holdings(pool, router_id, after, limit)

    async def observe(self) -> PoolView:
        with self._call("") as pool:
            return view(pool)

    async def quarantine(self, router_id: str, mark: Mark | None = None) -> Marks:
        if mark is not None:
            check_mark(mark)
        with self._call(router_id) as pool:
            if mark is not None:
                add_mark(pool, mark)
            return marks(pool)

    async def retire_router(self, router_id: str, *, keep: bool = False) -> None:
        while self._retire_some(router_id, keep=keep):
            pass

    async def retire_replica(self, replica_id: str) -> None:
        with self._call(replica_id) as pool:
            remove_replica(pool, replica_id)
            pool.want_free(8)

    async def reap(self) -> int:
        with self._call("") as pool:
            return reap(pool)

    async def close(self) -> None:
        self._closed = True

    @contextmanager
    def _call(self, caller: str) -> Iterator[PoolState]:
        if self._closed:
            raise QueueUnavailableError("the queue client is closed")
        with self._store.call(self.pool, self.limits, caller) as pool:
            yield pool

    def _retire_some(self, router_id: str, *, keep: bool) -> bool:
        """Do the work of one call of redis/lua/retire.lua; return whether entries may be left."""
        with self._call(router_id) as pool:
            part_router(pool, router_id, pool.now + (pool.limits.attach_grace_ms if keep else 0))
            if keep:
                left = park(pool, router_id, CHUNK) == CHUNK
            else:
                left = drop_waiting(pool, router_id, CHUNK) >= CHUNK
                if not left:
                    pool.parted.discard(router_id)
            pool.links.pop(router_id, None)
            pool.want_free(8)
            return left

    def _admit(self, pool: PoolState, router_id: str, request: QueueEntry) -> Entry:
        pool.caused = []
        entry = Entry(
            request=request,
            owner=router_id,
            place=0,
            start_by=pool.now + request.start_within_ms if request.start_within_ms else 0,
            submitted=pool.now,
            adopted_run=pool.run_id,
            late_at=pool.now + request.late_after_ms if request.late_after_ms else 0,
        )
        if not request.resume:
            try:
                self._check_room(pool, entry)
                take_quota(pool, entry)
            except (QueueFullError, QuotaExceededError):
                if not request.choices:
                    return_part(pool, request)
                raise
        entry.place = next_place(pool, at_head=request.resume)
        if request.client_key:
            open_key(pool, request)
        know_router(pool, router_id)
        if not any(pool.line_counts):
            entry.state = WAITING

            def use(replica: str, load: Load) -> bool:
                entry.state = ""
                grant(pool, entry, replica, load, alone=True)
                return True

            find_room(pool, entry, use)
        if entry.state != IN_FLIGHT:
            enter_line(pool, entry)
            place(pool, entry)
        run_fills(pool)
        if any(other is not entry for other in pool.caused):
            pool.ring(router_id)
        return entry

    def _check_room(self, pool: PoolState, entry: Entry) -> None:
        if len(pool.entries) - pool.slot_count >= self.limits.max_waiting:
            raise QueueFullError(self.pool, self.limits.max_waiting, RETRY_FULL_S)
        most = entry.request.quota.max_waiting
        if most and len(pool.lines.get(entry.line, ())) >= most:
            raise QueueFullError(self.pool, most, RETRY_FULL_S, tenant=entry.request.tenant)


class MemoryBell:
    """Bell of a router of a `MemoryStore`; may be rung from any thread."""

    def __init__(self, store: MemoryStore, router_id: str) -> None:
        self._store = store
        self._router_id = router_id
        self._rung: dict[str, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._closed = False
        store.add_bell(router_id, self)

    def ring(self, pool: str) -> None:
        """Wake `wait`, now or at its next call."""
        self._rung[pool] = None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    async def wait(self) -> str:
        self._loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if self._closed:
                raise QueueUnavailableError("the bell is closed")
            if self._rung:
                return self._rung.popitem()[0]
            await self._changed.wait()

    async def close(self) -> None:
        self._closed = True
        self._store.remove_bell(self._router_id, self)
        self._changed.set()


def _grant_of(entry: Entry) -> Grant:
    return Grant(entry.id, entry.attempt, entry.replica)


def _filled(pool: PoolState) -> Mail:
    """Run the fills of a call and return the grants that it caused for the caller."""
    run_fills(pool)
    return Mail(tuple(_grant_of(entry) for entry in pool.caused or ()))


def _answer_move(pool: PoolState, router_id: str, request_id: str) -> None:
    if router_id in pool.owners:
        pool.owned(router_id).moved.discard(request_id)
        pool.tidy_owner(router_id)


def _begins_anew(entry: Entry | None, router_id: str, tenant: str) -> TypeGuard[Entry]:
    """Return whether a submit replaces an entry that an order took out of the line. The order is for another router, or
    the entry expired, although its own router still wants it.
    """
    if entry is None or entry.request.tenant != tenant:
        return False
    return entry.state == ORDERED and (entry.owner != router_id or entry.order == "e")


def _forget_ordered(pool: PoolState, entry: Entry) -> None:
    """Forget an entry that left the line by an order; mirrors redis/lua/ledger.lua."""
    if entry.order == "e" and entry.start_by:
        _settle(pool, entry, None)
    forget(pool, entry)


def _settle(pool: PoolState, entry: Entry, settlement: Settlement | None) -> None:
    """Replace an entry's estimated charges by its real use, None if no attempt ran; mirrors redis/lua/ledger.lua."""
    request = entry.request
    output = settlement.output_tokens if settlement is not None else 0
    prompt = request.prompt_tokens if settlement is not None else 0
    if entry.charged >= 0:
        # The prompt of a resume was charged to its first attempt.
        used = output + (0 if request.resume else prompt)
        correction = used - entry.charged
        if entry.counted:
            pool.served[entry.line[0]] += correction
            pool.served_all += correction
        serve(pool, entry, correction / request.weight, at_grant=False)
    if entry.held_tokens:
        if settlement is not None:
            note_output(pool, request.tenant, output)
        settle_quota(pool, entry, prompt + output)
    if settlement is not None:
        enter_ledger(pool, request.tenant, settlement)
