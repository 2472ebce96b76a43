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

from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.models import check_model
from cluster.bootstrap.pools import with_pool
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import START_S, Progress, wait_file
from cluster.bootstrap.supervisor import LOOK_S, BackOff, keep_routers, look_at_kept, restart
from cluster.lifecycle import side_by_side
from cluster.settings import EngineKind, PoolSettings, Settings

_LOG = logging.getLogger(__name__)


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
    kept: bool = True
    """Whether an ended process is replaced; False while the first start is tried, and once the place goes."""

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

    hosted_by_ray = False

    def __init__(self, settings: Settings, progress: Progress, *, same_port: bool = True) -> None:
        super().__init__(settings, progress, same_port=same_port)
        self._places: list[_ReplicaPlace] = []

    @property
    def replicas(self) -> list[ChildProcess]:
        """Processes of the replicas that run."""
        return [place.process for place in self._places if place.process is not None and not place.empty]

    async def _start_ray(self) -> None:
        """Start nothing: replicas are started by `_deploy`."""

    async def _deploy(self) -> None:
        for name, pool in self._awaited.items():
            self._progress(f"pool {name}", f"starting {pool.engine.value} engines: {pool.model}")
            self._places += [_ReplicaPlace(name, rank) for rank in range(pool.replicas)]
        await side_by_side(*map(self._start_pool, self._awaited))

    async def _start_pool(self, name: str) -> None:
        await side_by_side(*(self._start_replica(each) for each in self._places if each.pool == name))
        self._progress(f"pool {name}", "ready")

    # --- pools that come and go ---------------------------------------------------------------------------------------

    async def fit_pool(self, name: str, settings: PoolSettings) -> None:
        """Start replicas that the pool lacks, and end those beyond its number. Return when that is done.

        Raises:
            SettingsError: its model's folder is missing.
            BootstrapError: one did not start. Others may have.
        """
        check_model(name, settings)
        self.pools = with_pool(self.pools, name, settings)
        self._write_replica_settings()
        ranks = {place.rank for place in self._places if place.pool == name}
        self._places += [
            _ReplicaPlace(name, rank, kept=False) for rank in range(settings.replicas) if rank not in ranks
        ]
        await self._end_places([each for each in self._places if each.pool == name and each.rank >= settings.replicas])
        new = (self._start_new(place) for place in self._places if place.pool == name and not place.kept)
        for error in await asyncio.gather(*new, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    async def _start_new(self, place: _ReplicaPlace) -> None:
        await self._start_replica(place)
        place.kept = True

    async def end_pool(self, name: str) -> None:
        """End all replicas of a pool; return when they are gone."""
        self.pools = with_pool(self.pools, name, None)
        self._write_replica_settings()
        await self._end_places([place for place in self._places if place.pool == name])

    async def _end_places(self, places: list[_ReplicaPlace]) -> None:
        for place in places:
            place.kept = False
        drain = self.settings.replica.drain_s + 10
        # Again where one was about to be replaced.
        while running := [each.process for each in places if each.process is not None and not each.empty]:
            await asyncio.gather(*(process.stop(drain) for process in running))
        self._places = [place for place in self._places if place not in places]

    # --- processes ----------------------------------------------------------------------------------------------------

    async def _start_replica(self, place: _ReplicaPlace) -> None:
        ready_file = self.run_dir / f"replica-{place.name}.json"
        ready_file.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "deployments.process", "--settings-json", str(self._replicas_path)),
            *("--pool", place.pool, "--rank", str(place.rank), "--ready-file", str(ready_file)),
        ]
        log_file = self.run_dir / f"replica-{place.name}.log"
        process = place.process = await ChildProcess.start(f"replica {place.name}", command, log_file)
        try:
            pool = self.pools.get(place.pool) if place in self._places else None
            # Nothing waits for a place that has gone.
            await wait_file(ready_file, process, START_S + pool.sim.start_s if pool is not None else 0.0)
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
        """Keep routers and replicas up, and follow the pools of the registry, until Redis ends, which raises
        BootstrapError.
        """
        await side_by_side(
            look_at_kept(self, LOOK_S),
            keep_routers(self, BackOff(), LOOK_S),
            self._keep_replicas(BackOff(), LOOK_S),
            *self._following(),
        )

    async def _keep_replicas(self, back_off: BackOff, look_s: float) -> None:
        while True:
            await asyncio.sleep(look_s)
            kept = [place for place in self._places if place.kept]
            if any(place.gave_way for place in kept):
                await restart("replica", self._restart_replicas, self, 0.0)
            elif any(place.empty for place in kept):
                wait_s = back_off.wait_s(asyncio.get_running_loop().time())
                await restart("replica", self._restart_replicas, self, wait_s)
                await asyncio.sleep(wait_s)

    async def _restart_replicas(self) -> None:
        kept = [place for place in self._places if place.kept]
        for place in kept:
            if place.empty and not place.gave_way:
                ended = place.process.obituary() if place.process is not None else {}
                _LOG.error("replica.ended", extra={"replica": place.name, **ended})
        # One that can't start keeps no other one down.
        starts = (self._start_replica(place) for place in kept if place.empty)
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
