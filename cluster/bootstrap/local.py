"""A whole cluster on one machine.

Start order: Redis (it stores the state of all others), Ray, routers (they come up while engines load), Serve
applications. Then the start waits until every pool has its replicas and every router is linked. Stop order begins with
what clients see: first routers (they drain), then the applications and Ray (replicas drain), then Redis.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cluster.addresses import free_port, host_port
from cluster.bootstrap.ahead import check_ahead, check_embedded, check_given, check_hubs
from cluster.bootstrap.foreign_ray import join_ray, leave_ray
from cluster.bootstrap.local_ray import LocalRay, start_local_ray
from cluster.bootstrap.models import check_model
from cluster.bootstrap.pools import open_launcher, settings_with, with_pool, write_settings
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import START_S, Progress, RouterProcess, start_router, wait_file, wait_linked
from cluster.bootstrap.redis_server import EmbeddedRedis
from cluster.bootstrap.supervisor import BackOff, supervise
from cluster.errors import BootstrapError, QueueUnavailableError
from cluster.lifecycle import side_by_side
from cluster.ray_serve.client import ServeApi, default_token_file
from cluster.ray_serve.gpus import check_gpus
from cluster.ray_serve.pools import ServePools, numbers
from cluster.registry.launcher import PoolLauncher
from cluster.settings import PoolSettings, Settings, access_of
from cluster.trust.secret import ClusterSecret

_LOG = logging.getLogger(__name__)

_END_S = 30.0  # of an autoscaler


class LocalCluster:
    """Processes of a local cluster. `async with LocalCluster(...)` starts and stops them."""

    hosted_by_ray = True

    def __init__(self, settings: Settings, progress: Progress, *, same_port: bool = True) -> None:
        """`same_port`: all routers share one port, as clients expect; False gives each its own, for tests."""
        self._progress = progress
        self._same_port = same_port
        self.any_http_port = False  # whether the HTTP API may have another port where that of the settings is in use
        self.state_dir = settings.cluster.folder.resolve()
        self.run_dir = self.state_dir / "run"
        self.settings, self.pools = settings, dict(settings.pools)
        self.redis: EmbeddedRedis | None = None
        self.ray_host: ChildProcess | None = None
        self.serve: ServeApi | None = None
        self.routers: list[RouterProcess] = []
        self.autoscaler: ChildProcess | None = None
        self.autoscaler_port = 0  # of its metrics and health endpoints
        self._settings_path = self.run_dir / "settings.json"
        self._replicas_path = self.run_dir / "replicas.json"
        """Settings of replicas and autoscaler, with the pools that run."""
        self._deploying = asyncio.Lock()
        self._launcher: PoolLauncher | None = None
        self._api = ("", Path())
        """Address of Serve's API, and the file with its token."""
        self._gpus = 0  # of Ray
        self._ray: LocalRay | None = None  # `ray_host` is its process
        self._ray_lost = False
        """Whether Ray ended and its replacement is not up."""
        self._guest = False  # whether an existing Ray cluster runs our applications
        self._up = False  # whether the start is complete

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
            await self._check_redis()
            if not self.settings.cluster.ray_address:
                await check_hubs(self.settings, self._progress)
            await side_by_side(self._start_redis(), self._start_ray())
            settings_file = self._write_settings()
            await self._open_pools()
            await side_by_side(self._deploy(), self._start_routers(settings_file))
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

    async def _check_redis(self) -> None:
        """Try the Redis of the settings before anything else is started, which would take minutes."""
        redis = self.settings.redis
        if not redis.url:
            check_embedded(self.state_dir, redis.server_binary)
            return
        self._progress("redis", "checking")
        for warning in await check_given(redis, next(iter(self.settings.pools)), self._progress):
            _LOG.warning("redis.risk", extra={"text": warning})
        self._progress("redis", "ready")

    async def _start_redis(self) -> None:
        if self.settings.redis.url:
            return
        self._progress("redis", "starting the embedded server")
        self.redis = await EmbeddedRedis.start(
            self.state_dir,
            self.run_dir / "redis.log",
            self.settings.redis.server_binary,
            lambda: self._progress("redis", "reading what it kept"),
        )
        redis = self.settings.redis.model_copy(update={"url": self.redis.url})
        self.settings = self.settings.model_copy(update={"redis": redis})
        self._progress("redis", "ready")

    async def _start_ray(self) -> None:
        address = self.settings.cluster.ray_address
        if address:
            self._api = address, self.settings.autoscaler.token_file or default_token_file()
            self.serve = ServeApi(*self._api)
            self._gpus = await join_ray(self.serve, self.settings)
            return
        self._ray = await start_local_ray(self.settings, self.run_dir, self._progress)
        self.ray_host = self._ray.process
        self._api = self._ray.api, self._ray.token_file
        self.serve = ServeApi(*self._api)
        self._gpus = self._ray.gpus

    @property
    def dashboard(self) -> str:
        """Address of the local Ray's dashboard; empty without one."""
        return self._ray.dashboard if self._ray is not None else ""

    async def look(self) -> None:
        if self.ray_host is not None:
            await self.ray_host.look()

    def ray_ended(self) -> bool:
        """Return whether the Ray that this cluster started has ended; false for an existing Ray cluster."""
        return self._ray_lost or (self.ray_host is not None and not self.ray_host.running)

    async def restart_ray(self) -> None:
        old, self.ray_host, self._ray_lost = self.ray_host, None, True
        if self._launcher is not None:
            self._launcher.platform_lost()
        await self._stop_autoscaler()
        if old is not None:
            await old.stop_family(0.0)
        self._remove_ray_folder()
        await self._start_ray()
        async with self._deploying:
            await self._serve_pools.deploy(settings_with(self.settings, self.pools))
        await self._serve_pools.come_up(self._awaited)
        if self._launcher is not None:
            await self._launcher.start_again()
        self._ray_lost = False

    def autoscaler_missing(self) -> bool:
        return self._wants_autoscaler() and (self.autoscaler is None or not self.autoscaler.running)

    async def restart_autoscaler(self) -> None:
        if self.autoscaler is not None and not self.autoscaler.running:
            _LOG.error("autoscaler.ended", extra=self.autoscaler.obituary())
        await self._stop_autoscaler()
        await self._start_autoscaler()

    def _wants_autoscaler(self) -> bool:
        return any(pool.autoscale.mode != "off" for pool in self.pools.values())

    def _remove_ray_folder(self) -> None:
        ray, self._ray = self._ray, None
        if ray is not None:
            ray.folder.remove()
            ray.token_file.unlink(missing_ok=True)

    async def _start_autoscaler(self) -> None:
        if not self._wants_autoscaler():
            return
        self._progress("autoscaler", "starting")
        ready_file = self.run_dir / "autoscaler.json"
        ready_file.unlink(missing_ok=True)
        address, token_file = self._api
        command = [
            *(sys.executable, "-m", "cluster.cli.main", "autoscaler", "--settings-json", str(self._replicas_path)),
            *("--ray-address", address, "--token-file", str(token_file), "--ready-file", str(ready_file)),
        ]
        process = self.autoscaler = await ChildProcess.start("autoscaler", command, self.run_dir / "autoscaler.log")
        try:
            # Also check the other processes: the supervisor waits here and does not check them.
            fields = await wait_file(ready_file, process, START_S, self.check)
        except BaseException:
            await self._end_autoscaler(process, 1.0)
            raise
        self.autoscaler_port = fields["port"]
        self._progress("autoscaler", "ready")

    async def _stop_autoscaler(self) -> None:
        if self.autoscaler is not None:
            self._progress("autoscaler", "stopping")
            await self._end_autoscaler(self.autoscaler, _END_S)
            self._progress("autoscaler", "stopped")

    async def _end_autoscaler(self, process: ChildProcess, seconds: float) -> None:
        await process.stop(seconds)
        # The next one may run by now.
        if self.autoscaler is process:
            self.autoscaler = None

    def _write_settings(self) -> Path:
        secret_file = self.settings.cluster.secret_file or self.state_dir / "secret"
        ClusterSecret.create_file(secret_file)
        paths = {"state_dir": self.state_dir, "secret_file": secret_file}
        self.settings = self.settings.model_copy(update={"cluster": self.settings.cluster.model_copy(update=paths)})
        write_settings(self._settings_path, self.settings)
        return self._settings_path

    async def _open_pools(self) -> None:
        """Learn from the registry which pools to start with. It changes none where Ray outlives this cluster."""
        if not self.settings.cluster.ray_address:
            self._launcher = open_launcher(self.settings, self, ray=self.hosted_by_ray, gpus=self._gpus)
            try:
                self.pools = await self._launcher.begin()
            except QueueUnavailableError as error:
                raise BootstrapError("redis", str(error)) from error
        self._write_replica_settings()

    def _write_replica_settings(self) -> None:
        write_settings(self._replicas_path, settings_with(self.settings, self.pools))

    async def _deploy(self) -> None:
        self._guest = self.ray_host is None
        check_gpus(self._awaited, self._gpus, grows=self._guest)
        async with self._deploying:
            await self._serve_pools.deploy(settings_with(self.settings, self.pools))
        await side_by_side(*(self._serve_pools.ready(name, pool) for name, pool in self._awaited.items()))

    @property
    def _awaited(self) -> dict[str, PoolSettings]:
        """Pools that a start waits for. The launcher starts the registry's, and one that can't start stops no other."""
        return {name: pool for name, pool in self.pools.items() if name in self.settings.pools}

    @property
    def _serve_pools(self) -> ServePools:
        assert self.serve is not None  # noqa: S101 - set by _start_ray
        log = str(self.ray_host.log_file) if self.ray_host is not None else ""
        parts = self.serve, self._replicas_path, self._gpus, self._progress, self.check, log
        return ServePools(*parts, follows=self._launcher is not None)

    # --- pools that come and go ---------------------------------------------------------------------------------------

    async def fit_pool(self, name: str, settings: PoolSettings) -> None:
        """Start replicas that the pool lacks, and end those beyond its number. Return when that is done.

        Raises:
            SettingsError: its model is missing.
            BootstrapError: a replica did not start. Others may have.
        """
        check_model(name, settings)
        check_gpus({name: settings}, self._gpus)
        await self._redeploy(name, settings)
        await self._serve_pools.ready(name, settings)

    async def end_pool(self, name: str) -> None:
        """End all replicas of a pool; return when they are gone.

        Raises:
            BootstrapError: Ray does not answer.
        """
        if name in self.pools or await self._serve_pools.has(name):
            await self._redeploy(name, None)
        await self._serve_pools.gone(name, self.settings.replica.drain_s)

    async def _redeploy(self, name: str, settings: PoolSettings | None) -> None:
        async with self._deploying:
            self.pools = with_pool(self.pools, name, settings)
            self._write_replica_settings()
            self._serve_pools.forget_starts(name)
            await self._serve_pools.redeploy(settings_with(self.settings, self.pools))

    async def _start_routers(self, settings_file: Path) -> None:
        router, count = self.settings.router, self.settings.router.processes
        self._progress("routers", f"starting {count}")
        port, base = router.port or free_port(router.host), router.metrics_port
        ports = [port if self._same_port else free_port(router.host) for _ in range(count)]
        up: dict[int, RouterProcess] = {}

        async def start(index: int) -> None:
            up[index] = await self._start_router(settings_file, index, ports[index], base + index if base else 0)
            self._progress("routers", f"{len(up)} of {count} started")

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
                ports = router.port, router.metrics_port
                self.routers[index] = await self._start_router(self._settings_path, index, *ports)

    async def _start_router(self, settings_file: Path, index: int, port: int, metrics_port: int) -> RouterProcess:
        flags = ["--settings-json", str(settings_file), "--port", str(port), "--metrics-port", str(metrics_port)]
        if self._same_port and self.settings.router.processes > 1:
            flags.append("--shared-port")
        flags += ["--any-http-port"] * self.any_http_port
        return await start_router(self.run_dir, index, flags)

    async def _wait_linked(self) -> None:
        wanted = await numbers(self.serve, self._awaited)
        await wait_linked(self.routers, self.settings.router.host, wanted, self._progress, self.check)

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
        """Keep Ray, routers, autoscaler and the registry's pools up. Raise BootstrapError if Redis ends."""
        await side_by_side(supervise(self, BackOff()), *self._following())

    def _following(self) -> list[Awaitable[NoReturn]]:
        return [self._launcher.run()] if self._launcher is not None else []

    # --- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop all components, newest first; at the return no process of the cluster is left. May be called twice."""
        drain = self.settings.router.drain_s + 10
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await launcher.close()
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
            self._remove_ray_folder()
            self._progress("ray", "stopped")
        elif self._guest and self.serve is not None:
            self._guest = False
            await leave_ray(self.serve, self.settings, self._progress)
        if self.redis is not None:
            await self.redis.stop()
            self.redis = None
            self._progress("redis", "stopped")
        for file in (self._settings_path, self._replicas_path):
            with suppress(OSError):
                file.unlink()
