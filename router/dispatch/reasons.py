"""Why a choice has no place yet. Pure: from the line, the replicas' records and what the router knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.queue.heartbeats import ReplicaRecord
from cluster.queue.line import Line, TenantLine
from penstock.models import RequestClass
from router.generation.wait import WaitReason

_MOST = 8
"""Most groups that are remembered of those ahead, and of those that hold slots."""
_OWED = 16
"""Most entries of a class below its share that count as ahead: it is owed a bounded number of grants."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A choice that waits."""

    tenant: str
    request_class: RequestClass
    tokens: int
    """Prompt tokens and expected output tokens."""
    kv_tokens: int
    prompt_tokens: int
    own_ahead: int = 0
    """Entries of its tenant and class that come before it."""
    passed: bool = False
    """Whether an entry that prefers a replica was granted there before it, although it came later."""
    held: bool = False
    """Whether an engine died under it, and others that did so run alone before it."""
    unplaced: bool = False
    """Whether the line has no place of it: most often it came after the line was read, which then counts too few."""


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool as a router sees it now."""

    replicas: Sequence[ReplicaRecord]
    """Replicas that take work and that this router reaches."""
    class_shares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Reserved part of the served tokens per class."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Entries of one class and tenant that come before a choice."""

    request_class: RequestClass
    tenant: str
    waiting: int


class Glance:
    """One look at a pool. Choices that differ little share one answer, so a look at thousands costs little."""

    def __init__(self, line: Line | None, pool: PoolNow) -> None:
        """`line` is None where the queue does not answer."""
        self._line = line
        self._pool = pool
        self._known: dict[object, tuple[WaitReason, str]] = {}
        held = max(1, sum(each.slots for each in line.holders)) if line is not None else 1
        most = line.holders[:_MOST] if line is not None else ()
        self.shares = [((each.request_class, each.tenant), each.slots / held) for each in most]
        """Part of the slots that each of the largest holders has."""

    def at(self, waiting: Waiting) -> tuple[WaitReason, str]:
        """Return why a choice waits, and which window is full for it; empty for none."""
        like = (
            waiting.tenant,
            waiting.request_class.value,
            waiting.passed,
            waiting.held,
            waiting.unplaced,
            waiting.own_ahead.bit_length(),
            waiting.kv_tokens.bit_length(),
        )
        found = self._known.get(like)
        if found is None:
            window = full_window(waiting, self._pool) if self._line is not None else ""
            found = self._known[like] = reason_of(waiting, self._line, self._pool), window
        return found

    def ahead(self, waiting: Waiting) -> tuple[Ahead, ...] | None:
        """Return the largest groups of entries that come before a choice; None where the line is too old to tell."""
        if self._line is None or (waiting.unplaced and _own_line(waiting, self._line) is None):
            return None
        return ahead_of(waiting, self._line, self._pool)[:_MOST]


def reason_of(waiting: Waiting, line: Line | None, pool: PoolNow) -> WaitReason:
    """Return why a choice has no place yet. `line` is None where the queue does not answer."""
    if waiting.held:
        return WaitReason.SUSPECTED
    if line is None:
        return WaitReason.QUEUE_UNAVAILABLE
    if not pool.replicas:
        return WaitReason.NO_REPLICA
    counts = dict.fromkeys((WaitReason.CLASS, WaitReason.TENANTS, WaitReason.OWN_TENANT), 0)
    for group in ahead_of(waiting, line, pool):
        if group.request_class is not waiting.request_class:
            counts[WaitReason.CLASS] += group.waiting
        elif group.tenant != waiting.tenant:
            counts[WaitReason.TENANTS] += group.waiting
        else:
            counts[WaitReason.OWN_TENANT] += group.waiting
    reason = max(counts, key=counts.__getitem__)
    if counts[reason]:
        return reason
    if waiting.passed and lacks_a_slot_only(waiting, pool):
        return WaitReason.AFFINITY
    # Only batch work is kept out of room that there is: it is left to more urgent requests that will come.
    if waiting.request_class is RequestClass.BATCH and any(_has_room(replica, waiting) for replica in pool.replicas):
        return WaitReason.CLASS
    return WaitReason.NO_ROOM


