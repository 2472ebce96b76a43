"""A replica from start to drain. It knows nothing of Ray: `deployments.app` hosts it in Serve, tests host it directly.

Start order: engine, one real token, inner server, metrics, lease. The lease comes last because it makes routers dial.

Stop order: state DRAINING (no new grants), wait for running attempts, abort the rest, leave the registry, server,
engine. The engine goes last because the server still reports the ends of aborted attempts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from cluster.addresses import host_port
from cluster.autoscaler.store import ControlStore
from cluster.clock import Clock, SystemClock
from cluster.errors import EngineDeadError, EngineStartError, QueueUnavailableError
from cluster.lease_keeper import LeaseKeeper
from cluster.lifecycle import TaskOwner, slept_awake
from cluster.models import EngineStats
from cluster.queue.cells.layout import Layout
from cluster.queue.contract import ReplicaQueue
from cluster.queue.heartbeats import ReplicaBeat, ReplicaBeatReply
from cluster.registry.contract import RegistryStore, Watcher
from cluster.telemetry import MetricsServer
from cluster.trust.announcement import Announcement
from cluster.trust.secret import ClusterSecret
from deployments.engines.base import Engine, EngineIdentity
from deployments.replica.adapters.keeper import AdapterKeeper
from deployments.replica.attempts import AttemptTable
from deployments.replica.first_token import first_token
from deployments.replica.follow import follow_pool
from deployments.replica.governor import Governor
from deployments.replica.group_fit import GroupFit
from deployments.replica.life import Life, ReplicaPlan, Served, announcement, engine_report, fetched
from deployments.replica.links.questions import Questions, require_tokenizer
from deployments.replica.links.server import LinkServer
from deployments.replica.links.side import ReplicaSide
from deployments.replica.metrics import ReplicaMetrics
from deployments.replica.orders import PoolOrders
from deployments.replica.output_log import OutputLog
from deployments.replica.spans import open_engine_spans, resource_of
from deployments.replica.standby import Standby
from deployments.replica.time_account import TimeAccount, TimeReport
from penstock.models import DrainReason, ModelTask, ReplicaState

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    """An engine that is up, and the parts that work on it."""

    identity: EngineIdentity
    table: AttemptTable
    governor: Governor
    standby: Standby
    orders: PoolOrders


class Replica:
    """Host of one engine."""

    def __init__(
        self,
        plan: ReplicaPlan,
        engine: Engine,
        open_queue: Callable[[], ReplicaQueue],
        secret: ClusterSecret,
        clock: Clock | None = None,
        open_control: Callable[[], ControlStore] | None = None,
        *,
        open_registry: Callable[[], RegistryStore] | None = None,
        layout: Layout | None = None,
    ) -> None:
        """`open_queue` is called on the thread that renews the lease. Without `open_control` the replica shares no step
        model with others, and without `open_registry` it has only its settings' adapters. `layout`: the pool's cells.
        """
        self.plan = plan
        self._engine = engine
        self._open_queue = open_queue
        self._open_control = open_control
        self._open_registry, self._layout = open_registry, layout or Layout()
        self._adapters: AdapterKeeper | None = None
        self._group_fit: GroupFit | None = None
        self._secret = secret
        self._clock = clock or SystemClock()
        self._state = ReplicaState.STARTING
        self._life = Life(time.monotonic())
        self._served = Served(plan.revision)
        price_per_gpu_s = plan.pool_settings.price_per_gpu_hour / 3600
        self._account = TimeAccount(time.monotonic(), plan.pool_settings.ranks, price_per_gpu_s)
        self._times = TimeReport(
            plan.replica_id, open_queue, lambda: self._account.read(time.monotonic(), self._engine.stats())
        )
        self._owner = TaskOwner("replica")
        self._server: LinkServer | None = None
        self._keeper: LeaseKeeper[ReplicaBeatReply] | None = None
        self._queue: ReplicaQueue | None = None
        self._metrics_server: MetricsServer | None = None
        self._spans = open_engine_spans(plan.telemetry, plan.pool, plan.replica_id, self._clock)
        self._death: EngineDeadError | None = None
        """Reason why the engine is given up. It takes nothing any more, even if it recovers."""
        self._running: _Running | None = None
        """None until the engine is up."""
        self._announced: Announcement | None = None
        """None until the inner server listens."""
        self.stopped = False
        self.address = ""
        """host:port of the inner server; empty until it listens."""

    @property
    def identity(self) -> EngineIdentity:
        """Identity of the engine, once it is up."""
        return self._up().identity

    @property
    def table(self) -> AttemptTable:
        """Attempts on this replica, once its engine is up."""
        return self._up().table

    @property
    def governor(self) -> Governor:
        """Governor of the batch limit, once the engine is up."""
        return self._up().governor

    @property
    def standby(self) -> Standby:
        """Standby of this replica, once its engine is up."""
        return self._up().standby

    def _up(self) -> _Running:
        if self._running is None:
            raise EngineStartError("the engine is not up yet")
        return self._running

    # --- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the engine up and join the pool. When it returns the replica takes work.

        Raises:
            EngineStartError: the engine did not come up, or did not produce a token. Nothing is left running.
        """
        plan = self.plan
        self._times.begin()
        try:
            identity = await self._engine.start()
            require_tokenizer(identity, f"pool {plan.pool!r}, model {plan.pool_settings.model!r}")
            await first_token(self._engine, identity.model.task)
            if self._open_registry is not None:
                watcher = Watcher(plan.replica_id, "replica", plan.pool)
                own = identity.model.lora_adapters
                self._adapters = AdapterKeeper(self._open_registry(), watcher, self._engine, own)
                await self._adapters.start(plan.adapter_folder)
            metrics = ReplicaMetrics(plan.pool, plan.replica_id, self._engine.stats)
            self._running = self._build(identity, metrics)
            governor = self._running.governor
            if self._adapters is not None:
                follow_pool(self._adapters.view, plan, governor, self._layout)
            if self._open_control is not None:
                control = self._open_control()
                self._group_fit = GroupFit(control, identity, plan.pool_settings)
                await self._group_fit.seed(governor)
                await self._running.orders.read(control)
            await governor.start()
            self.address = host_port(plan.settings.host, await self._serve())
            push = plan.telemetry.push(resource_of(plan.pool, plan.replica_id))
            self._metrics_server = MetricsServer(
                plan.settings.host, plan.settings.metrics_port, metrics.registry, push=push
            )
            self._announced = announcement(plan, identity, self.address, self._metrics_server.port)
            self._owner.spawn(self._sweep(), "sweep")
            self._owner.spawn(self._watch_engine(), "watch_engine")
            self._owner.spawn(governor.run(), "governor")
            self._owner.spawn(self._running.standby.run(), "standby")
            if self._group_fit is not None:
                self._owner.spawn(self._group_fit.run(governor), "group_fit")
            await self._times.end()
            self._state = ReplicaState.READY
            self._life.ready_at = time.monotonic()
            self._account.ready(self._life.ready_at, self._engine.stats())
            await self._join()
        except BaseException:
            await self.stop(drain_s=0)
            raise
        _LOG.info("replica.ready", extra={"replica": plan.replica_id, "address": self.address})

    def _build(self, identity: EngineIdentity, metrics: ReplicaMetrics) -> _Running:
        plan = self.plan
        table = AttemptTable(
            self._engine if self._adapters is None else self._adapters.sequences,
            identity.windows,
            self._clock,
            attach_grace_s=plan.queue_settings.attach_grace_s,
            retained_bytes=plan.settings.retained_log_mb << 20,
            on_end=self._spans.after(lambda log: self._ended(log, metrics)),
            on_prefilled=self._report_now,
            resumes_penalties=identity.resumes_penalties,
        )
        governor = Governor(
            self._engine,
            plan.pool_settings,
            identity.windows,
            self._clock,
            self._move_limit,
            lambda: table.sequences,
            interactive=lambda: (table.interactive, table.interactive_started),
            generates=identity.model.task is ModelTask.GENERATE,
        )
        standby = Standby(self._engine, identity, table, self._report_now, self._give_up, account=self._account)
        metrics.watch(table, governor, standby)
        orders = PoolOrders(plan.pool_settings, self._account, governor, standby)
        return _Running(identity, table, governor, standby, orders)

    def _ended(self, log: OutputLog, metrics: ReplicaMetrics) -> None:
        metrics.ended(log)
        self._served.count(log, self.governor.point)

    async def _serve(self) -> int:
        identity = self.identity
        side = ReplicaSide(
            self.plan.replica_id,
            self.table,
            self._secret,
            Questions(self._engine, identity.model.tokenizer_digest, identity.tokenizer_files),
            self.plan.queue_settings.attach_grace_s,
        )
        self._server = LinkServer(side)
        return await self._server.start(self.plan.settings)

    def _report_now(self) -> None:
        if self._keeper is not None:
            self._keeper.nudge()

    async def _join(self) -> None:
        settings = self.plan.queue_settings
        self._keeper = LeaseKeeper(
            f"replica.{self.plan.replica_id}",
            self._beat,
            self._up().orders.take,
            self._leave,
            period_s=settings.heartbeat_s,
            lease_s=settings.lease_s,
        )
        await self._keeper.start()

    # --- on the keeper's thread ---------------------------------------------------------------------------------------

    async def _beat(self) -> ReplicaBeatReply:
        if self._queue is None:
            self._queue = self._open_queue()
        stats = self._engine.stats()
        progress = self.table.progress()
        times = self._times.read()
        prefilled = self.table.take_prefilled()
        try:
            beat = ReplicaBeat(
                replica_id=self.plan.replica_id,
                # Signed each time, because the cluster secret may have changed.
                record=self._announced.seal(self._secret) if self._announced is not None else b"",
                state=self.standby.state_for(self._state),
                windows=self.table.windows,
                running=tuple((request_id, attempt) for request_id, attempt, _ in progress),
                produced=tuple(tokens for _, _, tokens in progress),
                prefilled=prefilled,
                batch_slots=self.governor.batch_slots,
                kv_tokens=int(stats.kv_usage * self.table.windows.kv_tokens),
                stats=self._report(stats),
                times=times,
                told=self._times.told,
            )
            reply = await self._queue.heartbeat_replica(beat)
        except BaseException:
            # The next heartbeat reports them.
            self.table.prefilled.extend(prefilled)
            raise
        self._times.told = times
        return reply

    def _report(self, stats: EngineStats) -> dict[str, float]:
        own = self._life.report(time.monotonic()) | self._served.report()
        return own | engine_report(stats) | self.governor.report() | self.standby.report()

    async def _leave(self) -> None:
        if self._queue is None:
            return
        try:
            await self._queue.retire_replica(self.plan.replica_id)
        except QueueUnavailableError:
            _LOG.warning("replica.lease_left_to_expire")
        finally:
            await self._queue.close()

    # --- while it serves ----------------------------------------------------------------------------------------------

    async def set_batch_limit(self, sequences: int) -> int:
        """Move the live batch limit, and return the limit in force. A heartbeat publishes the window at once."""
        applied = await self._move_limit(sequences)
        self._report_now()
        return applied

    async def _move_limit(self, sequences: int) -> int:
        """Move the limit. The next heartbeat publishes the window; until then this replica refuses starts beyond it."""
        applied, _tokens = await self._engine.set_batch_limits(sequences, None)
        self.table.windows = replace(self.table.windows, sequences=applied)
        return applied

    async def check_health(self) -> None:
        """Check the engine itself.

        Raises:
            EngineDeadError: the engine is dead for good, and the replica has to be replaced.
        """
        if self._death is not None:
            raise self._death
        await self._engine.check_health()

    async def _watch_engine(self) -> None:
        # Serve checks too, but seldom. Until then routers would wait for tokens that never come.
        period = self.plan.queue_settings.heartbeat_s
        while self._death is None:
            if not await slept_awake(period):
                # The engine's steps of that time are not counted yet.
                continue
            try:
                await self._engine.check_health()
            except EngineDeadError as error:
                self._death = error
        self._begin_drain(DrainReason.ENGINE_LOST)
        moved = self.table.fail_all(str(self._death))
        self._report_now()
        _LOG.error("replica.engine_lost", extra={"error": str(self._death), "attempts": moved})

    async def _sweep(self) -> None:
        period = min(1.0, max(0.05, self.plan.queue_settings.attach_grace_s / 4))
        while True:
            await asyncio.sleep(period)
            await self.table.sweep()

    # --- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self, drain_s: float | None = None, keep_s: float = 0.0) -> None:
        """Drain and end. May be called twice. Output that nobody has fetched is kept for up to `keep_s` seconds more.

        When it returns no work runs, the registry does not know this replica, and no process of the engine is left.
        """
        if self.stopped:
            return
        self.stopped = True
        await self._drain(self.plan.settings.drain_s if drain_s is None else drain_s)
        await fetched(self._running.table if self._running is not None else None, keep_s)
        if self._keeper is not None:
            await self._keeper.stop()
        await self._owner.close()
        if self._group_fit is not None:
            await self._group_fit.keep(self.governor)
            await self._group_fit.close()
        if self._server is not None:
            await self._server.stop(0.5)
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        await asyncio.to_thread(self._spans.close)
        await self._engine.close()
        if self._adapters is not None:
            await self._adapters.close()
        await self._times.end()
        await self._times.last()
        _LOG.info("replica.stopped", extra={"replica": self.plan.replica_id})

    def _give_up(self, error: EngineDeadError) -> None:
        self._death = self._death or error

    def _begin_drain(self, reason: DrainReason) -> None:
        if self._running is not None:
            self._running.standby.end()
        self._state = ReplicaState.DRAINING
        self._life.drain(reason, time.monotonic())
        self._account.drain(time.monotonic(), self._engine.stats())

    async def _drain(self, seconds: float) -> None:
        self._begin_drain(DrainReason.STOPPED)
        if self._running is None:
            return
        table = self._running.table
        table.draining = True
        self._report_now()
        try:
            async with asyncio.timeout(seconds):
                await table.idle.wait()
        except TimeoutError:
            _LOG.warning("replica.drain_over", extra={"aborted": table.sequences})
            try:
                async with asyncio.timeout(5.0):
                    await table.move_all()
            except (TimeoutError, EngineDeadError):
                _LOG.warning("replica.abort_unanswered")
