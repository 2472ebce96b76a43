"""A cluster inside the test's own process: real routers and replicas over real gRPC, simulated engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from cluster.addresses import host_port
from cluster.announced.contract import AnnouncedStore
from cluster.announced.redis.store import RedisAnnouncedStore
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.autoscaler.store import ControlStore
from cluster.clock import SystemClock
from cluster.jobs.contract import JobStore
from cluster.jobs.pools import JobPools, RedisJobPools
from cluster.jobs.redis.keys import JOB_KEYS, job_keys, shared_key
from cluster.jobs.redis.store import RedisJobStore
from cluster.jobs.settings import job_limits_from
from cluster.queue.cells.member import ReplicaCells
from cluster.queue.contract import Bell
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.records.contract import RecordStore
from cluster.records.redis.store import RedisRecordStore
from cluster.records.settings import record_limits_from
from cluster.redis.in_process.server import InProcessRedis
from cluster.registry.contract import RegistryStore
from cluster.registry.redis.store import RedisRegistryStore
from cluster.responses.contract import ResponseStore
from cluster.responses.redis.store import RedisResponseStore
from cluster.responses.settings import response_limits_from
from cluster.rollout.contract import RolloutStore
from cluster.rollout.redis.store import RedisRolloutStore
from cluster.settings import Settings, load_settings
from cluster.trust.secret import ClusterSecret
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from deployments.engines.sim.engine import SimEngine
from deployments.replica.life import RayHome, ReplicaPlan
from deployments.replica.replica import Replica
from penstock.v1 import admin_pb2_grpc, inference_pb2_grpc, jobs_pb2_grpc
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.build import build_router
from router.server import Router
from router.stores import QueueFactory
from tests.support.speed import patience
from tests.support.waiting import until

SECRET = ClusterSecret(b"0123456789abcdef0123456789abcdef")
MODEL = "demo"
"""Simulated engines take its tokenizer."""
FAST_QUEUE = {"heartbeat_s": 0.1, "lease_s": round(patience(), 1), "attach_grace_s": 10.0}
"""So that tests do not wait for production's seconds. A loop that stands still for a lease counts as dead. On a busy
machine it stands still for longer, and everything would begin again, and again. The grace is longer than any halt of
the machine: a client that comes back in time in a test always does. A test that waits for its end sets a short one.
"""
FAST_JOBS = {"poll_s": 0.05, "lease_s": round(patience(), 1)}
"""As above."""

_SERVER_S = 6.0
"""Longest wait for an answer of a Redis of its own process. It shares two cores with all that runs beside the test, and
the test's process, too, stands still at times.
"""


@dataclass
class Stack:
    """A running cluster and how to talk to it."""

    settings: Settings
    store: InProcessRedis
    routers: list[Router] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    """Of the replicas, in the same order."""
    channels: list[grpc.aio.Channel] = field(default_factory=list)
    dial: Callable[[str], grpc.aio.Channel] = grpc.aio.insecure_channel
    """Opens a channel to a router's host:port."""
    secret: Callable[[], ClusterSecret] = lambda: SECRET
    """Opens the cluster secret of one router or replica."""

    def inference(self, router: int = 0) -> Any:
        """Return a stub of a router's InferenceService."""
        return inference_pb2_grpc.InferenceServiceStub(self.channels[router])

    def jobs(self, router: int = 0) -> Any:
        """Return a stub of a router's JobService."""
        return jobs_pb2_grpc.JobServiceStub(self.channels[router])

    def admin(self, router: int = 0) -> Any:
        """Return a stub of a router's AdminService."""
        return admin_pb2_grpc.AdminServiceStub(self.channels[router])

    @property
    def target(self) -> Any:
        """What stores connect to."""
        return self.settings.redis.url or self.store

    @property
    def timeout_s(self) -> float:
        """Longest wait for an answer of the store, seconds."""
        return self.settings.redis.timeout_s

    def queue(self, pool: str) -> RedisQueue:
        """Open a connection to a pool's queue, or to one of its cells."""
        return RedisQueue(self.target, pool, limits_from(self.settings.queue), self.timeout_s)

    def control(self, pool: str) -> ControlStore:
        """Open what a pool's autoscaler shares with routers and replicas."""
        return RedisControlStore(self.target, pool, self.timeout_s)

    def job_store(self, pool: str) -> JobStore:
        """Open a connection to a pool's jobs."""
        return RedisJobStore(self.target, pool, job_limits_from(self.settings.jobs), self.timeout_s)

    def job_pools(self) -> JobPools:
        """Open the list of pools that ever had jobs."""
        return RedisJobPools(self.target, self.timeout_s)

    def job_key(self, job_id: str, part: str, pool: str = "demo") -> str:
        """Return the key of a part of a job."""
        return job_keys(pool, job_id)[JOB_KEYS.index(part)]

    def stored_jobs(self, pool: str = "demo") -> dict[str, dict[bytes, bytes]]:
        """Read the records of all jobs of the store in process."""
        records = {}
        for name in self.store.execute("ZRANGE", shared_key(pool, "due"), 0, -1):
            flat = self.store.execute("HGETALL", self.job_key(name.decode(), "record", pool))
            records[name.decode()] = dict(zip(flat[::2], flat[1::2], strict=True))
        return records

    def factory(self) -> QueueFactory:
        """Return what a router opens."""
        return QueueFactory(
            queue=self.queue,
            bell=self.bell,
            jobs=self.job_store,
            job_pools=self.job_pools,
            control=self.control,
            responses=self.responses,
            records=self.records,
            registry=self.registry,
            rollout=self.rollout,
            announced=self.announced,
        )

    def responses(self) -> ResponseStore:
        """Open the store of responses."""
        return RedisResponseStore(self.target, response_limits_from(self.settings), self.timeout_s)

    def records(self, pool: str) -> RecordStore:
        """Open the records of a pool's requests."""
        return RedisRecordStore(self.target, pool, record_limits_from(self.settings), self.timeout_s)

    def registry(self) -> RegistryStore:
        """Open the registry."""
        return RedisRegistryStore(self.target, self.timeout_s)

    def rollout(self, pool: str) -> RolloutStore:
        """Open the record of a pool's roll-out."""
        return RedisRolloutStore(self.target, pool, self.timeout_s)

    def announced(self, pool: str) -> AnnouncedStore:
        """Open the announced load of a pool."""
        return RedisAnnouncedStore(self.target, pool, self.timeout_s)

    def bell(self, router_id: str) -> Bell:
        """Open a router's bell."""
        return RedisBell(self.target, router_id)

    async def add_router(self) -> Router:
        """Start another router; returns when it is linked to every replica."""
        router = build_router(self.settings, self.secret(), self.factory(), port=0)
        await router.start()
        self.routers.append(router)
        self.channels.append(self.dial(host_port(self.settings.router.host, router.port)))
        await self.linked()
        return router

    async def add_replica(
        self,
        pool: str = "demo",
        engine: Engine | None = None,
        home: RayHome = RayHome(),  # noqa: B008  # frozen
    ) -> Replica:
        """Start another replica; returns when every router is linked to it."""
        plan = ReplicaPlan(
            replica_id=f"{pool}-r{len(self.replicas)}",
            pool=pool,
            pool_settings=self.settings.pools[pool],
            queue_settings=self.settings.queue,
            settings=self.settings.replica,
            telemetry=self.settings.telemetry,
            adapter_folder=self.settings.cluster.folder / "adapters",
            home=home,
        )
        engine = engine or build_engine(plan.pool_settings)
        cells = ReplicaCells(pool, self.queue, plan.pool_settings.cells, plan.queue_settings.lease_s)
        replica = Replica(
            plan,
            engine,
            cells.open,
            self.secret(),
            open_control=lambda: self.control(pool),
            open_registry=self.registry,
            layout=cells.layout,
        )
        await replica.start()
        self.replicas.append(replica)
        self.engines.append(engine)
        await self.linked()
        return replica

    async def kill_replica(self, number: int = 0) -> None:
        """End a replica as SIGKILL would: connections break at once, and nothing is said to anybody."""
        replica = self.replicas[number]
        replica.stopped = True
        keeper, engine = replica._keeper, replica._engine
        assert keeper is not None
        assert replica._server is not None

        async def silent() -> None:
            pass

        keeper._close = silent
        if isinstance(engine, SimEngine):
            engine.wedge()
        await asyncio.gather(keeper.stop(), replica._server.stop(0))
        await replica._owner.close()
        # Nobody hears the ends any more.
        await engine.close()
        if replica._adapters is not None:
            await replica._adapters.close()
        if replica._metrics_server is not None:
            await asyncio.to_thread(replica._metrics_server.close)

    async def linked(self) -> None:
        """Wait until every router may get grants on every replica, and has a link to those of Ray clusters."""
        for router in self.routers:
            for replica in self.replicas:
                pool = router.pools[replica.plan.pool]
                await until(
                    lambda pool=pool, replica=replica: (
                        replica.plan.replica_id in pool.replicas.connected()
                        or replica.stopped
                        or (replica.plan.home.cluster and pool.replicas.link(replica.plan.replica_id) is not None)
                    )
                )

    async def close(self) -> None:
        """Stop routers, then replicas."""
        for channel in self.channels:
            await channel.close()
        await asyncio.gather(*(router.stop(drain_s=1.0) for router in self.routers))
        await asyncio.gather(*(replica.stop(drain_s=1.0) for replica in self.replicas))


