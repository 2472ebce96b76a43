"""Stand-ins for the routers and replicas of a pool."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.models import Windows
from cluster.queue.entries import Grant, Mail, QueueEntry, QueueLimits, Settlement
from cluster.queue.heartbeats import POSITIONS, ReplicaBeat, RouterBeat
from cluster.queue.redis.queue import RedisQueue
from penstock.models import ReplicaState, RequestClass

SEQUENCES = 64
"""Slots of a replica."""
IN_FLIGHT = 32
"""Calls that share a pipeline."""
ROUTERS = ("router-1", "router-2")
_WINDOWS = Windows(sequences=SEQUENCES, kv_tokens=10**9, prefill_tokens=10**9)
_HOUR_MS = 3_600_000
_TIMEOUT_S = 120.0
_LIMITS = QueueLimits(lease_ms=30_000, max_waiting=10**9)
"""Limits with long leases, so that none ends while other clients are busy in a large pool or on a slow machine."""


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    """Attempt that holds a slot."""

    owner: str
    grant: Grant


def entry(number: int, tenants: int, late_after_ms: int = 0) -> QueueEntry:
    """Build the entry of a number. The same number gives the same entry."""
    source = random.Random(number)
    prompt, expected = source.randint(16, 2048), source.randint(16, 512)
    return QueueEntry(
        request_id=f"{source.getrandbits(64):016x}{number:08x}",
        attempt_base=f"{source.getrandbits(64):016x}",
        tenant=f"tenant-{number % tenants:05d}",
        request_class=RequestClass(number % 3),
        prompt_tokens=prompt,
        expected_tokens=expected,
        kv_tokens=prompt + expected,
        start_within_ms=_HOUR_MS,
        late_after_ms=late_after_ms,
    )


class Crew:
    """All clients of one pool, in one process. All routers reach all replicas."""

    def __init__(self, url: str, pool: str, tenants: int, first: int = 0, late_after_ms: int = 0) -> None:
        """`first` is the number of the first entry."""
        self.queue = RedisQueue(url, pool, _LIMITS, _TIMEOUT_S)
        self.replicas: tuple[str, ...] = ()
        self.running: dict[str, dict[str, HeldAttempt]] = {}
        """Attempts by replica and request id, oldest first."""
        self.submitted = first
        self.tenants = tenants
        self._late_after_ms = late_after_ms

    @property
    def attempts(self) -> int:
        """Number of attempts that are known to hold a slot."""
        return sum(map(len, self.running.values()))

    async def submit(
        self, count: int, tick: Callable[[int], None] = lambda _: None, *, in_flight: int = IN_FLIGHT
    ) -> None:
        """Submit the next entries, `in_flight` at a time."""
        while count > 0:
            size = min(count, in_flight)
            await asyncio.gather(*(self._submit(self.submitted + i) for i in range(size)))
            self.submitted += size
            count -= size
            tick(size)

    async def release(self, count: int) -> None:
        """End the oldest attempts, of each replica in turn."""
        chosen = self._oldest(count)
        for at in range(0, len(chosen), IN_FLIGHT):
            await asyncio.gather(*(self._release(running) for running in chosen[at : at + IN_FLIGHT]))

    async def scale(self, replicas: int) -> None:
        self.replicas = tuple(f"replica-{i:03d}" for i in range(replicas))
        await self.fill()

    async def fill(self) -> None:
        """Let every replica send heartbeats until no more is granted."""
        before = -1
        while before < self.attempts:
            before = self.attempts
            await self.beat_replicas(ReplicaState.READY)
            await self.beat_routers()

    async def beat_replicas(self, state: ReplicaState) -> None:
        """Let every replica send one heartbeat."""
        for at in range(0, len(self.replicas), IN_FLIGHT):
            await asyncio.gather(*(self._beat(name, state) for name in self.replicas[at : at + IN_FLIGHT]))

    async def beat_routers(self) -> None:
        """Let every router send its heartbeat."""
        for which, router in enumerate(ROUTERS):
            # The newest entries wait, if any do.
            newest = (number for number in range(self.submitted - 1, -1, -1) if number % len(ROUTERS) == which)
            asked = tuple(entry(number, 1).request_id for number in itertools.islice(newest, POSITIONS))
            reply = await self.queue.heartbeat_router(RouterBeat(router, self.replicas, positions_of=asked))
            self._take(router, reply.mail)

    async def collect(self) -> None:
        """Let every router read its mailbox."""
        for router in ROUTERS:
            self._take(router, await self.queue.collect(router))

    async def close(self) -> None:
        await self.queue.close()

    def _oldest(self, count: int) -> Sequence[HeldAttempt]:
        per_replica = -(-count // len(self.replicas))
        lists = [list(self.running.get(name, {}).values())[:per_replica] for name in self.replicas]
        in_turn = [each[i] for i in range(per_replica) for each in lists if i < len(each)]
        if len(in_turn) < count:
            raise RuntimeError(f"{count} attempts were to end, {len(in_turn)} run")
        return in_turn[:count]

    async def _submit(self, number: int) -> None:
        owner = ROUTERS[number % len(ROUTERS)]
        submitted = await self.queue.submit(owner, entry(number, self.tenants, self._late_after_ms))
        if submitted.grant is not None:
            self._note(owner, submitted.grant)

    async def _release(self, running: HeldAttempt) -> None:
        grant = running.grant
        del self.running[grant.replica_id][grant.request_id]
        mail = await self.queue.release(running.owner, grant.request_id, grant.attempt, Settlement(100))
        self._take(running.owner, mail)

    async def _beat(self, name: str, state: ReplicaState) -> None:
        running = tuple((r.grant.request_id, r.grant.attempt) for r in self.running.get(name, {}).values())
        await self.queue.heartbeat_replica(ReplicaBeat(name, b"record", state, _WINDOWS, running))

    def _take(self, router: str, mail: Mail) -> None:
        for grant in mail.grants:
            self._note(router, grant)

    def _note(self, owner: str, grant: Grant) -> None:
        self.running.setdefault(grant.replica_id, {}).setdefault(grant.request_id, HeldAttempt(owner, grant))
