"""State of a pool in memory. redis/lua/names.lua explains the fields, constants and their units."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.models import Windows
from cluster.queue.entries import QueueEntry, QueueLimits
from cluster.queue.memory.ordered import ScoredSet
from penstock.models import ReplicaState

MIDDLE = 5_000_000_000_000_000
LATE_FROM = 7_000_000_000_000_000
LATE_SHIFT = 4_000_000_000_000_000
CHUNK = 1000
GRANTS_PER_REPLICA = 32
GRANTS_PER_CALL = 128
KEYS_PER_CALL = 64
PREEMPT_SCAN = 16
REPLICAS_TRIED = 32
WALLS_PER_CALL = 8
WALL_MS = 1000
REPLICAS_SHOWN = 64
OWED_GRANTS = 16
OWED_LEAST = 256
TENANTS_SEEN = 64
LATE_PER_CALL = 128
LATE_LEAST = 4
LATE_PER_MS = 2
MARKS = 256

_NO_WINDOWS = Windows(0, 0, 0)

WAITING, PARKED, IN_FLIGHT, ORDERED = "w", "p", "f", "o"


@dataclass(slots=True)
class Entry:
    """Stored entry."""

    request: QueueEntry
    owner: str
    place: int
    start_by: int
    submitted: int
    adopted_run: str
    late_at: int = 0
    number: int = 0
    attempt: str = ""
    replica: str = ""
    state: str = ""
    granted: int = 0
    beats: int = 0
    prefilled: bool = False
    charged: int = -1
    counted: bool = False
    reserved: str = ""
    order: str = ""
    preemptions: int = 0
    held_tokens: float = 0
    strict_tokens: int = 0
    """Tokens that it took of a strict quota, until it has a slot."""
    counted_open: bool = False

    @property
    def id(self) -> str:
        """Request id."""
        return self.request.request_id

    @property
    def late(self) -> bool:
        """Whether it is behind those of its line that are not late."""
        return self.place >= LATE_FROM

    @property
    def line(self) -> tuple[int, str]:
        """Line that it waits in: class and tenant."""
        return int(self.request.request_class), self.request.tenant


@dataclass(slots=True)
class Load:
    """Windows and use of a replica."""

    windows: Windows = _NO_WINDOWS
    held: int = 0
    batch_slots: int | None = None
    held_batch: int = 0
    extra: int = 0
    kv: int = 0
    prefill: int = 0
    state: ReplicaState | None = None
    closed: bool = False
    reserved: str = ""
    beat: int = 0
    walled: int = 0
    reported: bool = False
    record: bytes | None = None
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Owned:
    """Entries that a router owns, and its mail."""

    waiting: list[tuple[int, str]] = field(default_factory=list)
    parked: list[tuple[int, str]] = field(default_factory=list)
    granted: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    orders: dict[str, str] = field(default_factory=dict)
    """Request id to "c", "e" or "f"."""
    moved: set[str] = field(default_factory=set)
    """Requests that another router adopted."""

    def empty(self) -> bool:
        """Return whether the router owns nothing and has no mail."""
        return not (self.waiting or self.parked or self.granted or self.running or self.orders or self.moved)


@dataclass(slots=True)
class Slots:
    """Holders of a replica's slots: request id to attempt."""

    granted: dict[str, str] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Used:
    """Use of a tenant's quota."""

    tokens: float
    tokens_at: int
    requests: float
    requests_at: int
    token_rate: int
    request_rate: int