@contextlib.asynccontextmanager
async def running_stack(
    state_dir: Path,
    *,
    routers: int = 1,
    replicas: int = 1,
    pools: dict[str, Any] | None = None,
    sim: dict[str, Any] | None = None,
    queue: dict[str, Any] | None = None,
    jobs: dict[str, Any] | None = None,
    redis_url: str = "",
    router: dict[str, Any] | None = None,
    engine: Callable[[], Engine] | None = None,
    sections: dict[str, Any] | None = None,
    dial: Callable[[str], grpc.aio.Channel] = grpc.aio.insecure_channel,
    secret: Callable[[], ClusterSecret] = lambda: SECRET,
) -> AsyncIterator[Stack]:
    """Run a cluster of so many routers, and so many replicas of each pool; on Redis in process unless a URL is given.

    `sections` are further settings.
    """
    default = {"demo": sim_pool(**(sim or {}))}
    settings = load_settings(
        flags={
            "cluster": {"state_dir": str(state_dir)},
            "queue": {**FAST_QUEUE, **(queue or {})},
            "jobs": {**FAST_JOBS, **(jobs or {})},
            "redis": {"url": redis_url, "timeout_s": _SERVER_S if redis_url else 2.0},
            "router": router or {},
            "pools": pools or default,
            **(sections or {}),
        },
        environ={},
    )
    stack = Stack(settings, InProcessRedis(SystemClock()), dial=dial, secret=secret)
    try:
        for pool in settings.pools:
            for _ in range(replicas):
                await stack.add_replica(pool, engine() if engine is not None else None)
        for _ in range(routers):
            await stack.add_router()
        yield stack
    finally:
        await stack.close()


