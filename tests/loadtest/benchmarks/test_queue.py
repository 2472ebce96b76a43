"""The queue benchmark on a small pool: every figure is there, and the scene stays what its cell says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio
from rich.console import Console

from cluster.queue.redis.scripts import load_constants
from loadtest.benchmarks.queue import axes, cells
from loadtest.benchmarks.queue.axes import AxisBench, AxisCost, AxisPoint, QueueSize
from loadtest.benchmarks.queue.cells import CallCost, CallRatios, Ground
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


async def test_each_thing_grows_alone_and_nothing_is_left_behind(server: Server, client: redis.asyncio.Redis) -> None:
    some, least = axes.points((300, 200), (4, 5), (3, 7)), QueueSize(200, 4, 3)
    bench = AxisBench(server.url, client, Meter(client), Console(quiet=True))

    measured = await bench.measure(some, least, rounds=2)

    assert [
        ("replicas", QueueSize(200, 5, 3)),
        ("waiting", QueueSize(300, 4, 3)),
        ("tenants", QueueSize(200, 4, 7)),
        ("all three", QueueSize(300, 5, 7)),
    ] == [(each.point.axis, each.point.size) for each in measured]
    for each in measured:
        size = each.point.size
        assert (size.waiting, size.replicas, size.tenants) == (
            each.cost.waiting,
            each.cost.replicas,
            each.cost.tenants,
        )
        assert (200, 4, 3) == (each.smallest.waiting, each.smallest.replicas, each.smallest.tenants)
        assert min(each.cost.submit_us, each.cost.release_us, each.cost.router_beat_us, each.cost.replica_beat_us) > 0
        assert min(each.cost.submit_script_us, each.cost.release_script_us) > 0
    assert [] == await client.keys("*")


@pytest.mark.parametrize(
    ("axis", "ratio", "held"),
    [("waiting", 1.3, True), ("waiting", 1.31, False), ("tenants", 1.9, True), ("all three", 1.9, True)],
)
def test_only_how_many_wait_has_a_bar(axis: str, ratio: float, held: bool) -> None:
    cost = CallCost(*[1] * 3, *[1.0] * 8)
    point = AxisPoint(axis, QueueSize(1, 1, 1))
    assert held == AxisCost(point, cost, cost, CallRatios(1.0, ratio, 1.0)).held
    assert held == AxisCost(point, cost, cost, CallRatios(1.0, 1.0, ratio)).held


async def test_a_late_line_is_compared_with_one_that_is_not(server: Server, client: redis.asyncio.Redis) -> None:
    usual, late = Ground(server.url, client, 3, "usual"), Ground(server.url, client, 3, "late", late_after_ms=1)
    for ground in (usual, late):
        await ground.grow(400)

    async with usual.scene(300, 5) as small, late.scene(300, 5) as large:
        *_, ratios = await cells.compare(small, large, Meter(client), rounds=2)
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
