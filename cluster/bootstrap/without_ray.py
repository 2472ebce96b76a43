"""A cluster on one machine without Ray, for simulated engines: Redis, routers, and a process per replica.

Ray takes most of the time and memory of a local cluster. It gives replicas their accelerators and the autoscaler its
say, and simulated engines of a fixed number need neither. Everything else is the same: the routers, the replicas, Redis
and what clients see.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster.bootstrap.back_off import BackOff
from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import Progress, wait_file
from cluster.bootstrap.supervisor import LOOK_S, keep_routers, look_at_kept, restart
from cluster.lifecycle import side_by_side
from cluster.settings import EngineKind, Settings

_LOG = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
"""Seconds that a replica may take to start, beyond the start that is simulated."""


def local_cluster(settings: Settings, progress: Progress) -> LocalCluster:
    """Return the cluster of this machine, with Ray only where it is needed."""
    return LocalCluster(settings, progress) if needs_ray(settings) else RaylessCluster(settings, progress)


def needs_ray(settings: Settings) -> bool:
    """Return whether replicas need Ray Serve: real engines, an autoscaler, or the operator's own wish."""
    cluster = settings.cluster
    return (
        cluster.ray == "always"
        or bool(cluster.ray_address)
        or any(pool.engine is not EngineKind.SIM or pool.autoscale.mode != "off" for pool in settings.pools.values())
    )


@dataclass(slots=True)
class _ReplicaPlace:
    """A place for one replica, whose process may be replaced."""

    pool: str
    rank: int
    process: ChildProcess | None = None

    @property
    def name(self) -> str:
        return f"{self.pool}-{self.rank}"

    @property
    def empty(self) -> bool:
        """Whether no process runs there."""
        return self.process is None or not self.process.running

    @property
    def gave_way(self) -> bool:
        """Whether the process ended by itself to make room for another revision."""
        return self.process is not None and self.process.returncode == 0


class RaylessCluster(LocalCluster):
    """Processes of a local cluster whose replicas run without Ray."""

    def __init__(self, settings: Settings, progress: Progress, *, same_port: bool = True) -> None:
        super().__init__(settings, progress, same_port=same_port)
        self._places = [
            _ReplicaPlace(name, rank) for name, pool in settings.pools.items() for rank in range(pool.replicas)
        ]

    @property
    def replicas(self) -> list[ChildProcess]:
        """Processes of the replicas that run."""
        return [place.process for place in self._places if place.process is not None and not place.empty]

    async def _start_ray(self) -> None:
        """Start nothing: replicas are started by `_deploy`."""

    async def _deploy(self, settings_file: Path) -> None:
        for name, pool in self.settings.pools.items():
            self._progress(f"pool {name}", f"starting {pool.engine.value} engines: {pool.model}")
        await side_by_side(*(self._start_pool(name, settings_file) for name in self.settings.pools))

    async def _start_pool(self, name: str, settings_file: Path) -> None:
        await side_by_side(*(self._start_replica(each, settings_file) for each in self._places if each.pool == name))
        self._progress(f"pool {name}", "ready")

    async def _start_replica(self, place: _ReplicaPlace, settings_file: Path) -> None:
        ready_file = self.run_dir / f"replica-{place.name}.json"
        ready_file.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "deployments.process", "--settings-json", str(settings_file)),
            *("--pool", place.pool, "--rank", str(place.rank), "--ready-file", str(ready_file)),
        ]
        log_file = self.run_dir / f"replica-{place.name}.log"
        process = place.process = await ChildProcess.start(f"replica {place.name}", command, log_file)
        try:
            await wait_file(ready_file, process, START_TIMEOUT_S + self.settings.pools[place.pool].sim.start_s)
        except BaseException:
            await process.stop(1.0)
            place.process = None
            raise

    def check(self) -> None:
        super().check()
        # Once the cluster is up, replicas are replaced.
        for place in () if self._up else self._places:
            if place.process is not None:
                place.process.check()

    async def watch(self) -> None:
        """Keep routers and replicas up until Redis ends, which raises BootstrapError."""
        await side_by_side(
            look_at_kept(self, LOOK_S), keep_routers(self, BackOff(), LOOK_S), self._keep_replicas(BackOff(), LOOK_S)
        )

    async def _keep_replicas(self, back_off: BackOff, look_s: float) -> None:
        while True:
            await asyncio.sleep(look_s)
            if any(place.gave_way for place in self._places):
                await restart("replica", self._restart_replicas, self, 0.0)
            elif any(place.empty for place in self._places):
                wait_s = back_off.wait_s(asyncio.get_running_loop().time())
                await restart("replica", self._restart_replicas, self, wait_s)
                await asyncio.sleep(wait_s)

    async def _restart_replicas(self) -> None:
        for place in self._places:
            if place.empty and not place.gave_way:
                ended = place.process.obituary() if place.process is not None else {}
                _LOG.error("replica.ended", extra={"replica": place.name, **ended})
        empty = [place for place in self._places if place.empty]
        # One that can't start keeps no other one down.
        starts = (self._start_replica(place, self._settings_path) for place in empty)
        for found in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found

    async def stop(self) -> None:
        """Stop all components, newest first; at the return no process of the cluster is left. May be called twice."""
        redis, self.redis = self.redis, None
        try:
            await super().stop()
            running, drain = self.replicas, self.settings.replica.drain_s + 10
            if running:
                self._progress("replicas", "draining")
                await asyncio.gather(*(process.stop(drain) for process in running))
                self._progress("replicas", "stopped")
        finally:
            self.redis = redis
        # Redis goes last: routers and replicas leave their leases in it.
        await super().stop()
