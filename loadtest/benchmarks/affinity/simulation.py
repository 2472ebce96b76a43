"""A cluster on a virtual clock: the production queue and policy, several routers, simulated engines.

Production code: the queue, whose Lua scripts run in this process; the policy, per router; the simulated engine's
scheduler, chunked prefill and prefix cache. Routers know only what heartbeats tell. Left out: the network, the router's
own CPU time, and that a real engine also caches the tokens it produced.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cluster.clock import ManualClock
from cluster.queue.entries import Grant, QueueEntry, QueueLimits, Settlement
from cluster.queue.heartbeats import ReplicaRecord, RouterBeat
from cluster.queue.redis.keys import bell_channel
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.settings import SimSettings
from loadtest.benchmarks.affinity.trace import BLOCK_TOKENS
from loadtest.simulate.engine.replica import SimReplica, SimRequest
from loadtest.traces import TraceRequest
from penstock.models import RequestClass
from router.affinity import Affinity, Trail

HEARTBEAT_S = 1.0
EXPECTED_OUTPUT_TOKENS = 256
WARM_PART = 0.1
"""First part of the trace, which fills the caches and is not counted."""


@dataclass(frozen=True, slots=True)
class ArrivalPattern:
    """Way in which requests come: a constant number of waiting ones, or a rate per second."""

    waiting: int = 0
    per_second: float = 0.0


@dataclass(slots=True)
class AffinityResult:
    """Result of one run. Times are in seconds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    ttft: list[float] = field(default_factory=list)
    """Times from sending by the client to the first token."""
    prefill: list[float] = field(default_factory=list)
    """Times from the grant to the first token."""
    engine_wait: list[float] = field(default_factory=list)
    """Times from the grant to the first step."""
    hits: int = 0
    misses: int = 0


@dataclass(slots=True)
class _Waiting:
    request: TraceRequest
    trail: Trail
    preferred: tuple[str, ...]
    arrived_at: float


class _Router:
    """State of a router, and its bell."""

    def __init__(self, name: str, policy: Affinity) -> None:
        self.name = name
        self.policy = policy
        self.records: dict[str, ReplicaRecord] = {}
        self.waiting: dict[str, _Waiting] = {}
        self.started: list[tuple[str, str]] = []
        self.rung = False

    def ring(self, _pool: bytes) -> None:
        self.rung = True


