"""A router from start to drain.

Start order: pools (leases, links), then the port, then health SERVING: whoever sees SERVING can be served. Stop order:
health NOT_SERVING, refuse new generations, wait for open ones and for items of jobs, leave those that take longer to
other routers, give the jobs back, stop the server, leave the pools. The pools go last because open streams need their
links, and the lease keeps their slots.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from functools import partial
from pathlib import Path

from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from cluster.addresses import host_port
from cluster.errors import BootstrapError, QueueUnavailableError, UnavailableError
from cluster.grpc_options import SERVER_OPTIONS
from cluster.lifecycle import TaskOwner
from cluster.queue.contract import Bell
from cluster.settings import Settings
from cluster.telemetry import MetricsServer
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer, TlsFiles
from penstock.v1 import admin_pb2, inference_pb2, jobs_pb2
from router.admin.control import ControlApi
from router.admin.servicer import AdminServicer
from router.affinity import CacheSalts
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.grpc_server import CallServer, open_server
from router.handlers import service_handler
from router.identity import Authenticator, TenantPolicies
from router.inference.admit import Admission
from router.inference.coalescing import Coalescing
from router.inference.servicer import InferenceServicer
from router.jobs import Executor, JobFeeder, JobServicer, JobStores
from router.metrics import RouterMetrics
from router.stores import QueueFactory
from router.validation import RequestLimits

_LOG = logging.getLogger(__name__)

MEET_S = 2.0
"""Longest wait for links at start."""
PARTING_S = 1.0
"""How long calls may take to end that are left to other routers."""
LEARN_RETRY_S = 0.5
"""Pause between attempts to get a pool's tokenizer."""
LIVE_S = 5.0
"""An event loop that does not turn for so long answers /livez with no."""

_SERVICES = tuple(
    file.services_by_name[name]
    for file, name in (
        (inference_pb2.DESCRIPTOR, "InferenceService"),
        (jobs_pb2.DESCRIPTOR, "JobService"),
        (admin_pb2.DESCRIPTOR, "AdminService"),
    )
)


