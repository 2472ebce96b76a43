"""A light model of one cell: what its scripts decide where slots are the only bound.

It grants as the scripts do: classes and their shares, tenants by service per weight, age, preferences. It leaves out
leases, windows of the KV cache and of prompts, quotas, keys, late entries, preemption and the ledger. A test compares
every grant with those of the scripts.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from loadtest.benchmarks.cells.model_line import MOST_REPLICAS, CellEntry, ClassLine, ModelReplica

GRANTS_PER_REPLICA, GRANTS_PER_CALL, REPLICAS_TRIED, PLACES = 32, 128, 32, 4
OWED_GRANTS, OWED_LEAST = 16, 256
"""As in the scripts' names.lua; a test compares them."""
_FILLED_BY_TAKE_OUT, _FILLED_BY_ROUTER = 4, 8
CLASSES = 3


class ModelCell:
    """One cell."""

    def __init__(
        self,
        granted: Callable[[CellEntry], None],
        *,
        shares: tuple[float, float, float] = (0.0, 0.0, 0.0),
        lookahead: int = 16,
    ) -> None:
        """Build a cell without replicas.

        Args:
            granted: called with each entry that gets a slot; its replica is in `on`.
            shares: reserved shares of the classes.
            lookahead: candidates among which one that prefers the replica is looked for.
        """
        self.replicas: dict[int, ModelReplica] = {}
        self.version = 0
        """Changes with the replicas and their slots."""
        self.running = 0
        self.waiting = 0
        self._granted = granted
        self._shares = shares
        self._lookahead = lookahead
        self._classes = tuple(ClassLine() for _ in range(CLASSES))
        self._free: list[int] = []
        """Places of the replicas with a free slot, sorted."""
        self._wanted: dict[int, int] = {}
        """Waiting entries that prefer a replica."""
        self._served = 0.0
        self._entries = 0
        self._grants = 0
        self._todo: list[ModelReplica] = []

    def waiting_by_class(self) -> tuple[int, int, int]:
        """Count the waiting entries of each class."""
        one, two, three = self._classes
        return one.count, two.count, three.count

    def entries(self) -> Iterator[CellEntry]:
        """Go through the waiting entries."""
        for line in self._classes:
            for entries in line.lists.values():
                yield from entries

    # --- calls --------------------------------------------------------------------------------------------------------

    def submit(self, entry: CellEntry) -> None:
        """Add an entry, and grant it if its turn allows it."""
        self._grants = 0
        self._entries += 1
        entry.charged, entry.counted, entry.skips, entry.on = -1, False, 0, None
        if not self.waiting and (free := self._first_room(entry)) is not None:
            self._grant(entry, free, None)
            return
        self._enter_line(entry)
        for tries, replica in enumerate(self._rooms(entry), start=1):
            self._fill(replica, 1)
            if entry.on is not None or tries == PLACES:
                break
        self._run_fills()

    def release(self, entry: CellEntry, output: int) -> None:
        """End an entry that runs, after this many output tokens."""
        self._grants = 0
        line, replica = self._classes[entry.request_class], entry.on
        correction = entry.prompt + output - entry.charged
        if entry.counted:
            line.share_served += correction
            self._served += correction
        self._serve(line, entry.tenant, correction / entry.weight, at_grant=False)
        if replica is not None:
            replica.held -= 1
            self.running -= 1
            self._put(replica)
            self._todo.append(replica)
        self._forget(entry)
        self._run_fills()

    def take_out(self, entry: CellEntry) -> bool:
        """Take a waiting entry out of the line; return False where it does not wait."""
        if not entry.waits:
            return False
        self._grants = 0
        self._leave_line(entry)
        self._forget(entry)
        self._want_free(_FILLED_BY_TAKE_OUT)
        self._run_fills()
        return True

    def put_replica(self, replica: ModelReplica, sequences: int) -> None:
        """Hear a replica's heartbeat, with its slots."""
        self._grants = 0
        if self.replicas.get(replica.number) is not replica or replica.sequences != sequences:
            self.version += 1
        self.replicas[replica.number] = replica
        replica.sequences = sequences
        self._put(replica)
        self._todo.append(replica)
        self._run_fills()

    def beat_router(self) -> None:
        """Hear a router's heartbeat."""
        self._grants = 0
        self._want_free(_FILLED_BY_ROUTER)
        self._run_fills()

    def drop_replica(self, replica: ModelReplica) -> None:
        """Forget a replica that runs nothing."""
        self.version += 1
        del self.replicas[replica.number]
        replica.sequences = 0
        self._put(replica)

    # --- slots --------------------------------------------------------------------------------------------------------

    def _put(self, replica: ModelReplica) -> None:
        place = replica.place()
        if place == replica.free_at:
            return
        if replica.free_at >= 0:
            del self._free[bisect_left(self._free, replica.free_at)]
        replica.free_at = place
        if place >= 0:
            insort(self._free, place)

    def _first_room(self, entry: CellEntry) -> ModelReplica | None:
        for number in entry.preferred:
            replica = self.replicas.get(number)
            if replica is not None and replica.held < replica.sequences:
                return replica
        return self.replicas[self._free[0] % MOST_REPLICAS] if self._free else None

    def _rooms(self, entry: CellEntry) -> Iterator[ModelReplica]:
        for number in entry.preferred:
            replica = self.replicas.get(number)
            if replica is not None and replica.held < replica.sequences:
                yield replica
        for place in self._free[:REPLICAS_TRIED]:
            replica = self.replicas[place % MOST_REPLICAS]
            if replica.held < replica.sequences:
                yield replica

    def _want_free(self, most: int) -> None:
        if self.waiting:
            self._todo.extend(self.replicas[place % MOST_REPLICAS] for place in self._free[:most])

    def _run_fills(self) -> None:
        todo = self._todo
        if not todo:
            return
        for replica in dict.fromkeys(todo):
            if self._grants >= GRANTS_PER_CALL:
                break
            self._fill(replica, GRANTS_PER_REPLICA)
        todo.clear()

    def _fill(self, replica: ModelReplica, most: int) -> None:
        for _ in range(most):
            if not self.waiting or replica.held >= replica.sequences:
                return
            waiting = tuple(line.count > 0 for line in self._classes)
            entry = self._choose(replica, waiting)
            if entry is None:
                return
            self._grant(entry, replica, waiting)

    def _grant(self, entry: CellEntry, replica: ModelReplica, waiting: tuple[bool, ...] | None) -> None:
        line = self._classes[entry.request_class]
        tokens = entry.charged = entry.prompt + entry.expected
        self._note_estimate(line, entry, 1)
        if waiting is not None:
            self._account(entry, tokens, waiting)
        self._serve(line, entry.tenant, tokens / entry.weight, at_grant=True)
        if entry.waits:
            self._leave_line(entry)
        self._grants += 1
        entry.on = replica
        replica.held += 1
        self.running += 1
        self._put(replica)
        self._granted(entry)

    def _forget(self, entry: CellEntry) -> None:
        if entry.charged > 0:
            self._note_estimate(self._classes[entry.request_class], entry, -1)
        self._entries -= 1
        if not self._entries:
            self._served = 0.0
            for line in self._classes:
                line.idle.clear()
                line.idle_heap.clear()
                line.virtual = line.share_served = 0.0

    # --- shares -------------------------------------------------------------------------------------------------------

    def _account(self, entry: CellEntry, tokens: int, waiting: tuple[bool, ...]) -> None:
        own = self._classes[entry.request_class]
        if sum(waiting) < 2:
            owed = self._shares[entry.request_class] * self._served - own.share_served
            own.share_served += max(0.0, min(owed, tokens))
            return
        entry.counted = True
        self._served += tokens
        own.share_served += tokens
        for line, share, competes in zip(self._classes, self._shares, waiting, strict=True):
            if not competes:
                line.share_served = share * self._served
        least = self._shares[entry.request_class] * self._served - OWED_GRANTS * max(OWED_LEAST, tokens)
        own.share_served = max(own.share_served, least)

    def _class_order(self, waiting: Iterable[bool]) -> list[int]:
        below, rest = list[int](), list[int]()
        for number, waits in enumerate(waiting):
            if waits:
                share = self._shares[number]
                owed = share > 0 and self._classes[number].share_served < share * self._served
                (below if owed else rest).append(number)
        return below + rest

    def _note_estimate(self, line: ClassLine, entry: CellEntry, sign: int) -> None:
        amount = math.floor(entry.charged / entry.weight * 1000 + 0.5)
        left = line.open.get(entry.tenant, 0) + sign * amount
        if left > 0:
            line.open[entry.tenant] = left
        else:
            line.open.pop(entry.tenant, None)

    def _serve(self, line: ClassLine, tenant: int, amount: float, *, at_grant: bool) -> None:
        floor, some = line.floor()
        active = line.service.get(tenant)
        if active is not None:
            if at_grant and floor > line.virtual:
                line.virtual = floor
            if amount:
                line.put_service(tenant, active + amount)
            return
        score = max(line.idle.get(tenant, floor), floor)
        if at_grant:
            line.virtual = max(line.virtual, floor if some else score)
            if not some:
                floor = line.virtual
        score += amount
        if score > floor:
            line.put_idle(tenant, score)
        else:
            line.idle.pop(tenant, None)
        line.prune(floor)

    # --- the line -----------------------------------------------------------------------------------------------------

    def _enter_line(self, entry: CellEntry) -> None:
        line, tenant = self._classes[entry.request_class], entry.tenant
        if tenant not in line.service:
            floor, _ = line.floor()
            line.put_service(tenant, max(line.idle.pop(tenant, floor), floor))
            line.lists[tenant] = deque()
        line.lists[tenant].append(entry)
        line.count += 1
        self.waiting += 1
        entry.waits = True
        for number in entry.preferred:
            self._wanted[number] = self._wanted.get(number, 0) + 1

    def _leave_line(self, entry: CellEntry) -> None:
        line, tenant = self._classes[entry.request_class], entry.tenant
        entries = line.lists[tenant]
        if entries[0] is entry:
            entries.popleft()
        else:
            entries.remove(entry)
        line.count -= 1
        self.waiting -= 1
        entry.waits = False
        for number in entry.preferred:
            if self._wanted[number] == 1:
                del self._wanted[number]
            else:
                self._wanted[number] -= 1
        if not entries:
            service = line.service.pop(tenant)
            del line.lists[tenant], line.order[bisect_left(line.order, (service, tenant))]
            floor, _ = line.floor()
            if service > floor:
                line.put_idle(tenant, service)
            line.prune(floor)

    def _choose(self, replica: ModelReplica, waiting: Iterable[bool]) -> CellEntry | None:
        """Return the first candidate that prefers a replica, else the first."""
        order = self._class_order(waiting)
        if replica.number not in self._wanted:
            line = self._classes[order[0]]
            return line.lists[line.order[0][1]][0]
        passed: list[CellEntry] = []
        for entry in self._candidates(order):
            if replica.number in entry.preferred:
                for each in passed:
                    each.skips += 1
                return entry
            if entry.skips >= self._lookahead:
                break
            passed.append(entry)
            if len(passed) == self._lookahead:
                break
        else:
            return passed[0]
        return passed[0] if passed else entry

    def _candidates(self, order: Iterable[int]) -> Iterator[CellEntry]:
        """Go through the line in fair order, each tenant charged for what it would get."""
        for number in order:
            line = self._classes[number]
            following = list(line.order[: self._lookahead])
            # An earlier place in the order wins where the service is the same.
            heap = [(service, at, 0) for at, (service, _) in enumerate(following)]
            while heap:
                service, at, taken = heapq.heappop(heap)
                entries = line.lists[following[at][1]]
                entry = entries[taken]
                yield entry
                if taken + 1 < len(entries):
                    heapq.heappush(heap, (service + (entry.prompt + entry.expected) / entry.weight, at, taken + 1))
