"""A twin of production's queue for the simplest of its uses: one router, one class, one tenant, no preferences, and no
bound on the wait. It chooses as the scripts do, and takes a small part of their time; a test compares the two.

What does not matter then is left out: leases, shares of classes and tenants, quotas, keys, the ledger.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from cluster.clock import Clock
from cluster.models import Windows
from cluster.queue.entries import Grant, Mail, QueueLimits
from cluster.queue.heartbeats import ReplicaRecord, RouterBeatReply
from loadtest.simulate.engine.replica import SimReplica, SimRequest
from loadtest.simulate.pool.plain_entries import LineEntry, ReplicaLoad
from loadtest.simulate.pool.queues import Submission
from penstock.models import ReplicaState, RequestClass
from penstock.values.steps import Relief

_GRANTS_PER_REPLICA, _GRANTS_PER_CALL, _REPLICAS_TRIED, _PLACES = 32, 128, 32, 4
_LATE_PER_CALL, _LATE_LEAST, _LATE_PER_MS = 128, 4, 2
"""As in the scripts' names.lua; a test compares them."""
_FILLED_BY_ROUTER, _FILLED_BY_WITHDRAWAL = 8, 4
_RUN_ID = "plain"
_READY, _DRAINING = (
    ReplicaRecord("", b"", state, Windows(0, 0, 0), 0, 0, 0, 0) for state in (ReplicaState.READY, ReplicaState.DRAINING)
)
"""A router without affinity looks at states only."""