class PoolState:
    """All data of a pool, and the state of the call that is under way."""

    def __init__(self, name: str, ring: Callable[[str, str], None]) -> None:
        self.name = name
        self.announce = ring
        self.time = self.tick = self.skew = self.amnesty = self.version = 0
        self.head = self.tail = MIDDLE
        self.virtual = [0.0, 0.0, 0.0]
        self.served = [0.0, 0.0, 0.0]
        self.served_all = 0.0
        self.run_id = ""
        self.born: int | None = None
        self.entries: dict[str, Entry] = {}
        self.lines: dict[tuple[int, str], list[tuple[int, str]]] = {}
        self.line_counts = [0, 0, 0]
        self.active = [ScoredSet(), ScoredSet(), ScoredSet()]
        self.idle = [ScoredSet(), ScoredSet(), ScoredSet()]
        self.owners: dict[str, Owned] = {}
        self.slots: dict[str, Slots] = {}
        self.slot_count = 0
        self.loads: dict[str, Load] = {}
        self.free = ScoredSet()
        self.replicas = ScoredSet()
        self.routers = ScoredSet()
        self.parted = ScoredSet()
        self.links: dict[str, set[str]] = {}
        self.client_keys: dict[str, tuple[str, str, str]] = {}
        self.key_due = ScoredSet()
        self.results: dict[str, bytes] = {}
        self.result_bytes = 0
        self.quotas: dict[str, Used] = {}
        self.outputs: dict[str, list[int]] = {}
        self.open_counts: dict[str, int] = {}
        self.tenant_due = ScoredSet()
        self.ledger: dict[tuple[int, str], list[float]] = {}
        self.outstanding: dict[tuple[int, str], int] = {}
        self.granted_ever = [0, 0, 0]
        self.reports: dict[str, tuple[int, bytes]] = {}
        """Router to the time (ms) and content of its report."""
        self.control: dict[str, bytes] = {}
        """Fields of the autoscaler's store, which chooses their names."""
        self.quarantined: dict[bytes, tuple[str, int]] = {}
        """Content to incident and end of the mark (ms)."""
        self.marks = self.moved_at = 0
        self.yielding = 0
        self.skips: dict[str, int] = {}
        self.late_skips: dict[tuple[int, str], int] = {}
        """How often the late entries of a line were passed by its others since one of them was last granted."""
        self.preferences: dict[str, int] = {}
        self.deadlines = ScoredSet()
        self.bells: set[str] = set()
        self._begin_call()

    def _begin_call(self) -> None:
        self.now = 0
        self.raw = 0
        self.backward = False
        self.lenient = False
        self.caller = ""
        self.caused: list[Entry] | None = None
        self.reads_mail = False
        self.todo: list[str] = []
        self.granted = self.fell_behind = 0
        self.may_fall: int | None = None
        self.beyond: dict[str, list[Entry]] = {}
        """Per replica that no entry at the front of the line can use: entries further back that can."""
        self.limits = QueueLimits()

    def open(self, raw_ms: int, limits: QueueLimits, caller: str) -> None:
        """Begin a call: compute pool time and whether every lease counts as live."""
        self._begin_call()
        self.limits = limits
        self.caller = caller
        self.raw = raw_ms
        if self.born is None:
            self.born = self.version = raw_ms
        self.now = raw_ms + self.skew
        if self.now < self.time:
            self.backward = True
            self.now = self.time
        self.lenient = self.now < self.amnesty or self.now - self.tick > limits.lease_ms / 2

    @property
    def store_id(self) -> str:
        """Identity of the store for routers and replicas; changes after a restart or a loss of all data."""
        return f"{self.run_id}@{self.born}"

    def orders(self) -> tuple[bytes | None, str]:
        """Return the autoscaler's operating point and relief."""
        holds = "relief" in self.control and self.now < int(self.control["relief_until"])
        return self.control.get("point"), self.control["relief"].decode() if holds else "none"

    @property
    def batch_yields(self) -> bool:
        """Whether relief makes all batch work give way, its reserved share included."""
        return self.orders()[1] in ("preempt_batch", "shed")

    def owned(self, router: str) -> Owned:
        """Return a router's record; make one if there is none."""
        owned = self.owners.get(router)
        if owned is None:
            owned = self.owners[router] = Owned()
        return owned

    def tidy_owner(self, router: str) -> None:
        """Drop the record of a router that owns nothing."""
        owned = self.owners.get(router)
        if owned is not None and owned.empty():
            del self.owners[router]

    def slots_of(self, replica: str) -> Slots:
        """Return a replica's slots; make a record if there is none."""
        slots = self.slots.get(replica)
        if slots is None:
            slots = self.slots[replica] = Slots()
        return slots

    def tidy_slots(self, replica: str) -> None:
        """Drop the record of a replica without slots."""
        slots = self.slots.get(replica)
        if slots is not None and not slots.granted and not slots.started:
            del self.slots[replica]

    def put_load(self, replica: str, load: Load) -> None:
        """Store a load and update the replica's place among the free ones."""
        self.loads[replica] = load
        held = load.held + load.extra
        ready = load.state is ReplicaState.READY and not load.closed and not load.reserved
        if ready and held < load.windows.sequences:
            self.free.add(replica, held / load.windows.sequences)
        else:
            self.free.discard(replica)

    def router_live(self, router: str) -> bool:
        """Return whether a router has a lease."""
        return self._live(self.routers, router)

    def replica_live(self, replica: str) -> bool:
        """Return whether a replica has a lease."""
        return self._live(self.replicas, replica)

    def live_names(self, leases: ScoredSet) -> list[str]:
        """Return the names whose lease is live."""
        return [name for till, name in leases.first(len(leases)) if self.lenient or till > self.now]

    def ring(self, router: str) -> None:
        """Ring a router's bell, once until it reads its mail."""
        if (self.reads_mail and router == self.caller) or router in self.bells or router not in self.routers:
            return
        self.bells.add(router)
        self.announce(router, self.name)

    def want_fill(self, replica: str) -> None:
        """Let `run_fills` look at a replica at the end of the call."""
        if replica not in self.todo:
            self.todo.append(replica)

    def want_free(self, n: int) -> None:
        """Let `run_fills` look at the n least loaded replicas."""
        if any(self.line_counts):
            for _, replica in self.free.first(n):
                self.want_fill(replica)

    def _live(self, leases: ScoredSet, name: str) -> bool:
        till = leases.score(name)
        return till is not None and (self.lenient or till > self.now)


def insert_place(places: list[tuple[int, str]], place: tuple[int, str]) -> None:
    """Insert into a sorted list; at its end, where arrivals go, this costs nothing."""
    if places and places[-1] > place:
        insort(places, place)
    else:
        places.append(place)


def remove_place(places: list[tuple[int, str]], place: tuple[int, str]) -> None:
    """Remove a place from a sorted list that contains it."""
    del places[bisect_left(places, place)]