def ahead_of(waiting: Waiting, line: Line, pool: PoolNow) -> tuple[Ahead, ...]:
    """Return the entries that are expected to be granted before a choice, most first."""
    mine = waiting.request_class
    own = _own_line(waiting, line)
    counts = dict[tuple[RequestClass, str], int]()
    for each in line.lines:
        if each.request_class is not mine:
            counts[each.request_class, each.tenant] = _of_other_class(each, mine, line, pool)
        elif own is not None and each is not own:
            counts[mine, each.tenant] = _of_other_tenant(each, own, waiting)
    counts[mine, waiting.tenant] = _of_own_tenant(own, waiting)
    found = [Ahead(request_class, tenant, count) for (request_class, tenant), count in counts.items() if count > 0]
    return tuple(sorted(found, key=lambda group: -group.waiting))


def lacks_a_slot_only(waiting: Waiting, pool: PoolNow) -> bool:
    """Return whether a choice fits somewhere but for the batch limit. One that is too large is passed by smaller ones,
    whatever these prefer.
    """
    return any(_has_room(replica, waiting, sequences=0) for replica in pool.replicas)


def full_window(waiting: Waiting, pool: PoolNow) -> str:
    """Return the window that is full for a choice where there is most room otherwise: "sequences", "kv" or "prefill";
    empty where none is.
    """
    if not pool.replicas:
        return ""
    freest = max(pool.replicas, key=lambda each: each.windows.sequences - each.sequences)
    if freest.sequences >= freest.windows.sequences:
        return "sequences"
    if freest.kv_tokens + waiting.kv_tokens > freest.windows.kv_tokens:
        return "kv"
    return "" if _has_room(freest, waiting) else "prefill"


def _own_line(waiting: Waiting, line: Line) -> TenantLine | None:
    own = waiting.request_class, waiting.tenant
    return next((each for each in line.lines if (each.request_class, each.tenant) == own), None)


def _of_own_tenant(own: TenantLine | None, waiting: Waiting) -> int:
    if waiting.unplaced:
        return waiting.own_ahead
    return min(waiting.own_ahead, own.waiting - 1) if own is not None else 0


def _of_other_class(each: TenantLine, mine: RequestClass, line: Line, pool: PoolNow) -> int:
    if each.request_class < mine:
        return each.waiting if not _owed(mine, line, pool) else 0
    return min(each.waiting, _OWED) if _owed(each.request_class, line, pool) else 0


def _owed(request_class: RequestClass, line: Line, pool: PoolNow) -> bool:
    """Return whether a class is below its reserved share, and comes first."""
    share = pool.class_shares[request_class]
    return share > 0 and line.served[request_class] < share * sum(line.served)


def _of_other_tenant(each: TenantLine, own: TenantLine, waiting: Waiting) -> int:
    """Return how many entries of another tenant come first: each grant raises its tenant's service by its tokens per
    weight, and the tenant with the least service comes next.
    """
    at = own.service + waiting.own_ahead * waiting.tokens / own.weight
    ahead = (at - each.service) * each.weight / max(1, waiting.tokens)
    if ahead < 0 or (ahead == 0 and each.tenant > own.tenant):
        return 0
    return min(each.waiting, max(1, math.ceil(ahead)))


def _has_room(replica: ReplicaRecord, waiting: Waiting, sequences: int = 1) -> bool:
    windows = replica.windows
    return (
        replica.sequences + sequences <= windows.sequences
        and replica.kv_tokens + waiting.kv_tokens <= windows.kv_tokens
        and (not replica.prefill_tokens or replica.prefill_tokens + waiting.prompt_tokens <= windows.prefill_tokens)
    )
