"""The event loop: arrivals, steps, heartbeats and policies on a virtual clock.

Real: the queue's in-memory twin with `fill`, classes, shares, windows, giving way and time limits; the engine's
scheduler; affinity per router where asked for; heartbeats, and what routers and policies know only through them. Left
out: the network, the router's own CPU time, and that a real engine also caches the tokens it produced.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cluster.clock import ManualClock
from cluster.errors import RequestError
from cluster.models import ReplicaState, RequestClass
from cluster.queue import MemoryQueue, MemoryStore, QueueEntry, RouterBeat, Settlement
from cluster.queue.base import Grant, Mail, ReplicaRecord
from loadtest.simulate.fleet import Change, Fleet, Member
from loadtest.simulate.outcome import End, Outcome, Run, completed
from loadtest.simulate.policies import FastFactory, SlowPolicy
from loadtest.simulate.replica import Running
from loadtest.simulate.setup import Setup
from loadtest.simulate.steps import StepTimes
from loadtest.simulate.watch import Watch
from loadtest.traces import TraceRequest
from router.affinity import Affinity, Trail

T = TypeVar("T")
_WARM_UP_BEATS = 10
"""Heartbeats before the first arrival: the amnesty of a fresh pool is over then."""


@dataclass(slots=True, eq=False)
class _Wish:
    trail: Trail
    preferred: tuple[str, ...]
    kv_tokens: int


class _Router:
    """Is a router's state; also its bell."""

    def __init__(self, name: str, affinity: Affinity | None) -> None:
        self.name = name
        self.affinity = affinity
        self.records: dict[str, ReplicaRecord] = {}
        self.started: list[tuple[str, str]] = []
        self.wishes: dict[str, _Wish] = {}
        self.rung = False

    def ring(self, _pool: str) -> None:
        self.rung = True