class Router:
    """Serves the public API on one port."""

    def __init__(
        self,
        settings: Settings,
        secret: ClusterSecret,
        queues: QueueFactory,
        *,
        port: int | None = None,
        metrics_port: int | None = None,
        shared_port: bool = False,
    ) -> None:
        """`port` and `metrics_port` override the settings; `shared_port` lets several processes listen on one port.

        Raises:
            SettingsError: keys or certificates are not as they must be, or nobody could call.
        """
        self.router_id = f"router-{secrets.token_hex(4)}"
        self.port = settings.router.port if port is None else port
        """After `start`: the port that was bound."""
        self._settings = settings
        self._shared_port = shared_port
        self._secret = secret
        self._queues = queues
        self._owner = TaskOwner(self.router_id)
        self._bell: Bell | None = None
        self._metrics = RouterMetrics()
        self._authenticate = Authenticator(settings, self._metrics.reloaded)
        tls = settings.router.tls
        self._tls = TlsFiles.of_router(tls, self._metrics.reloaded) if tls is not None else None
        self._metrics_port = settings.router.metrics_port if metrics_port is None else metrics_port
        self._metrics_server: MetricsServer | None = None
        self._dialer = LinkDialer(settings.replica.tls)
        self._server: CallServer | None = None
        self._serving = False
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing in the stubs
        self.pools: dict[str, Pool] = {}
        self._inference: InferenceServicer
        self._job_stores: JobStores
        self._jobs: JobServicer
        self._feeder: JobFeeder
        self._catalog: Catalog
        self._control_api: ControlApi

    @property
    def metrics_port(self) -> int:
        """Port of the Prometheus endpoint, after `start`."""
        return self._metrics_server.port if self._metrics_server is not None else 0

    # --- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the pools and listen; when it returns the port is open and health says SERVING.

        Raises:
            BootstrapError: the port, or the one of the metrics, can't be bound.
        """
        settings = self._settings
        for name in settings.pools:
            pool = self._pool(name)
            self.pools[name] = pool
            await pool.start()
        self._bell = self._queues.bell(self.router_id)
        self._owner.spawn(self._listen(self._bell), "bell")
        self._owner.spawn(self._authenticate.watch(), "keys")
        loop = asyncio.get_running_loop()
        # Ready also while Redis is away: requests then fail fast, while a name without addresses would hang them.
        probes = {"/livez": lambda: _turns(loop), "/readyz": lambda: self._serving}
        host, metrics_port = settings.router.host, self._metrics_port
        try:
            self._metrics_server = MetricsServer(host, metrics_port, self._metrics.registry, probes)
        except OSError as error:
            what = f"metrics can't be served on {host_port(host, metrics_port)}: {error.strerror}"
            raise BootstrapError("router", what) from error
        await self._meet_replicas()
        await self._open_port()
        for pool in self.pools.values():
            self._owner.spawn(self._learn(pool), "learn")
        self._feeder.start()
        await self._job_stores.start()
        for name in ("", *(service.full_name for service in _SERVICES)):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._serving = True
        _LOG.info("router.ready", extra={"router": self.router_id, "port": self.port})

    async def _meet_replicas(self) -> None:
        """Wait a moment for a link into each pool that has replicas: what comes first can then be admitted at once."""
        missing = [pool for pool in self.pools.values() if pool.replicas.any_announcement() is not None]
        until = time.monotonic() + MEET_S
        # Links come and go, so there is no one event to wait for.
        while missing and time.monotonic() < until:
            missing = [pool for pool in missing if not pool.replicas.connected()]
            await asyncio.sleep(0.02)
        if missing:
            _LOG.warning("router.no_link_yet", extra={"pools": [pool.name for pool in missing]})

    def _pool(self, name: str) -> Pool:
        return Pool(
            name,
            self.router_id,
            self._queues.queue(name),
            lambda: self._queues.queue(name),
            self._secret,
            self._settings.pools[name],
            self._settings.queue,
            self._settings.router,
            self._dialer,
        )

    async def _open_port(self) -> None:
        settings = self._settings.router
        catalog = self._catalog = Catalog(self.pools, self._cache_dir(), settings.limits)
        opening = Admission(
            catalog,
            self._secret,
            self.router_id,
            TenantPolicies(self._settings),
            settings.expected_output_tokens,
            CacheSalts(self._secret, shared=settings.affinity.share_prefixes_across_tenants),
        )
        limits = RequestLimits(settings.max_prompt_bytes, settings.limits)
        self._inference = InferenceServicer(
            self.pools,
            catalog,
            opening,
            limits,
            self._metrics,
            Coalescing(settings.merging),
            self._settings.queue.attach_grace_s,
        )
        self._open_jobs(opening, limits)
        self._metrics.watch(self.pools, lambda: self._inference.open_calls)
        self._control_api = ControlApi(self._settings.pools, self._queues.control)
        admin = AdminServicer(self.pools, self.router_id, self._control_api)
        server = open_server(
            settings.grpc_server,
            [
                *SERVER_OPTIONS,
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                ("grpc.so_reuseport", int(self._shared_port)),
            ],
        )
        server.add_generic_rpc_handlers(
            tuple(
                service_handler(service, servicer, self._metrics, self._authenticate)
                for service, servicer in zip(_SERVICES, (self._inference, self._jobs, admin), strict=True)
            )
        )
        add_HealthServicer_to_server(self._health, server)
        if settings.reflection:
            names = (*(service.full_name for service in _SERVICES), "grpc.health.v1.Health", reflection.SERVICE_NAME)
            add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(names), server)  # type: ignore[attr-defined]  # as above
        address = host_port(settings.host, self.port)
        try:
            if self._tls is not None:
                self.port = server.add_secure_port(address, self._tls.server_credentials())
            else:
                self.port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise BootstrapError("router", f"port {address} can't be bound") from error
        await server.start()
        self._server = server

    def _open_jobs(self, opening: Admission, limits: RequestLimits) -> None:
        settings = self._settings.jobs
        self._job_stores = JobStores(self.pools, self._queues.jobs, self._queues.job_pools())
        execute = Executor(opening, limits, self._metrics)
        self._feeder = JobFeeder(
            self.router_id,
            self._job_stores.served,
            execute,
            settings,
            capacity=lambda pool: self.pools[pool].replicas.capacity(),
            on_item=self._metrics.job_item,
        )
        for name, pool in self.pools.items():
            pool.job_work = partial(self._feeder.work, name)
        self._jobs = JobServicer(self._job_stores, settings, limits, self._feeder.nudge)

    async def _learn(self, pool: Pool) -> None:
        # Now rather than with the first request, which may come with a thousand others.
        await pool.replicas.first_seen.wait()
        while True:
            try:
                await self._catalog.model(pool)
                return
            except UnavailableError:
                await asyncio.sleep(LEARN_RETRY_S)

    def _cache_dir(self) -> Path:
        return self._settings.cluster.state_dir.expanduser() / "router-cache"

    async def _listen(self, bell: Bell) -> None:
        while True:
            try:
                name = await bell.wait()
            except QueueUnavailableError:
                # Closed by `stop`; a bell survives everything else.
                return
            if (pool := self.pools.get(name)) is not None:
                pool.ring()

    # --- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self, drain_s: float | None = None) -> None:
        """Drain and end; when it returns the port is closed and this router holds nothing in any pool."""
        seconds = self._settings.router.drain_s if drain_s is None else drain_s
        self._serving = False
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            self._inference.draining = True
            self._jobs.drain()
            await asyncio.gather(self._calls_ended(seconds), self._feeder.drain(seconds))
            if left := self._inference.park():
                _LOG.info("router.parked", extra={"router": self.router_id, "generations": left})
                await self._calls_ended(PARTING_S)
            await self._feeder.close()
            await self._server.stop(grace=0.2)
            await self._inference.close()
            await self._jobs.close()
            await self._control_api.close()
            await self._job_stores.close()
        if self._bell is not None:
            await self._bell.close()
        await self._owner.close()
        if self._server is not None:
            # After those who learn from it.
            await self._catalog.close()
        await asyncio.gather(*(pool.close() for pool in self.pools.values()))
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
        _LOG.info("router.stopped", extra={"router": self.router_id})

    async def _calls_ended(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._inference.idle.wait()
        except TimeoutError:
            _LOG.warning("router.drain_over", extra={"open_calls": self._inference.open_calls})


def _turns(loop: asyncio.AbstractEventLoop) -> bool:
    """Say whether a loop still runs what it is given; called on another thread."""
    turned = threading.Event()
    try:
        loop.call_soon_threadsafe(turned.set)
    except RuntimeError:
        # Closed.
        return False
    return turned.wait(LIVE_S)
