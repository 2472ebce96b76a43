"""A whole cluster on one machine.

Start order: Redis (it stores the state of all others), Ray, routers (they come up while engines load), Serve
applications. Then the start waits until every pool has its replicas and every router is linked. Stop order begins with
what clients see: first routers (they drain), then the applications and Ray (replicas drain), then Redis.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.addresses import free_port, host_port
from cluster.bootstrap.ahead import check_ahead
from cluster.bootstrap.back_off import BackOff
from cluster.bootstrap.foreign_ray import join_ray, leave_ray
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import POLL_S, Progress, unlinked, wait_file
from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.bootstrap.supervisor import supervise
from cluster.errors import BootstrapError
from cluster.lifecycle import side_by_side
from cluster.plural import counted
from cluster.ray_serve.client import ServeApi
from cluster.ray_serve.config import app_name, serve_config
from cluster.settings import EngineKind, Settings, access_of
from cluster.trust.secret import ClusterSecret

_LOG = logging.getLogger(__name__)

RAY_ENVIRONMENT = {
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
    # Ray starts workers at niceness 15; replicas are the product here, not background work.
    "RAY_worker_niceness": "0",
    # Seconds between loops of the Serve controller. Its default of 0.1 takes 3 % of a core from the engines.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
}
RAY_TIMEOUT_S = 120.0
RAY_ATTEMPTS = 3
ROUTER_TIMEOUT_S = 60.0
AUTOSCALER_TIMEOUT_S = 30.0
ENGINE_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class RouterProcess:
    """A running router."""

    process: ChildProcess
    router_id: str
    port: int
    metrics_port: int


class LocalCluster:
    """Processes of a local cluster. `async with LocalCluster(...)` starts and stops them."""

    def __init__(self, settings: Settings, progress: Progress, *, same_port: bool = True) -> None:
        """`same_port`: all routers share one port, as clients expect; False gives each its own, for tests."""
        self._progress = progress
        self._same_port = same_port
        self.state_dir = settings.cluster.state_dir.expanduser().resolve()
        self.run_dir = self.state_dir / "run"
        self.settings = settings
        self.redis: EmbeddedRedis | None = None
        self.ray_host: ChildProcess | None = None
        self.serve: ServeApi | None = None
        self.routers: list[RouterProcess] = []
        self.autoscaler: ChildProcess | None = None
        self.autoscaler_port = 0
        """Port of the autoscaler's metrics and health endpoints."""
        self._settings_path = self.run_dir / "settings.json"
        self._dashboard = ("", Path())
        """Address of Ray's dashboard, and the file with its token."""
        self._ray_lost = False
        """Whether Ray ended and its replacement is not up."""
        self._guest = False
        """Whether an existing Ray cluster runs our applications."""
        self._up = False
        """Whether the start is complete."""

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all components; at the return a request can be served.

        Raises:
            SettingsError: a setting can't work, or no caller could reach the routers.
            BootstrapError: a component did not start; names it. All components that were started are stopped again.
        """
        try:
            # Checked first, so that errors appear before engines start, which takes minutes.
            access_of(self.settings)
            check_ahead(self.settings)
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self.run_dir.chmod(0o700)
            await side_by_side(self._start_redis(), self._start_ray())
            settings_file = self._write_settings()
            await side_by_side(self._deploy(settings_file), self._start_routers(settings_file))
            await self._wait_linked()
            await self._start_autoscaler()
            self._up = True
        except BaseException as error:
            await self.stop()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                what = f"the state folder {self.state_dir} cannot be written: {error.strerror}"
                raise BootstrapError("cluster", what) from error
            raise

    @property
    def target(self) -> str:
        """Address of the first router, host:port."""
        return host_port(self.settings.router.host, self.routers[0].port)

    async def _start_redis(self) -> None:
        url = self.settings.redis.url
        if not url:
            self._progress("redis", "starting the embedded server")
            self.redis = await EmbeddedRedis.start(
                self.state_dir,
                self.run_dir / "redis.log",
                self.settings.redis.server_binary,
                lambda: self._progress("redis", "reading what it kept"),
            )
            url = self.redis.url
        self.settings = self.settings.model_copy(update={"redis": self.settings.redis.model_copy(update={"url": url})})
        self._progress("redis", "ready")

    async def _start_ray(self) -> None:
        address = self.settings.cluster.ray_address
        self._gpus = 0
        if address:
            token_file = self.settings.autoscaler.token_file or Path.home() / ".ray" / "auth_token"
            self._dashboard = address, token_file
            self.serve = ServeApi(*self._dashboard)
            self._gpus = await join_ray(self.serve, self.settings)
            return
        self._progress("ray", "starting a local cluster")
        for attempt in range(1, RAY_ATTEMPTS + 1):
            try:
                fields = await self._start_ray_host()
                break
            except BootstrapError:
                # Ray's own agents must come up within 15 s, which a busy machine can miss; Ray has no setting for it.
                if attempt == RAY_ATTEMPTS:
                    raise
                self._progress("ray", f"it did not come up in its own time; attempt {attempt + 1} of {RAY_ATTEMPTS}")
        self._dashboard = fields["dashboard"], Path(fields["token_file"])
        self.serve = ServeApi(*self._dashboard)
        self._gpus = int(fields["gpus"])
        self._progress("ray", "ready")

    async def look(self) -> None:
        if self.ray_host is not None:
            await self.ray_host.look()

    def ray_ended(self) -> bool:
        """Return whether the Ray that this cluster started has ended; false for an existing Ray cluster."""
        return self._ray_lost or (self.ray_host is not None and not self.ray_host.running)

    async def restart_ray(self) -> None:
        old, self.ray_host, self._ray_lost = self.ray_host, None, True
        await self._stop_autoscaler()
        if old is not None:
            await old.stop_family(0.0)
        await self._start_ray()
        await self._deploy(self._settings_path)
        self._ray_lost = False

    def autoscaler_missing(self) -> bool:
        return self._wants_autoscaler() and (self.autoscaler is None or not self.autoscaler.running)

    async def restart_autoscaler(self) -> None:
        if self.autoscaler is not None and not self.autoscaler.running:
            _LOG.error("autoscaler.ended", extra=self.autoscaler.obituary())
        await self._stop_autoscaler()
        await self._start_autoscaler()

    def _wants_autoscaler(self) -> bool:
        return any(pool.autoscale.mode != "off" for pool in self.settings.pools.values())

    async def _start_ray_host(self) -> dict[str, Any]:
        ready_file = self.run_dir / "ray.json"
        ready_file.unlink(missing_ok=True)
        self.ray_host = await ChildProcess.start(
            "ray",
            [sys.executable, "-m", "cluster.bootstrap.ray_host", str(ready_file), str(logical_cpus(self.settings))],
            self.run_dir / "ray.log",
            RAY_ENVIRONMENT,
        )
        try:
            return await wait_file(ready_file, self.ray_host, RAY_TIMEOUT_S)
        except BaseException:
            # Its descendants may outlive it.
            await self.ray_host.stop_family(10.0)
            self.ray_host = None
            raise

    async def _start_autoscaler(self) -> None:
        if not self._wants_autoscaler():
            return
        self._progress("autoscaler", "starting")
        ready_file = self.run_dir / "autoscaler.json"
        ready_file.unlink(missing_ok=True)
        address, token_file = self._dashboard
        command = [
            *(sys.executable, "-m", "cluster.cli.main", "autoscaler", "--settings-json", str(self._settings_path)),
            *("--ray-address", address, "--token-file", str(token_file), "--ready-file", str(ready_file)),
        ]
        self.autoscaler = await ChildProcess.start("autoscaler", command, self.run_dir / "autoscaler.log")
        try:
            # Also check the other processes: the supervisor waits here and does not check them.
            fields = await wait_file(ready_file, self.autoscaler, AUTOSCALER_TIMEOUT_S, self.check)
        except BaseException:
            await self.autoscaler.stop(1.0)
            self.autoscaler = None
            raise
        self.autoscaler_port = fields["port"]
        self._progress("autoscaler", "ready")

    async def _stop_autoscaler(self) -> None:
        if self.autoscaler is not None:
            await self.autoscaler.stop(AUTOSCALER_TIMEOUT_S)
            self.autoscaler = None

    def _write_settings(self) -> Path:
        secret_file = self.settings.cluster.secret_file or self.state_dir / "secret"
        ClusterSecret.create_file(secret_file)
        paths = {"state_dir": self.state_dir, "secret_file": secret_file}
        self.settings = self.settings.model_copy(update={"cluster": self.settings.cluster.model_copy(update=paths)})
        path = self._settings_path
        # Redis' URL may contain a password.
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.settings.model_dump_json())
        return path

    async def _deploy(self, settings_file: Path) -> None:
        assert self.serve is not None  # noqa: S101 - set by _start_ray
        for name, pool in self.settings.pools.items():
            self._progress(f"pool {name}", f"starting {pool.engine.value} engines: {pool.model}")
        self._guest = self.ray_host is None
        await self.serve.deploy(serve_config(self.settings, str(settings_file), self._gpus))
        await side_by_side(*(self._wait_pool(name) for name in self.settings.pools))

    async def _wait_pool(self, name: str) -> None:
        assert self.serve is not None  # noqa: S101 - set by _start_ray
        wanted = self.settings.pools[name].replicas
        began = time.monotonic()
        while time.monotonic() - began < ENGINE_TIMEOUT_S:
            self.check()
            app = (await self.serve.status()).get(app_name(name))
            if app is not None:
                if app.status == "RUNNING" and app.running >= wanted:
                    self._progress(f"pool {name}", "ready")
                    return
                if app.status == "DEPLOY_FAILED":
                    raise BootstrapError(f"pool {name}", self._why_not(app.message))
                self._progress(f"pool {name}", f"{app.running} of {counted(wanted, 'replica runs', 'replicas run')}")
            await asyncio.sleep(POLL_S * 3)
        raise BootstrapError(f"pool {name}", f"no replica within {ENGINE_TIMEOUT_S:.0f} s")

    def _why_not(self, message: str) -> str:
        if self.ray_host is None:
            return message[-2_000:]
        cause = self.ray_host.last_error()
        return f"{message[-2_000:]}{f' Cause: {cause}' if cause else ''} Log: {self.ray_host.log_file}"

    async def _start_routers(self, settings_file: Path) -> None:
        count = self.settings.router.processes
        self._progress("routers", f"starting {count}")
        port = self.settings.router.port or free_port(self.settings.router.host)
        ports = [port if self._same_port else free_port(self.settings.router.host) for _ in range(count)]
        base = self.settings.router.metrics_port
        up: dict[int, RouterProcess] = {}

        async def start(index: int) -> None:
            metrics_port = base + index if base else 0
            up[index] = await self._start_router(settings_file, index, ports[index], metrics_port)

        try:
            await side_by_side(*map(start, range(count)))
        finally:
            # Also routers that came up while another one failed, so that `stop` ends them.
            self.routers = [up[index] for index in sorted(up)]
        self._progress("routers", "ready")

    def routers_missing(self) -> bool:
        return not all(router.process.running for router in self.routers)

    async def restart_routers(self) -> None:
        for index, router in enumerate(self.routers):
            if not router.process.running:
                _LOG.error("router.ended", extra={"router": router.router_id, **router.process.obituary()})
                # The new one takes the ports that clients and Prometheus know.
                self.routers[index] = await self._start_router(
                    self._settings_path, index, router.port, router.metrics_port
                )

    async def _start_router(self, settings_file: Path, index: int, port: int, metrics_port: int) -> RouterProcess:
        ready_file = self.run_dir / f"router-{index}.json"
        ready_file.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "router", "--settings-json", str(settings_file), "--port", str(port)),
            *("--metrics-port", str(metrics_port), "--ready-file", str(ready_file)),
        ]
        if self._same_port and self.settings.router.processes > 1:
            command.append("--shared-port")
        process = await ChildProcess.start(f"router {index}", command, self.run_dir / f"router-{index}.log")
        try:
            fields = await wait_file(ready_file, process, ROUTER_TIMEOUT_S)
        except BaseException:
            await process.stop(1.0)
            raise
        return RouterProcess(process, fields["router_id"], fields["port"], fields["metrics_port"])

    async def _wait_linked(self) -> None:
        # Routers learn of new replicas by a heartbeat; without this wait the first request would wait for it.
        self._progress("links", "connecting routers and replicas")
        wanted = {name: pool.replicas for name, pool in self.settings.pools.items()}
        until = time.monotonic() + ROUTER_TIMEOUT_S
        for index, router in enumerate(self.routers):
            while missing := await asyncio.to_thread(unlinked, router.metrics_port, self.settings.router.host, wanted):
                self.check()
                if time.monotonic() > until:
                    pools = ", ".join(missing)
                    why = f"not linked to all replicas of {pools} within {ROUTER_TIMEOUT_S:.0f} s"
                    raise BootstrapError(f"router {index}", f"{why}; log: {router.process.log_file}")
                await asyncio.sleep(POLL_S)
        self._progress("links", "ready")

    def check(self) -> None:
        """Raise BootstrapError if a process has ended that a start, or a restart of Ray, needs."""
        self.check_kept()
        # Once the cluster is up, the supervisor replaces routers.
        for router in () if self._up else self.routers:
            router.process.check()
        if self.ray_host is not None:
            self.ray_host.check()

    def check_kept(self) -> None:
        """Raise BootstrapError if Redis has ended: all others depend on it, and it is not replaced."""
        if self.redis is not None:
            self.redis.check()

    async def watch(self) -> None:
        """Keep Ray, routers and the autoscaler up until Redis ends, which raises BootstrapError."""
        await supervise(self, BackOff())

    # --- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop all components, newest first; at the return no process of the cluster is left. May be called twice."""
        drain = self.settings.router.drain_s + 10
        await self._stop_autoscaler()
        routers, self.routers = self.routers, []
        if routers:
            self._progress("routers", "draining")
            await asyncio.gather(*(router.process.stop(drain) for router in routers))
            self._progress("routers", "stopped")
        if self.ray_host is not None:
            self._progress("ray", "draining replicas and stopping")
            # Ray's dashboard leaves a fork server behind, so the whole family is stopped.
            await self.ray_host.stop_family(self.settings.replica.drain_s + 40)
            self.ray_host = None
            self._progress("ray", "stopped")
        elif self._guest and self.serve is not None:
            self._guest = False
            await leave_ray(self.serve, self.settings, self._progress)
        if self.redis is not None:
            await self.redis.stop()
            self.redis = None
            self._progress("redis", "stopped")
        with suppress(OSError):
            self._settings_path.unlink()


def logical_cpus(settings: Settings) -> int:
    """Return the number of CPUs to announce to Ray. Its accounting is logical: all replicas, and one more of each
    pool, must fit on any machine.
    """
    needed = 2
    for pool in settings.pools.values():
        per_replica = 1 if pool.engine is EngineKind.SIM else pool.tensor_parallel_size + 1
        most = max(pool.replicas, pool.autoscale.max_replicas or 0)
        needed += per_replica * (most * 2 + 2)
    return max(needed, os.cpu_count() or 1)
