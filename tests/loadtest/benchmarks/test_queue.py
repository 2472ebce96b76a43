"""The queue benchmark on a small pool: every figure is there, and the scene stays what its cell says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from cluster.queue.redis.scripts import load_constants
from loadtest.benchmarks.queue import cells
from loadtest.benchmarks.queue.cells import Ground
from loadtest.benchmarks.queue.clients import SEQUENCES, entry
from loadtest.benchmarks.queue.idle_path import RoundTrips, count_round_trips
from loadtest.benchmarks.queue.meter import Meter
from tests.cluster.queue.servers import Server, running
from tests.support.stores import KINDS


@pytest.fixture(scope="module", params=KINDS[:2])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(request.param) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(server.url, protocol=2)
    await client.flushall()
    yield client
    await client.aclose()


async def test_a_cell_has_every_cost_and_leaves_nothing_behind(server: Server, client: redis.asyncio.Redis) -> None:
    ground = Ground(server.url, client, 7, "ground")
    await ground.grow(300)

    cell = await cells.measure(ground, Meter(client), 300, 5, rounds=2)
    await ground.clear()

    assert (300, 5, 7) == (cell.waiting, cell.replicas, cell.tenants)
    assert min(cell.submit_us, cell.release_us, cell.router_beat_us, cell.replica_beat_us) > 0
    assert min(cell.submit_script_us, cell.release_script_us) > 0
    assert [] == await client.keys("*")


async def test_a_late_line_is_compared_with_one_that_is_not(server: Server, client: redis.asyncio.Redis) -> None:
    usual, late = Ground(server.url, client, 3, "usual"), Ground(server.url, client, 3, "late", late_after_ms=1)
    for ground in (usual, late):
        await ground.grow(400)

    async with usual.scene(300, 5) as small, late.scene(300, 5) as large:
        ratios = await cells.compare(small, large, Meter(client), rounds=2)
        places = {name: await _places(client, f"penstock:1:{{{name}-copy}}:line") for name in ("usual", "late")}
    for ground in (usual, late):
        await ground.clear()

    assert min(ratios.submit, ratios.release) > 0
    assert max(places["usual"]) < int(load_constants()["LATE_FROM"]) < max(places["late"])


async def _places(client: redis.asyncio.Redis, line: str) -> list[int]:
    return [int(member.split(b"\0")[2]) for member in await client.zrange(line, 0, -1)]


async def test_a_scene_keeps_its_size_over_the_rounds(server: Server, client: redis.asyncio.Redis) -> None:
    ground = Ground(server.url, client, 7, "ground")
    await ground.grow(100)
    meter = Meter(client)

    async with ground.scene(400, 4) as scene:
        for _ in range(3):
            await scene.round(meter)
        sizes = [
            await client.zcard("penstock:1:{ground-copy}:line"),
            await client.zcard("penstock:1:{ground-copy}:slots"),
        ]
    await ground.clear()

    assert [400, 4 * SEQUENCES] == sizes


async def test_a_block_with_other_calls_in_it_is_not_measured(server: Server, client: redis.asyncio.Redis) -> None:
    ground = Ground(server.url, client, 7, "ground")
    meter = Meter(client)

    with pytest.raises(RuntimeError, match="2 script calls were made"):
        async with meter.measure(1):
            await ground._crew.beat_routers()
    await ground.clear()


async def test_the_idle_path_is_one_round_trip_each_way(server: Server, client: redis.asyncio.Redis) -> None:
    assert RoundTrips(1, 1) == await count_round_trips(server.url, Meter(client))


def test_the_same_number_gives_the_same_entry() -> None:
    assert entry(5, 10) == entry(5, 10)
    assert entry(5, 10).request_id != entry(6, 10).request_id


def test_a_pool_that_does_not_fit_is_refused_with_its_numbers() -> None:
    with pytest.raises(MemoryError, match=r"--waiting 10{12} needs about \d+ MiB"):
        cells.check_memory(10**12)
