"""A router from start to drain.

Start order: pools (leases, links), then the port, then health SERVING. A client that sees SERVING can be served.

Stop order: health NOT_SERVING, refuse new generations, wait for open ones and for items of jobs, leave those that take
longer to other routers, give the jobs back, stop the server, leave the pools. The pools go last because open streams
need their links, and the lease keeps their slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grpc_health.v1 import health_pb2

from cluster.addresses import host_port
from cluster.errors import BootstrapError, QueueUnavailableError
from cluster.lifecycle import TaskOwner, still_runs, timeout_awake
from cluster.queue.cells.names import pool_of
from cluster.queue.contract import Bell
from cluster.registry.view import RegistryView
from cluster.settings import RouterSettings
from cluster.telemetry import MetricsServer, PushPlan
from cluster.trust.tls import TlsFiles
from penstock.v1 import admin_pb2, embeddings_pb2, inference_pb2, jobs_pb2
from router.admin.control import ControlApi
from router.announced.keeper import AnnouncedKeeper
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.grpc_server import CallServer
from router.http.server import HttpServer
from router.identity import Authenticator
from router.inference.servicer import InferenceServicer
from router.jobs import JobParts
from router.metrics import RouterMetrics
from router.pool_keeper import PoolKeeper
from router.records.keeper import RecordKeeper
from router.records.tracing import Tracing
from router.rollout.keeper import RolloutKeeper

_LOG = logging.getLogger(__name__)

MEET_S = 2.0
"""Longest wait for links at start."""
ISSUERS_S = 5.0
"""Longest wait for the keys of issuers at start, so that the first tokens are not refused."""
PARTING_S = 1.0
"""How long calls may take to end after they were left to other routers."""
LIVE_S = 5.0
"""An event loop that does not run for this long answers /livez with no."""


SERVICES = tuple(
    file.services_by_name[name]
    for file, name in (
        (inference_pb2.DESCRIPTOR, "InferenceService"),
        (embeddings_pb2.DESCRIPTOR, "EmbeddingService"),
        (jobs_pb2.DESCRIPTOR, "JobService"),
        (admin_pb2.DESCRIPTOR, "AdminService"),
    )
)
"""Services of the public API."""


@dataclass(frozen=True, slots=True)
class RouterParts:
    """What a router starts and stops."""

    pools: Mapping[str, Pool]
    pool_keeper: PoolKeeper
    bell: Bell
    authenticator: Authenticator
    metrics: RouterMetrics
    catalog: Catalog
    inference: InferenceServicer
    jobs: JobParts
    control_api: ControlApi
    records: RecordKeeper
    registry: RegistryView
    rollouts: RolloutKeeper
    announced: AnnouncedKeeper
    push: PushPlan | None
    tracing: Tracing | None
    """Export of traces; None where it is off."""
    health: Any
    """gRPC's health service; its class is missing in the stubs."""
    server: CallServer
    """Server with all services, and no port yet."""
    tls: TlsFiles | None
    """Certificate of the port; None without TLS."""
    http: HttpServer | None
    """Server of the HTTP API; None where it is off."""


# --- life -------------------------------------------------------------------------------------------------------------