class PlainQueue:
    """The queue of a pool with one router.

    Args:
        limits: of the queue.
        request_class: of all requests.
        clock: the pool's time.
        ring: called when there is mail for the router.
    """

    name = "a twin of production's scripts, for one class and router"

    def __init__(
        self, limits: QueueLimits, request_class: RequestClass, clock: Clock, ring: Callable[[bytes], None]
    ) -> None:
        self._limits = limits
        self._class = request_class
        self._clock = clock
        self._ring = ring
        self._entries: dict[str, LineEntry] = {}
        self._line: OrderedDict[int, LineEntry] = OrderedDict()
        """Entries in time, by place."""
        self._late: list[tuple[int, LineEntry]] = []
        """Late entries by place, behind all others."""
        self._next_place = 0
        self._late_skips = 0
        """How often late entries were passed since one of them was granted."""
        self._fell_at = 0
        """Milliseconds at which an entry was found late the last time."""
        self._loads: dict[str, ReplicaLoad] = {}
        self._free: list[tuple[float, str]] = []
        """Places of the replicas with a free slot: used part, name."""
        self._mail: list[Grant] = []
        self._granted_ever = 0
        self._relief, self._relief_until = Relief.NONE, 0
        # The call under way.
        self._now = self._granted = self._fell_behind = self._may_fall = 0
        self._todo: list[ReplicaLoad] = []
        self._caused: list[Grant] | None = None

    # --- calls --------------------------------------------------------------------------------------------------------

    def submit(self, router: str, what: Submission) -> tuple[Grant | None, int] | None:
        self._open()
        if len(self._line) + len(self._late) >= self._limits.max_waiting:
            return None
        item, late_ms = what.item, what.late_after_ms
        entry = LineEntry(
            item,
            item.request.prompt_tokens,
            what.kv_tokens,
            self._next_place,
            self._now + late_ms if late_ms > 0 else 0,
        )
        self._next_place += 1
        self._entries[item.request_id] = entry
        caused = self._caused = []
        if not self._line and not self._late:
            for load in self._rooms(entry):
                self._grant(entry, load)
                return caused[0], 0
        self._line[entry.place] = entry
        for tries, load in enumerate(self._rooms(entry), start=1):
            self._fill(load, 1)
            if entry.on is not None or tries == _PLACES:
                break
        self._run_fills()
        own = None
        for grant in caused:
            if grant.request_id == item.request_id:
                own = grant
            else:
                self._post(grant)
        return own, 0 if own else len(self._line) - 1

    def collect(self, router: str) -> Mail:
        mail = Mail(tuple(sorted(self._mail, key=lambda grant: grant.request_id)))
        self._mail.clear()
        return mail

    def release(self, router: str, item: SimRequest, output_tokens: int) -> Sequence[Grant]:
        self._open()
        caused = self._caused = []
        entry = self._entries[item.request_id]
        load = entry.on
        if load is not None and not load.gone:
            del load.slots[item.request_id]
            load.give_back(entry)
            self._put(load)
            self._want(load)
        self._forget(entry)
        self._run_fills()
        return caused

    def requeue(self, router: str, item: SimRequest, output_tokens: int) -> Sequence[Grant]:
        raise NotImplementedError("requests that start again need production's queue")

    def refuse(self, router: str, grant: Grant) -> Sequence[Grant]:
        raise NotImplementedError("grants that are refused need production's queue")

    def withdraw(self, router: str, item: SimRequest) -> Sequence[Grant]:
        self._open()
        caused = self._caused = []
        entry = self._entries[item.request_id]
        self._leave_line(entry)
        self._forget(entry)
        self._want_free(_FILLED_BY_WITHDRAWAL)
        self._run_fills()
        return caused

    def beat_replica(self, replica: SimReplica, now_s: float, *, progress: bool) -> Relief:
        self._open()
        self._caused = None
        load = self._loads.get(replica.name)
        if load is None:
            load = self._loads[replica.name] = ReplicaLoad(replica.name)
        prefilled, used = replica.report(now_s)
        windows, running = replica.windows, replica.running
        load.sequences, load.kv_window, load.prefill_window = (
            windows.sequences,
            windows.kv_tokens,
            windows.prefill_tokens,
        )
        load.ready = replica.state is ReplicaState.READY
        if not load.ready and load.reserved is not None:
            load.reserved.reserved = None
            load.reserved = None
        for request_id in prefilled:
            entry = self._entries.get(request_id)
            if entry is not None and entry.on is load and not entry.prefilled:
                load.prefilled(entry)
        if len(running) < len(load.slots):
            used += sum(entry.kv_tokens for name, entry in load.slots.items() if name not in running)
        load.used_kv = used
        self._put(load)
        self._want(load)
        self._run_fills()
        return self._relief_now()

    def beat_router(self, router: str, linked: tuple[str, ...], started: Sequence[tuple[str, str]]) -> RouterBeatReply:
        self._open()
        # It reads its mail at the end, so nothing rings.
        caused = self._caused = []
        for load in self._loads.values():
            if load.linked and load.name not in linked:
                load.linked = False
        for name in linked:
            found = self._loads.get(name)
            if found is None:
                found = self._loads[name] = ReplicaLoad(name)
            if not found.linked:
                found.linked = True
                self._want(found)
        self._want_free(_FILLED_BY_ROUTER)
        self._run_fills()
        self._mail.extend(caused)
        waiting, granted = [0, 0, 0], [0, 0, 0]
        waiting[self._class], granted[self._class] = len(self._line) + len(self._late), self._granted_ever
        return RouterBeatReply(
            self.collect(router),
            tuple([_READY if load.ready else _DRAINING for load in self._loads.values()]),
            0,
            (waiting[0], waiting[1], waiting[2]),
            0,
            (router,),
            {},
            _RUN_ID,
            (granted[0], granted[1], granted[2]),
            self._now,
            None,
            self._relief_now().value,
        )

    def retire_replica(self, name: str) -> None:
        self._open()
        self._caused = None
        load = self._loads.pop(name, None)
        if load is not None:
            load.gone, load.ready = True, False
            if load.reserved is not None:
                load.reserved.reserved = None
            self._put(load)
        self._want_free(_FILLED_BY_ROUTER)
        self._run_fills()

    def relieve(self, relief: Relief, until_ms: int) -> None:
        self._relief, self._relief_until = relief, until_ms

    # --- a call -------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._now = self._clock.wall_ms()
        self._granted = self._fell_behind = 0
        self._may_fall = -1
        self._todo.clear()

    def _relief_now(self) -> Relief:
        return self._relief if self._now < self._relief_until else Relief.NONE

    def _post(self, grant: Grant) -> None:
        self._mail.append(grant)
        self._ring(b"")

    def _forget(self, entry: LineEntry) -> None:
        del self._entries[entry.item.request_id]
        if not self._entries:
            self._fell_at = 0

    # --- replicas -----------------------------------------------------------------------------------------------------

    def _put(self, load: ReplicaLoad) -> None:
        """Update a replica's place among those with a free slot."""
        held, before, place = len(load.slots), load.free_at, None
        if load.ready and load.reserved is None and held < load.sequences:
            place = (held / load.sequences, load.name)
        if place == before:
            return
        if before is not None:
            del self._free[bisect_left(self._free, before)]
        if place is not None:
            insort(self._free, place)
        load.free_at = place

    def _want(self, load: ReplicaLoad) -> None:
        if (self._line or self._late) and load not in self._todo:
            self._todo.append(load)

    def _want_free(self, most: int) -> None:
        for _, name in self._free[:most]:
            self._want(self._loads[name])

    def _rooms(self, entry: LineEntry) -> Iterator[ReplicaLoad]:
        """Go through the replicas where an entry may start, the least loaded first."""
        for _, name in self._free[:_REPLICAS_TRIED]:
            load = self._loads[name]
            if load.ready and (load.reserved is None or load.reserved is entry) and load.linked and load.fits(entry):
                yield load

    def _run_fills(self) -> None:
        for load in self._todo:
            if self._granted >= _GRANTS_PER_CALL:
                return
            self._fill(load, _GRANTS_PER_REPLICA)

    def _fill(self, load: ReplicaLoad, most: int) -> None:
        for _ in range(most):
            if not load.takes_grants() or not (self._line or self._late):
                return
            entry = load.reserved
            if entry is not None:
                if entry.reserved is load and load.linked:
                    if not load.fits(entry):
                        return
                else:
                    if entry.reserved is load:
                        entry.reserved = None
                    load.reserved = None
                    self._put(load)
                    entry = None
            entry = entry or self._choose(load)
            if entry is None:
                return
            self._grant(entry, load)

    def _grant(self, entry: LineEntry, load: ReplicaLoad) -> None:
        request_id = entry.item.request_id
        if entry.late:
            self._late_skips = 0
            self._leave_line(entry)
        elif entry.place in self._line:
            self._leave_line(entry)
        self._granted += 1
        self._granted_ever += 1
        entry.on = load
        load.slots[request_id] = entry
        load.used_kv += entry.kv_tokens
        load.used_prefill += entry.prompt_tokens
        self._put(load)
        grant = Grant(request_id, f"a{entry.item.request.number}.1", load.name)
        if self._caused is None:
            self._post(grant)
        else:
            self._caused.append(grant)

    # --- the line -----------------------------------------------------------------------------------------------------

    def _leave_line(self, entry: LineEntry) -> None:
        if entry.late:
            del self._late[bisect_left(self._late, (entry.place,), key=lambda each: (each[0],))]
            if not self._late:
                self._late_skips = 0
        else:
            self._line.pop(entry.place, None)
        kept, entry.reserved = entry.reserved, None
        if kept is not None and kept.reserved is entry:
            kept.reserved = None
            self._put(kept)
            self._want(kept)

    def _choose(self, load: ReplicaLoad) -> LineEntry | None:
        """Return what a replica takes next: the first of a few candidates that fits. One that was passed over too often
        is passed no more: it keeps the replica until it fits.
        """
        if not load.linked:
            return None
        lookahead = self._limits.lookahead
        passed: list[LineEntry] = []
        for entry in islice(self._candidates(), lookahead):
            if load.fits(entry):
                for each in passed:
                    each.skips += 1
                if not entry.late and self._late:
                    self._late_skips += 1
                return entry
            if entry.reserved is None:
                if entry.skips >= lookahead or (entry.late and self._late_skips >= lookahead):
                    entry.reserved, load.reserved = load, entry
                    self._put(load)
                    return None
                passed.append(entry)
        return None

    def _candidates(self) -> Iterator[LineEntry]:
        """Go through the line. Late entries come after the others, but first once they were passed often enough."""
        lookahead = self._limits.lookahead
        first: list[LineEntry] = []
        if self._fell_at > 0 and self._late_skips >= lookahead:
            first = [entry for _, entry in self._late[:lookahead]]
            yield from first
        # Moves change the line, so a part of it is copied: no more than one call moves and looks at.
        for entry in list(islice(self._line.values(), lookahead + _LATE_PER_CALL)):
            if not (entry.late_at and self._falls_behind(entry)):
                yield entry
        for _, entry in list(self._late):
            if entry not in first:
                yield entry

    def _falls_behind(self, entry: LineEntry) -> bool:
        """Move an entry that has become late behind the others. Return whether it was."""
        if self._now < entry.late_at:
            return False
        if self._may_fall < 0:
            self._may_fall = min(_LATE_PER_CALL, _LATE_LEAST + _LATE_PER_MS * max(0, self._now - self._fell_at))
        if self._fell_behind >= self._may_fall:
            return False
        self._fell_behind += 1
        self._fell_at = self._now
        del self._line[entry.place]
        entry.late, entry.skips = True, 0
        insort(self._late, (entry.place, entry), key=lambda each: each[0])
        return True
