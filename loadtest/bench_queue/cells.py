"""Measures submit, fill and release with so many waiting entries, replicas and tenants."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil
import redis.asyncio

from cluster.models import ReplicaState
from cluster.queue.keys import pool_key, pool_keys
from loadtest.bench_queue.crew import ROUTERS, SEQUENCES, Crew
from loadtest.bench_queue.meter import Cost, Meter

ROUNDS = 7
PER_ROUND = 256
"""Releases of each kind; submits are twice as many, so that the line keeps its length."""
_BYTES_PER_ENTRY = 1_500
"""Upper bound of what Redis takes for a waiting entry."""
_CELL = "cell"


@dataclass(frozen=True, slots=True)
class Cell:
    """Is what one call costs Redis, in microseconds: medians over the rounds."""

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
    """Raise MemoryError unless a pool of so many waiting entries, its copy and a fork of both fit."""
    needed, free = 4 * waiting * _BYTES_PER_ENTRY, psutil.virtual_memory().available
    if needed > free:
        raise MemoryError(
            f"--waiting {waiting} needs about {needed >> 20} MiB of memory, {free >> 20} MiB are free: name less"
        )


class Ground:
    """Is a pool without replicas that grows from cell to cell, in a server of the benchmark's own."""

    def __init__(self, url: str, client: redis.asyncio.Redis, tenants: int) -> None:
        self._url = url
        self._client = client
        self._tenants = tenants
        self._crew = Crew(url, f"ground-{tenants}", tenants)

    async def grow(self, waiting: int, tick: Callable[[int], None]) -> None:
        """Submit until so many entries wait."""
        await self._crew.beat_routers()
        await self._crew.submit(waiting - self._crew.submitted, tick)

    async def clear(self) -> None:
        """Remove the pool."""
        await self._crew.close()
        await self._client.unlink(*pool_keys(self._crew.queue.pool))

    @asynccontextmanager
    async def copy(self, waiting: int, replicas: int) -> AsyncIterator[Crew]:
        """Give a copy of the pool with so many full replicas and waiting entries; it is gone afterwards."""
        for source, target in zip(pool_keys(self._crew.queue.pool), pool_keys(_CELL), strict=True):
            await self._client.copy(source, target)
        crew = Crew(self._url, _CELL, self._tenants, self._crew.submitted)
        try:
            await crew.scale(replicas)
            while (missing := waiting + replicas * SEQUENCES - await self.entries()) > 0:
                await crew.submit(missing)
            await crew.fill()
            yield crew
        finally:
            await crew.close()
            await self._client.unlink(*pool_keys(_CELL))

    async def entries(self) -> int:
        """Count the entries of the copy, waiting and running."""
        return int(await self._client.hlen(pool_key(_CELL, "entries")))

    async def waiting(self) -> int:
        """Count the waiting entries of the copy."""
        return int(await self._client.zcard(pool_key(_CELL, "line")))


async def measure(ground: Ground, meter: Meter, waiting: int, replicas: int, tenants: int) -> Cell:
    """Measure one cell."""
    submits: list[Cost] = []
    releases: list[Cost] = []
    refills: list[Cost] = []
    router_beats: list[Cost] = []
    replica_beats: list[Cost] = []
    async with ground.copy(waiting, replicas) as crew:
        await meter.settle()
        for _ in range(ROUNDS):
            if await ground.waiting() != waiting or crew.attempts != replicas * SEQUENCES:
                raise RuntimeError(f"{await ground.waiting()} wait and {crew.attempts} run, not what the cell says")
            async with meter.measure(2 * PER_ROUND) as cost:
                await crew.submit(2 * PER_ROUND)
            submits.append(cost)
            async with meter.measure(PER_ROUND) as cost:
                await crew.release(PER_ROUND)
            refills.append(cost)
            await crew.collect()
            async with meter.measure(replicas) as cost:
                await crew.beat_replicas(ReplicaState.DRAINING)
            replica_beats.append(cost)
            async with meter.measure(PER_ROUND) as cost:
                await crew.release(PER_ROUND)
            releases.append(cost)
            await crew.fill()
            async with meter.measure(len(ROUTERS)) as cost:
                await crew.beat_routers()
            router_beats.append(cost)
    submit, release, refill = map(_median, (submits, releases, refills))
    return Cell(
        waiting=waiting,
        replicas=replicas,
        tenants=tenants,
        submit_us=submit[0],
        fill_us=refill[0] - release[0],
        release_us=release[0],
        submit_script_us=submit[1],
        fill_script_us=refill[1] - release[1],
        release_script_us=release[1],
        router_beat_us=_median(router_beats)[0],
        replica_beat_us=_median(replica_beats)[0],
    )


def _median(costs: Sequence[Cost]) -> tuple[float, float]:
    return statistics.median(cost.cpu_us for cost in costs), statistics.median(cost.script_us for cost in costs)


def ratios(cells: Sequence[Cell]) -> dict[str, float]:
    """Compare the largest corner with the smallest."""

    def size(cell: Cell) -> tuple[int, int, int]:
        return cell.waiting, cell.replicas, cell.tenants

    small, large = min(cells, key=size), max(cells, key=size)
    return {
        "submit": large.submit_us / small.submit_us,
        "fill": large.fill_us / small.fill_us,
        "release": large.release_us / small.release_us,
    }