class Router:
    """A router process, which serves the public API on one port. `build_router` composes it."""

    def __init__(
        self, router_id: str, settings: RouterSettings, parts: RouterParts, port: int, metrics_port: int
    ) -> None:
        """`port` and `metrics_port` are the ports to bind; 0 takes any."""
        self.router_id = router_id
        self.port = port
        """After `start`: the port that was bound."""
        self.pools = parts.pools
        self.http = parts.http
        self._settings = settings
        self._parts = parts
        self._inference = parts.inference
        self._jobs = parts.jobs.servicer
        self._metrics = parts.metrics
        self._server = parts.server
        self._metrics_port = metrics_port
        self._metrics_server: MetricsServer | None = None
        self._owner = TaskOwner(router_id)
        self._serving = False

    @property
    def metrics_port(self) -> int:
        """Port of the Prometheus endpoint, after `start`."""
        return self._metrics_server.port if self._metrics_server is not None else 0

    # --- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the pools and listen. When it returns the port is open and health says SERVING.

        Raises:
            BootstrapError: the port, or the port of the metrics, can't be bound. `stop` then ends what has begun.
        """
        parts = self._parts
        for pool in self.pools.values():
            await pool.start()
        self._owner.spawn(self._pass_rings(), "bell")
        self._owner.spawn(parts.authenticator.watch(), "keys")
        await parts.registry.start(self._owner, MEET_S)
        if away := await parts.authenticator.issuers_known(ISSUERS_S):
            # Their tokens are refused until the keys come; everything else is served.
            _LOG.warning("router.issuers_away", extra={"issuers": away})
        self._metrics_server = self._open_metrics()
        await parts.pool_keeper.start()
        await self._meet_replicas()
        await self._open_port()
        if parts.http is not None:
            await parts.http.start()
        parts.jobs.feeder.start()
        parts.records.start()
        parts.rollouts.start()
        parts.announced.start()
        await parts.jobs.stores.start()
        for name in ("", *(service.full_name for service in SERVICES)):
            await parts.health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._serving = True
        _LOG.info("router.ready", extra={"router": self.router_id, "port": self.port})

    def _open_metrics(self) -> MetricsServer:
        loop = asyncio.get_running_loop()
        # Ready also while Redis is away: requests then fail fast, while a name without addresses would hang them.
        probes = {"/livez": lambda: still_runs(loop, LIVE_S), "/readyz": lambda: self._serving}
        host, port = self._settings.host, self._metrics_port
        try:
            return MetricsServer(host, port, self._metrics.registry, probes, self._parts.push)
        except OSError as error:
            what = f"metrics can't be served on {host_port(host, port)}: {error.strerror}"
            raise BootstrapError("router", what) from error

    async def _meet_replicas(self) -> None:
        """Wait a moment for a link into each pool that has replicas, so that the first requests can be admitted."""
        missing = [pool for pool in self.pools.values() if pool.replicas.any_announcement() is not None]
        with suppress(TimeoutError):
            async with timeout_awake(MEET_S):
                # Links come and go, so there is no one event to wait for.
                while missing := [pool for pool in missing if not pool.replicas.connected()]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if missing:
            _LOG.warning("router.no_link_yet", extra={"pools": [pool.name for pool in missing]})

    async def _open_port(self) -> None:
        address, tls = host_port(self._settings.host, self.port), self._parts.tls
        try:
            if tls is not None:
                self.port = self._server.add_secure_port(address, tls.server_credentials())
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise BootstrapError("router", f"port {address} can't be bound") from error
        await self._server.start()

    async def _pass_rings(self) -> None:
        while True:
            try:
                name = await self._parts.bell.wait()
            except QueueUnavailableError:
                # `stop` has closed the bell. It survives everything else.
                return
            if (pool := self.pools.get(pool_of(name))) is not None:
                pool.mailbox.ring()

    # --- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self, drain_s: float | None = None) -> None:
        """Drain and end. When it returns the port is closed and this router has nothing left in any pool."""
        parts, seconds = self._parts, self._settings.drain_s if drain_s is None else drain_s
        self._serving = False
        await parts.health.enter_graceful_shutdown()
        self._inference.drain()
        self._jobs.drain()
        http = [parts.http.drain(seconds)] if parts.http is not None else []
        # At once, so that no request comes between: refusals are told, and connections without a request close.
        ended = (self._calls_ended(seconds), parts.jobs.feeder.drain(seconds), parts.pool_keeper.close())
        await asyncio.gather(*ended, *http)
        if left := self._inference.park():
            _LOG.info("router.parked", extra={"router": self.router_id, "generations": left})
            await self._calls_ended(PARTING_S)
        await parts.jobs.feeder.close()
        await self._server.stop(grace=0.2)
        if parts.http is not None:
            await parts.http.stop()
        await self._inference.close()
        await self._jobs.close()
        await parts.records.close()
        if parts.tracing is not None:
            await asyncio.to_thread(parts.tracing.close)
        await parts.rollouts.close()
        await parts.announced.close()
        await parts.control_api.close()
        await parts.jobs.stores.close()
        await parts.bell.close()
        await self._owner.close()
        await parts.registry.close()
        # After the tasks that learn from it.
        await parts.catalog.close()
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