class AffinitySimulation:
    """One run of one trace."""

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        load: ArrivalPattern,
        *,
        replicas: int,
        routers: int,
        settings: SimSettings,
        policy: Callable[[], Affinity],
    ) -> None:
        self._clock = ManualClock()
        self._store = InProcessRedis(self._clock)
        self._queue = RedisQueue(self._store, "pool", QueueLimits())
        self._replicas = {f"r{number}": SimReplica(f"r{number}", settings, BLOCK_TOKENS) for number in range(replicas)}
        self._routers = {f"router-{number}": _Router(f"router-{number}", policy()) for number in range(routers)}
        for router in self._routers.values():
            self._store.subscribe(bell_channel(router.name), router.ring)
        self._load = load
        self._random = random.Random(1)
        self._later: deque[TraceRequest] = deque(trace)
        self._total = len(trace)
        self._held: dict[str, deque[TraceRequest]] = {}
        """Requests of sessions whose last request has not ended: a user reads an answer before the next request."""
        self._ready: deque[TraceRequest] = deque()
        self._now = 0.0
        self._events: list[tuple[float, int, str, str]] = []
        self._order = itertools.count()
        self._due: dict[str, float] = {}
        """Time at which a replica's planned steps end."""
        self._ended = 0
        self._counted_from = 0.0
        self.result = AffinityResult()

    async def run(self) -> AffinityResult:
        """Serve the trace while the load keeps its level. The drain at the end is not counted."""
        await self._begin()
        while self._goes_on():
            at, _, kind, name = heapq.heappop(self._events)
            self._clock.advance(max(0.0, at - self._now))
            self._now = max(self._now, at)
            if kind == "step":
                await self._step_over(self._replicas[name], at)
            elif kind == "replica":
                await self._beat_replica(self._replicas[name])
                self._at(HEARTBEAT_S, kind, name)
            elif kind == "router":
                await self._beat_router(self._routers[name])
                self._at(HEARTBEAT_S, kind, name)
            else:
                self._arrive()
            await self._feed()
            await self._answer_bells()
        result = self.result
        result.seconds = self._now - self._counted_from
        result.hits = sum(router.policy.hits for router in self._routers.values())
        result.misses = sum(router.policy.misses for router in self._routers.values())
        return result

    def _goes_on(self) -> bool:
        # After the end of the trace, requests that its sessions held back may remain.
        return bool(self._later) or (not self._load.per_second and 2 * self._waiting() >= self._load.waiting)

    def _waiting(self) -> int:
        return len(self._ready) + sum(len(router.waiting) for router in self._routers.values())

    async def _begin(self) -> None:
        # The grace period of a fresh pool is over before any request is submitted.
        for _ in range(10):
            for replica in self._replicas.values():
                await self._beat_replica(replica)
            for router in self._routers.values():
                await self._beat_router(router)
            self._clock.advance(HEARTBEAT_S)
        for kind, names in (("replica", self._replicas), ("router", self._routers)):
            for number, name in enumerate(names):
                self._at(HEARTBEAT_S * number / len(names), kind, name)
        if self._load.per_second:
            self._at(0.0, "arrival", "")

    def _at(self, delay: float, kind: str, name: str) -> None:
        heapq.heappush(self._events, (self._now + delay, next(self._order), kind, name))

    # --- load ---------------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if self._later:
            self._take_next()
            self._at(self._random.expovariate(self._load.per_second), "arrival", "")

    def _take_next(self) -> None:
        request = self._later.popleft()
        held = self._held.get(request.session)
        if held is None:
            self._held[request.session] = deque()
            self._ready.append(request)
        else:
            held.append(request)

    async def _feed(self) -> None:
        if not self._load.per_second:
            while self._waiting() < self._load.waiting and self._later:
                self._take_next()
        while self._ready:
            await self._submit(self._ready.popleft())

    async def _submit(self, request: TraceRequest) -> None:
        router = self._random.choice(list(self._routers.values()))
        trail, preferred = router.policy.look(request.token_ids(), b"", request.session, router.records)
        request_id = f"q{request.number}"
        router.waiting[request_id] = _Waiting(request, trail, preferred, self._now)
        expected = EXPECTED_OUTPUT_TOKENS
        answer = await self._queue.submit(
            router.name,
            QueueEntry(
                request_id,
                f"a{request.number}",
                "tenant",
                RequestClass.STANDARD,
                request.prompt_tokens,
                expected,
                request.prompt_tokens + expected,
                preferred_replicas=preferred,
            ),
        )
        if answer.grant is not None:
            self._granted(router, answer.grant)

    # --- grants -------------------------------------------------------------------------------------------------------

    def _granted(self, router: _Router, grant: Grant) -> None:
        item = router.waiting.pop(grant.request_id, None)
        if item is None:
            return
        router.started.append((grant.request_id, grant.attempt))
        kv_tokens = item.request.prompt_tokens + EXPECTED_OUTPUT_TOKENS
        router.policy.granted(item.trail, item.preferred, grant.replica_id, kv_tokens)
        replica = self._replicas[grant.replica_id]
        started = SimRequest(grant.request_id, item.request, router.name, item.arrived_at, grant.attempt)
        replica.start(started, self._now)
        self._step(replica)

    def _step(self, replica: SimReplica) -> None:
        replica.begin(self._now)
        if replica.ends_at is not None and replica.ends_at != self._due.get(replica.name):
            self._due[replica.name] = replica.ends_at
            heapq.heappush(self._events, (replica.ends_at, next(self._order), "step", replica.name))

    async def _step_over(self, replica: SimReplica, at: float) -> None:
        if replica.ends_at != at:
            # The planned steps were cut short, and this is their old end.
            return
        del self._due[replica.name]
        end = replica.end()
        if end.report:
            await self._beat_replica(replica)
        for item in end.finished:
            await self._finish(item)
        self._step(replica)

    async def _finish(self, item: SimRequest) -> None:
        router, request = self._routers[item.router], item.request
        mail = await self._queue.release(
            router.name, f"q{request.number}", item.attempt, Settlement(request.output_tokens)
        )
        for grant in mail.grants:
            self._granted(router, grant)
        held = self._held[request.session]
        if held:
            self._ready.append(held.popleft())
        else:
            del self._held[request.session]
        self._count(item)

    async def _answer_bells(self) -> None:
        for router in self._routers.values():
            if router.rung:
                router.rung = False
                for grant in (await self._queue.collect(router.name)).grants:
                    self._granted(router, grant)

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    async def _beat_replica(self, replica: SimReplica) -> None:
        await self._queue.heartbeat_replica(replica.beat(self._now))

    async def _beat_router(self, router: _Router) -> None:
        started, router.started = tuple(router.started), []
        reply = await self._queue.heartbeat_router(RouterBeat(router.name, tuple(self._replicas), started))
        router.records = {record.replica_id: record for record in reply.replicas or ()}
        for grant in reply.mail.grants:
            self._granted(router, grant)

    # --- figures ------------------------------------------------------------------------------------------------------

    def _count(self, item: SimRequest) -> None:
        self._ended += 1
        if self._ended <= WARM_PART * self._total:
            self._counted_from = self._now
            return
        result = self.result
        result.prompt_tokens += item.request.prompt_tokens
        result.cached_tokens += item.cached_tokens
        result.output_tokens += item.request.output_tokens
        first_token_at = item.first_token_at or self._now
        result.ttft.append(first_token_at - item.arrived_at)
        result.prefill.append(first_token_at - item.started_at)
        result.engine_wait.append((item.scheduled_at or item.started_at) - item.started_at)
