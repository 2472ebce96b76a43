"""Measurement of submit, fill and release, for a number of waiting entries, replicas and tenants."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil
import redis.asyncio

from cluster.queue.redis.keys import pool_keys
from cluster.redis.keys import pool_key
from loadtest.benchmarks.queue.clients import ROUTERS, SEQUENCES, Crew
from loadtest.benchmarks.queue.meter import Cost, Meter
from penstock.models import ReplicaState

ROUNDS = 15
"""Rounds of all measurements in each comparison."""
PER_ROUND = 256
"""Releases of each kind per round. Submits are twice as many, so that the line keeps its length."""
_BYTES_PER_ENTRY = 1_500
"""Upper bound of Redis' memory for a waiting entry."""
_LOADING = 512
"""Submits that share a pipeline while a pool is filled."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """Cost of one call for Redis in microseconds: medians over the rounds."""

    waiting: int
    replicas: int
    tenants: int
    submit_us: float
    fill_us: float
    release_us: float
    submit_script_us: float
    fill_script_us: float
    release_script_us: float
    router_beat_us: float
    replica_beat_us: float


def check_memory(waiting: int) -> None:
    """Raise MemoryError unless a pool of this many waiting entries, its copy and a fork of both fit."""
    needed, free = 4 * waiting * _BYTES_PER_ENTRY, psutil.virtual_memory().available
    if needed > free:
        raise MemoryError(
            f"--waiting {waiting} needs about {needed >> 20} MiB of memory, {free >> 20} MiB are free: name less"
        )


@dataclass(frozen=True, slots=True)
class CallRatios:
    """Cost of a call in one pool, of that in another: medians over rounds that took turns."""

    submit: float
    fill: float
    release: float


@dataclass(frozen=True, slots=True)
class _Round:
    submit: Cost
    fill: Cost
    release: Cost
    router_beat: Cost
    replica_beat: Cost


class Scene:
    """Pool whose replicas are full, with a fixed number of waiting entries."""

    def __init__(self, client: redis.asyncio.Redis, crew: Crew, waiting: int, replicas: int) -> None:
        self.waiting = waiting
        self.replicas = replicas
        self.tenants = crew.tenants
        self._client = client
        self._crew = crew

    async def set(self) -> None:
        """Bring the replicas up and submit the missing entries."""
        await self._crew.scale(self.replicas)
        # The first call of a script loads it.
        await self._crew.release(1)
        entries = await self._client.hlen(pool_key(self._crew.queue.pool, "entries"))
        await self._crew.submit(self.waiting + self.replicas * SEQUENCES - entries, in_flight=_LOADING)
        await self._crew.fill()

    async def round(self, meter: Meter) -> _Round:
        """Measure everything once. Afterwards the line is as long as before."""
        crew = self._crew
        line = await self._client.zcard(pool_key(crew.queue.pool, "line"))
        if line != self.waiting or crew.attempts != self.replicas * SEQUENCES:
            raise RuntimeError(f"{line} wait and {crew.attempts} run in a pool of {self.waiting}")
        async with meter.measure(len(ROUTERS)) as router_beat:
            await crew.beat_routers()
        async with meter.measure(2 * PER_ROUND) as submit:
            await crew.submit(2 * PER_ROUND)
        async with meter.measure(PER_ROUND) as refilled:
            await crew.release(PER_ROUND)
        await crew.collect()
        async with meter.measure(self.replicas) as replica_beat:
            await crew.beat_replicas(ReplicaState.DRAINING)
        async with meter.measure(PER_ROUND) as release:
            await crew.release(PER_ROUND)
        await crew.fill()
        fill = Cost(PER_ROUND, refilled.cpu_us - release.cpu_us, refilled.script_us - release.script_us)
        return _Round(submit, fill, release, router_beat, replica_beat)


class Ground:
    """Pool without replicas that grows from comparison to comparison, in a server of the benchmark's own."""

    def __init__(self, url: str, client: redis.asyncio.Redis, tenants: int, name: str, late_after_ms: int = 0) -> None:
        self.tenants = tenants
        self._url = url
        self._client = client
        self._late_after_ms = late_after_ms
        self._crew = Crew(url, name, tenants, late_after_ms=late_after_ms)

    async def grow(self, waiting: int, tick: Callable[[int], None] = lambda _: None) -> None:
        """Submit until this many entries wait."""
        await self._crew.beat_routers()
        await self._crew.submit(waiting - self._crew.submitted, tick, in_flight=_LOADING)

    async def clear(self) -> None:
        await self._remove(self._crew)

    @asynccontextmanager
    async def scene(self, waiting: int, replicas: int) -> AsyncIterator[Scene]:
        """Yield a copy of the pool with this many full replicas and waiting entries. It is removed afterwards."""
        crew = Crew(self._url, f"{self._crew.queue.pool}-copy", self.tenants, self._crew.submitted, self._late_after_ms)
        for source, target in zip(pool_keys(self._crew.queue.pool), pool_keys(crew.queue.pool), strict=True):
            await self._client.copy(source, target)
        scene = Scene(self._client, crew, waiting, replicas)
        try:
            await scene.set()
            yield scene
        finally:
            await self._remove(crew)

    async def _remove(self, crew: Crew) -> None:
        await crew.close()
        await self._client.unlink(*pool_keys(crew.queue.pool))


async def compare(
    small: Scene, large: Scene, meter: Meter, rounds: int = ROUNDS
) -> tuple[CallCost, CallCost, CallRatios]:
    """Compare two pools; return the cost in each, and the ratios of the second to the first. They take turns, so that
    other work on the machine slows both.
    """
    await meter.settle()
    pairs = [(await small.round(meter), await large.round(meter)) for _ in range(rounds)]

    def ratio(pick: Callable[[_Round], Cost]) -> float:
        return statistics.median(pick(large).cpu_us / pick(small).cpu_us for small, large in pairs)

    ratios = CallRatios(
        ratio(lambda each: each.submit), ratio(lambda each: each.fill), ratio(lambda each: each.release)
    )
    return _cost(small, [one for one, _ in pairs]), _cost(large, [other for _, other in pairs]), ratios


def _cost(scene: Scene, measured: Sequence[_Round]) -> CallCost:
    def cpu(pick: Callable[[_Round], Cost]) -> float:
        return statistics.median(pick(each).cpu_us for each in measured)

    def script(pick: Callable[[_Round], Cost]) -> float:
        return statistics.median(pick(each).script_us for each in measured)

    return CallCost(
        waiting=scene.waiting,
        replicas=scene.replicas,
        tenants=scene.tenants,
        submit_us=cpu(lambda each: each.submit),
        fill_us=cpu(lambda each: each.fill),
        release_us=cpu(lambda each: each.release),
        submit_script_us=script(lambda each: each.submit),
        fill_script_us=script(lambda each: each.fill),
        release_script_us=script(lambda each: each.release),
        router_beat_us=cpu(lambda each: each.router_beat),
        replica_beat_us=cpu(lambda each: each.replica_beat),
    )