class Simulation:
    """Runs one trace once.

    Args:
        trace: in the order of arrival.
        setup: the cluster.
        fast: makes a policy for each replica's batch limit; None keeps the limit.
        slow: decides the replica count; None keeps it.
        affinity: makes the placement policy of each router; None is none.
        times: the step model; default: as the engine's settings say.
        progress: told now and then how many requests have ended.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        setup: Setup,
        *,
        fast: FastFactory | None = None,
        slow: SlowPolicy | None = None,
        affinity: Callable[[], Affinity] | None = None,
        times: StepTimes | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._trace = trace
        self._setup = setup
        self._fast, self._slow = fast, slow
        self._progress = progress
        self._clock = ManualClock()
        store = MemoryStore(self._clock)
        self._queue = MemoryQueue(store, "pool", setup.limits)
        self._routers = [_Router(f"router-{n}", affinity() if affinity else None) for n in range(setup.routers)]
        self._by_name = {router.name: router for router in self._routers}
        for router in self._routers:
            store.add_bell(router.name, router)  # type: ignore[arg-type]  # only `ring` is called
        self._blocks = trace[0].block_tokens if trace and setup.prefix_cache else 0
        self._fleet = Fleet(setup.engine, setup.cold_start_s, self._blocks or None, times)
        self._random = random.Random(setup.seed)
        self._watch = Watch(setup, self._fleet)
        block = self._blocks or setup.engine.block_size
        self._context = min(setup.engine.max_model_len, setup.engine.kv_tokens // block * block)
        self._yields = any(self._class(request) is RequestClass.BATCH for request in trace)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()
        self._arrivals = iter(trace)
        self._coming: deque[TraceRequest] = deque(maxlen=1)
        self._items: dict[str, Running] = {}
        """All that came and have not ended."""
        self._busy_at = 0.0
        """When anything last came, started or ended."""
        self._run = Run(self._fleet, setup.replicas)

    def run(self) -> Run:
        """Serve the whole trace."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._begin()
        total, run = len(self._trace), self._run
        every, told = max(1, total // 200), 0
        while len(run.outcomes) < total and not self._stuck():
            at, _, handle, argument = heapq.heappop(self._events)
            if at > self._now:
                self._clock.advance(at - self._now)
                self._now = at
            handle(argument)
            for router in self._routers:
                if router.rung:
                    router.rung = False
                    self._read(router, _now(self._queue.collect(router.name)))
            if self._progress is not None and len(run.outcomes) >= told + every:
                told = len(run.outcomes)
                self._progress(told)
        self._give_up()
        run.samples = self._watch.samples
        run.seconds = self._now
        run.wall_s, run.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        return run

    def _begin(self) -> None:
        setup = self._setup
        for member in self._fleet.begin(setup.replicas, 0.0):
            member.fast = self._fast() if self._fast else None
        for _ in range(_WARM_UP_BEATS):
            for member in self._fleet.members.values():
                _now(self._queue.heartbeat_replica(member.replica.beat(0.0)))
            for router in self._routers:
                self._beat_router(router)
            self._clock.advance(setup.heartbeat_s)
        # Nobody's clocks agree, so heartbeats are spread out.
        for member in self._fleet.members.values():
            self._at(setup.heartbeat_s * self._random.random(), self._beat, member)
        for router in self._routers:
            self._at(setup.heartbeat_s * self._random.random(), self._router_turn, router)
        self._next_arrival()
        if self._slow is not None:
            self._at(0.0, self._decide, self._slow)
        for death in setup.deaths:
            self._at(death.at_s, self._die, death.replicas)
        last = self._trace[-1].arrival_s if self._trace else 0.0
        self._sample_s = max(1.0, 1.1 * last / max(1, setup.samples))
        self._at(0.0, self._sample, None)

    def _at(self, at: float, handle: Callable[[Any], None], argument: Any) -> None:
        heapq.heappush(self._events, (at, next(self._order), handle, argument))

    def _stuck(self) -> bool:
        idle = self._now - self._busy_at > self._setup.give_up_s
        return idle and not any(member.replica.running for member in self._fleet.members.values())

    def _give_up(self) -> None:
        for item in self._items.values():
            self._outcome(self._lost(item, End.UNFINISHED))
        self._items.clear()
        for request in [*self._coming, *self._arrivals]:
            self._outcome(self._lost(Running("", request, "", request.arrival_s), End.UNFINISHED))

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        self._coming.clear()
        request = next(self._arrivals, None)
        if request is not None:
            self._coming.append(request)
            self._at(request.arrival_s, self._arrive, request)

    def _arrive(self, request: TraceRequest) -> None:
        self._next_arrival()
        self._busy_at = self._now
        router = self._routers[0] if len(self._routers) == 1 else self._random.choice(self._routers)
        item = Running(f"q{request.number}", request, router.name, self._now)
        self._watch.arrived(self._now, self._class(request), request.prompt_tokens)
        if request.prompt_tokens + request.output_tokens > self._context:
            self._outcome(self._lost(item, End.REJECTED))
            return
        expected = min(self._setup.expected_output_tokens, self._context - request.prompt_tokens)
        kv_tokens = request.prompt_tokens + expected
        entry = QueueEntry(
            item.request_id,
            f"a{request.number}",
            request.tenant or "tenant",
            self._class(request),
            request.prompt_tokens,
            expected,
            kv_tokens,
            start_within_ms=int(1000 * self._setup.queue_timeout_s),
            preferred_replicas=self._wish(router, item, kv_tokens),
        )
        try:
            answer = _now(self._queue.submit(router.name, entry))
        except RequestError:
            router.wishes.pop(item.request_id, None)
            self._outcome(self._lost(item, End.REJECTED))
            return
        self._items[item.request_id] = item
        self._watch.waits(item, self._class(request))
        if answer.grant is not None:
            self._granted(router, answer.grant)

    def _wish(self, router: _Router, item: Running, kv_tokens: int) -> tuple[str, ...]:
        if router.affinity is None:
            return ()
        request = item.request
        trail, preferred = router.affinity.look(request.token_ids(), b"", request.session, router.records)
        router.wishes[item.request_id] = _Wish(trail, preferred, kv_tokens)
        return preferred

    def _class(self, request: TraceRequest) -> RequestClass:
        return self._setup.default_class if request.request_class is None else request.request_class

    # --- mail ---------------------------------------------------------------------------------------------------------

    def _read(self, router: _Router, mail: Mail) -> None:
        for grant in mail.grants:
            self._granted(router, grant)
        for order in mail.orders:
            item = self._items.get(order.request_id)
            if item is None:
                continue
            if order.kind == "preempt":
                member = self._where(item)
                if member is not None:
                    member.replica.abort(item.request_id, self._now)
                    self._drive(member)
            elif order.kind == "expired":
                self._queue_answers(router, self._queue.release(router.name, item.request_id, "", Settlement(0)))
                self._end(item, self._lost(item, End.REJECTED))

    def _queue_answers(self, router: _Router, call: Coroutine[Any, Any, Mail]) -> None:
        for grant in _now(call).grants:
            self._granted(router, grant)

    def _granted(self, router: _Router, grant: Grant) -> None:
        item = self._items.get(grant.request_id)
        if item is None or item.attempt == grant.attempt:
            return
        member = self._fleet.members.get(grant.replica_id)
        if member is None:
            self._queue_answers(router, self._queue.refuse(router.name, grant.request_id, grant.attempt))
            return
        item.attempt = grant.attempt
        self._busy_at = self._now
        self._watch.runs(item)
        router.started.append((grant.request_id, grant.attempt))
        wish = router.wishes.pop(item.request_id, None)
        if wish is not None and router.affinity is not None:
            router.affinity.granted(wish.trail, wish.preferred, grant.replica_id, wish.kv_tokens)
        member.replica.start(item, self._now)
        self._drive(member)

    def _where(self, item: Running) -> Member | None:
        for member in self._fleet.members.values():
            if item.request_id in member.replica.running:
                return member
        return None

    # --- steps --------------------------------------------------------------------------------------------------------

    def _drive(self, member: Member) -> None:
        """Plan a replica's steps, and come back when they are over."""
        replica = member.replica
        replica.begin(self._now)
        if replica.ends_at is not None and replica.ends_at != member.due_at:
            member.due_at = replica.ends_at
            self._at(replica.ends_at, self._steps_over, (member, replica.ends_at))

    def _steps_over(self, due: tuple[Member, float]) -> None:
        member, at = due
        replica = member.replica
        if replica.ends_at != at:
            # The plan was cut, and this is the old end.
            return
        member.due_at = None
        end = replica.end()
        if end.report:
            _now(self._queue.heartbeat_replica(replica.beat(self._now, progress=self._yields)))
        for item in end.aborted:
            self._again(item)
        for item in end.finished:
            self._finish(item)
        if replica.state is ReplicaState.DRAINING and not replica.running:
            self._remove(member)
        else:
            self._drive(member)

    def _finish(self, item: Running) -> None:
        router, request = self._by_name[item.router], item.request
        settlement = Settlement(request.output_tokens)
        self._queue_answers(router, self._queue.release(router.name, item.request_id, item.attempt, settlement))
        outcome = completed(item, self._class(request), self._now)
        self._watch.ended(self._now, outcome)
        self._end(item, outcome)

    def _again(self, item: Running) -> None:
        """Put a request back in line, with what it has produced."""
        router, attempt = self._by_name[item.router], item.attempt
        self._watch.waits(item, self._class(item.request))
        call = self._queue.requeue(router.name, item.request_id, attempt, Settlement(item.prior_tokens))
        self._queue_answers(router, call)

    def _end(self, item: Running, outcome: Outcome) -> None:
        del self._items[item.request_id]
        self._watch.runs(item)
        self._by_name[item.router].wishes.pop(item.request_id, None)
        self._outcome(outcome)

    def _outcome(self, outcome: Outcome) -> None:
        self._busy_at = self._now
        self._run.outcomes.append(outcome)

    def _lost(self, item: Running, end: End) -> Outcome:
        request = item.request
        return Outcome(
            request.number, end, self._class(request), item.arrived_at, request.prompt_tokens, request.output_tokens
        )

    # --- heartbeats and policies --------------------------------------------------------------------------------------

    def _beat(self, member: Member) -> None:
        if member.removed_at is not None:
            return
        replica = member.replica
        if member.fast is not None and replica.state is ReplicaState.READY:
            limit = member.fast.decide(self._watch.of_replica(member, self._now, steps=True))
            if limit != replica.windows.sequences:
                replica.set_limit(limit, self._now)
                self._drive(member)
        _now(self._queue.heartbeat_replica(replica.beat(self._now, progress=self._yields)))
        self._at(self._now + self._setup.heartbeat_s, self._beat, member)

    def _router_turn(self, router: _Router) -> None:
        self._beat_router(router)
        self._at(self._now + self._setup.heartbeat_s, self._router_turn, router)

    def _beat_router(self, router: _Router) -> None:
        started, router.started = tuple(router.started), []
        linked = tuple(name for name, each in self._fleet.members.items() if each.state is not ReplicaState.STARTING)
        reply = _now(self._queue.heartbeat_router(RouterBeat(router.name, linked, started)))
        if router.affinity is not None:
            router.records = {record.replica_id: record for record in reply.replicas or ()}
        self._read(router, reply.mail)

    def _decide(self, slow: SlowPolicy) -> None:
        setup = self._setup
        wanted = slow.decide(self._watch.of_pool(self._now))
        self._apply(self._fleet.want(max(setup.min_replicas, min(wanted, setup.max_replicas)), self._now))
        self._at(self._now + setup.slow_period_s, self._decide, slow)

    def _apply(self, change: Change) -> None:
        for member in change.started:
            self._busy_at = max(self._busy_at, member.ready_at)
            self._at(member.ready_at, self._ready, member)
        for member in change.draining:
            _now(self._queue.heartbeat_replica(member.replica.beat(self._now, progress=self._yields)))
            if not member.replica.running:
                self._remove(member)

    def _ready(self, member: Member) -> None:
        if member.removed_at is not None:
            return
        member.replica.state = ReplicaState.READY
        member.fast = self._fast() if self._fast else None
        self._beat(member)
        for router in self._routers:
            self._beat_router(router)

    def _remove(self, member: Member) -> None:
        self._fleet.remove(member, self._now)
        _now(self._queue.retire_replica(member.name))

    def _die(self, replicas: int) -> None:
        ready = [member for member in self._fleet.members.values() if member.state is ReplicaState.READY]
        for member in ready[:replicas]:
            lost = member.replica.kill(self._now)
            self._remove(member)
            for item in lost:
                self._again(item)
        self._apply(self._fleet.settle(self._now))

    def _sample(self, _: None) -> None:
        self._watch.sample(self._now)
        self._at(self._now + self._sample_s, self._sample, None)


def _now(call: Coroutine[Any, Any, T]) -> T:
    """Run a call of the queue in memory, which never waits."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a call of the queue in memory waits")