def sim_pool(**settings: Any) -> dict[str, Any]:
    """Describe a pool of simulated engines with fast steps."""
    return {"model": MODEL, "engine": "sim", "sim": {"base_ms": 1.0, "per_token_us": 1.0, **settings}}


def request(prompt: str = "What is Penstock?", model: str = "demo", **sampling: Any) -> api.GenerateRequest:
    """Build a generation; greedy unless told otherwise."""
    params = types.SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **sampling})
    return api.GenerateRequest(model=model, prompt=types.Prompt(text=prompt), sampling=params)


def stream_request(*args: Any, **kwargs: Any) -> api.StreamGenerateRequest:
    """Build a streamed generation; see `request`."""
    return api.StreamGenerateRequest(generate=request(*args, **kwargs))


async def collect(call: Any) -> list[api.StreamGenerateResponse]:
    """Read a stream to its end; also one that `call.read()` has begun."""
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    if await call.code() is not grpc.StatusCode.OK:
        raise AssertionError(f"the stream ended {await call.code()}: {await call.details()}")
    return events


async def first_tokens(call: Any, count: int) -> list[api.StreamGenerateResponse]:
    """Read a stream up to this many output tokens. On a busy machine one message may carry several."""
    events: list[api.StreamGenerateResponse] = []
    while sum(len(event.delta.token_ids) for event in events) < count:
        event = await call.read()
        assert event is not grpc.aio.EOF
        events.append(event)
    return events


def request_id_of(events: list[api.StreamGenerateResponse]) -> str:
    """Return the id of a stream's request. Its first event may be `started`, or `queued` where there was no room."""
    return next(filter(None, (event.started.request_id or event.queued.request_id for event in events)))


def text_of(events: list[api.StreamGenerateResponse], index: int = 0) -> str:
    """Join the text of one choice."""
    return "".join(
        event.delta.text for event in events if event.HasField("delta") and event.delta.choice_index == index
    )


def ids_of(events: list[api.StreamGenerateResponse], index: int = 0) -> list[int]:
    """Join the tokens of one choice, checking that offsets have no gap."""
    ids: list[int] = []
    for event in events:
        if event.HasField("delta") and event.delta.choice_index == index:
            assert event.delta.offset == len(ids)
            ids.extend(event.delta.token_ids)
    return ids
