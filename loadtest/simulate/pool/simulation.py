"""The event loop: arrivals, steps, heartbeats and policies on a virtual clock.

The queue is production's: its Lua scripts run in this process (`cluster/redis/in_process`). So are the simulated
engine's scheduler; affinity per router where asked for; relief, and refusals by the estimated wait. Routers and
policies know only what heartbeats tell. Left out are: the network, the router's own CPU time, and that a real engine
also caches the tokens it produced.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from cluster.queue.redis.keys import bell_channel
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from loadtest.simulate.autoscalers.contract import FastFactory, Holding, SlowPolicy
from loadtest.simulate.engine.replica import SimReplica
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.parts.assembly import PartsOfRun
from loadtest.simulate.pool.approach import Approach
from loadtest.simulate.pool.fleet import Change, Fleet, GpuShare, Member
from loadtest.simulate.pool.gaps import GapTally
from loadtest.simulate.pool.loop import EventLoop
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.pool.plain_queue import PlainQueue
from loadtest.simulate.pool.prefill import PrefillPool
from loadtest.simulate.pool.queues import ScriptQueue, SimQueue
from loadtest.simulate.pool.relief import ReliefOrders, Relieving
from loadtest.simulate.pool.traffic import Router, SimPool, Traffic
from loadtest.simulate.pool.watch import PoolWatch
from loadtest.simulate.setup import Setup
from loadtest.traces import TraceRequest, kinds_of
from penstock.models import ReplicaState, RequestClass
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Relief
from router.affinity import Affinity

_POOL = "pool"
_WARM_UP_BEATS = 10
"""Heartbeats before the first arrival. The amnesty of a fresh pool is over by then."""
_QUIET_BEATS = 30
"""Heartbeats without a request after which they pause until shortly before the next one. A trace of weeks has more
heartbeats than requests. All members pause together, so none is taken for dead.
"""


def only_class(trace: Sequence[TraceRequest], setup: Setup) -> RequestClass | None:
    """Return the class of all requests where the queue's twin chooses as the scripts do; None where it would not:
    several routers, classes or tenants, batch work, bounds on the wait, and replicas that die.
    """
    if setup.scripts or setup.routers > 1 or setup.queue_timeout_s or setup.deaths:
        return None
    kinds = kinds_of(trace)
    classes = {setup.default_class if each is None else each for each, _ in kinds}
    tenants = {tenant for _, tenant in kinds}
    if len(classes) != 1 or len(tenants) != 1 or RequestClass.BATCH in classes:
        return None
    return classes.pop()


class Simulation:
    """One run of one trace.

    Args:
        trace: in the order of arrival.
        setup: the cluster.
        fast: makes a policy for each replica's batch limit; None keeps the limit.
        slow: decides the replica count; None keeps it.
        affinity: makes the placement policy of each router; None for no policy.
        times: the step model; None for that of the engine's settings.
        progress: called now and then with the number of requests that have ended.
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
        self._began = 0.0, 0.0
        self._loop = EventLoop()
        names = [f"router-{n}" for n in range(setup.routers)]
        self._routers = [Router(name, affinity() if affinity else None, self._loop) for name in names]
        self._queue: SimQueue
        self._orders: ReliefOrders | None = None
        point, relieving = OperatingPoint(), slow if setup.relief and isinstance(slow, Relieving) else None
        if relieving is not None:
            point = relieving.point
        only = None if affinity else only_class(trace, setup)
        if only is not None:
            self._queue = PlainQueue(setup.limits, only, self._loop, self._routers[0].ring)
            store = None
        else:
            store = InProcessRedis(self._loop)
            self._queue = ScriptQueue(RedisQueue(store, _POOL, setup.limits), int(1000 * setup.queue_timeout_s))
            for router in self._routers:
                store.subscribe(bell_channel(router.name), router.ring)
        if relieving is not None:
            self._orders = ReliefOrders(relieving, store, _POOL, setup.slow_period_s)
        blocks = trace[0].block_tokens if trace and setup.prefix_cache else 0
        self._parts = PartsOfRun(setup.parts, setup.seed) if setup.parts.any else None
        make = SimReplica if self._parts is None else self._parts.replica
        prefillers = None
        if self._parts is not None:
            prefillers = self._parts.prefillers(setup.engine, blocks or None, times)
            times = self._parts.times(setup.engine, times)
        self._fleet = Fleet(
            setup.engine, setup.cold_start_s, blocks or None, times, whole_logs=fast is not None, make=make
        )
        self._tally = GapTally()
        self._watch = PoolWatch(setup, self._fleet, told=slow is not None)
        self._fleet.wake_s, self._fleet.slow = setup.standby.wake_s, setup.slow
        self._random = random.Random(setup.seed)
        block = blocks or setup.engine.block_size
        self._traffic = Traffic(
            trace,
            setup,
            SimPool(self._loop, self._queue, self._fleet, self._watch, self._routers),
            point=point,
            context=min(setup.engine.max_model_len, setup.engine.kv_tokens // block * block),
            rnd=self._random,
            drained=self._remove,
        )
        if self._parts is not None and prefillers is not None:
            drive, tally = self._traffic.drive, self._parts.split
            self._traffic.bring = PrefillPool(self._loop, *prefillers, tally=tally, drive=drive).bring
        elif self._parts is not None:
            self._traffic.bring = Approach(self._loop, self._traffic.drive).bring

    def run(self) -> SimulatedRun:
        """Serve the whole trace."""
        self.begin()
        # It stops behind the last arrival. A run is not over before.
        self._loop.run(self._traffic.answer_bells)
        while not self.over:
            self.step()
        return self.result()

    def begin(self) -> None:
        """Begin a run that `step` carries on, for one beside others; `run` does all."""
        self._began = time.perf_counter(), time.process_time()
        self._begin()

    @property
    def over(self) -> bool:
        """Whether all requests have ended, or none will any more."""
        return self._traffic.ended >= len(self._trace) or (self._traffic.coming is None and self._stuck())

    @property
    def ended(self) -> int:
        """Number of requests that have ended."""
        return self._traffic.ended

    @property
    def next_at(self) -> float:
        """Time of the next event."""
        return self._loop.next_at

    @property
    def now(self) -> float:
        """Time of the last event."""
        return self._loop.now

    def step(self) -> None:
        """Go on to the next event."""
        self._loop.run(self._traffic.answer_bells, once=True)

    def share_gpus(self, share: GpuShare) -> None:
        """Take the replicas' GPUs from a share."""
        self._fleet.gpus = share

    def grow_at(self, now: float) -> None:
        """Start replicas that GPUs are held for."""
        self._loop.at(now, lambda _: self._apply(self._fleet.settle(self._loop.now)))

    def result(self) -> SimulatedRun:
        """Return what came of the run. Requests that have not ended count as unfinished."""
        traffic, (wall, cpu) = self._traffic, self._began
        traffic.give_up()
        if len(self._watch.samples) < 2 and self._loop.now > 0:
            # A timeline needs a beginning and an end.
            self._watch.sample(self._loop.now)
        return SimulatedRun(
            self._fleet,
            self._setup.replicas,
            traffic.outcomes,
            list(self._watch.samples),
            self._loop.now,
            time.perf_counter() - wall,
            time.process_time() - cpu,
            self._queue.name,
            self._tally,
            {} if self._parts is None else self._parts.as_json(self._trace, self._loop.now),
            self._setup.parts.beside,
        )

    def _begin(self) -> None:
        setup = self._setup
        for member in self._fleet.begin(setup.replicas, 0.0):
            member.fast = self._fast() if self._fast else None
        for _ in range(_WARM_UP_BEATS):
            for member in self._fleet.members.values():
                self._queue.beat_replica(member.replica, 0.0, progress=True)
            for router in self._routers:
                self._beat_router(router)
            self._loop.advance(setup.heartbeat_s)
        # Clocks differ, so heartbeats are spread out.
        for member in self._fleet.members.values():
            self._loop.at(setup.heartbeat_s * self._random.random(), self._beat, member)
        for router in self._routers:
            self._loop.at(setup.heartbeat_s * self._random.random(), self._router_turn, router)
        self._traffic.next_arrival()
        if self._slow is not None:
            self._loop.at(0.0, self._decide, self._slow)
        for death in setup.deaths:
            self._loop.at(death.at_s, self._die, death.replicas)
        last = self._trace[-1].arrival_s if self._trace else 0.0
        self._sample_s = max(1.0, 1.1 * last / max(1, setup.samples))
        self._loop.at(0.0, self._sample, None)

    def _stuck(self) -> bool:
        if self._traffic.coming is not None or self._loop.now - self._traffic.busy_at <= self._setup.give_up_s:
            return False
        return not any(member.replica.running for member in self._fleet.members.values())

    # --- heartbeats and policies --------------------------------------------------------------------------------------

    def _beat(self, member: Member) -> None:
        if member.removed_at is not None:
            return
        replica = member.replica
        if member.fast is not None and replica.state is ReplicaState.READY:
            limit = member.fast.decide(self._watch.of_replica(member, self._loop.now, steps=True))
            if limit != replica.windows.sequences:
                replica.set_limit(limit, self._loop.now)
                self._traffic.drive(member)
        member.relief = self._queue.beat_replica(replica, self._loop.now, progress=self._traffic.yields)
        self._loop.at(self._next_beat(), self._beat, member)

    def _router_turn(self, router: Router) -> None:
        self._beat_router(router)
        self._loop.at(self._next_beat(), self._router_turn, router)

    def _next_beat(self) -> float:
        """Return the time of the next heartbeat after one now."""
        beat_s, now_s = self._setup.heartbeat_s, self._loop.now
        until = self._traffic.quiet_until
        rest = 1
        if until is not None and now_s - self._traffic.busy_at > _QUIET_BEATS * beat_s:
            # Heartbeats resume as early as at the beginning, when all must be heard too.
            rest = max(1, int((until - now_s) / beat_s) - _WARM_UP_BEATS - 1)
        return now_s + rest * beat_s

    def _beat_router(self, router: Router) -> None:
        started, router.started = router.started, []
        linked = tuple(name for name, each in self._fleet.members.items() if each.state is not ReplicaState.STARTING)
        reply = self._queue.beat_router(router.name, linked, started)
        router.estimate.beat(reply)
        router.relief = Relief.of(reply.relief)
        if router.affinity is not None:
            router.records = {record.replica_id: record for record in reply.replicas or ()}
        self._traffic.read(router, reply.mail)

    def _decide(self, slow: SlowPolicy) -> None:
        setup = self._setup
        wanted = max(setup.min_replicas, min(slow.decide(self._watch.of_pool(self._loop.now)), setup.max_replicas))
        standby = min(slow.standby, setup.max_replicas - wanted) if isinstance(slow, Holding) else 0
        if self._orders is not None:
            self._queue.relieve(*self._orders.publish(wanted, self._loop.wall_ms()))
        self._apply(self._fleet.want(wanted, self._loop.now, standby))
        self._loop.at(self._loop.now + setup.slow_period_s, self._decide, slow)

    def _apply(self, change: Change) -> None:
        for member in change.started:
            self._traffic.busy_at = max(self._traffic.busy_at, member.ready_at)
            self._loop.at(member.ready_at, self._ready, member)
        for member in change.draining:
            self._queue.beat_replica(member.replica, self._loop.now, progress=self._traffic.yields)
            if not member.replica.running:
                self._remove(member)
        for member in change.resting:
            self._queue.beat_replica(member.replica, self._loop.now, progress=self._traffic.yields)
            member.fall_asleep(self._loop.now)
        for member, seconds in change.waking:
            self._traffic.busy_at = max(self._traffic.busy_at, self._loop.now + seconds)
            self._loop.at(self._loop.now + seconds, self._wake, member)

    def _wake(self, member: Member) -> None:
        member.waking = False
        if member.removed_at is None and member.state is ReplicaState.STANDBY:
            member.replica.state = ReplicaState.READY
            self._queue.beat_replica(member.replica, self._loop.now, progress=self._traffic.yields)

    def _ready(self, member: Member) -> None:
        if member.removed_at is not None:
            return
        member.replica.state = ReplicaState.READY
        member.fast = self._fast() if self._fast else None
        self._beat(member)
        for router in self._routers:
            self._beat_router(router)

    def _remove(self, member: Member) -> None:
        self._fleet.remove(member, self._loop.now)
        self._queue.retire_replica(member.name)

    def _die(self, replicas: int) -> None:
        ready = [member for member in self._fleet.members.values() if member.state is ReplicaState.READY]
        for member in ready[:replicas]:
            self._fleet.died += 1
            lost = member.replica.kill(self._loop.now)
            self._remove(member)
            for item in lost:
                self._traffic.again(item)
        self._apply(self._fleet.settle(self._loop.now))

    def _sample(self, _: None) -> None:
        if self._progress is not None:
            self._progress(self._traffic.ended)
        self._watch.sample(self._loop.now)
        self._tally.take(self._fleet)
        self._loop.at(self._loop.now + self._sample_s, self._sample, None)
