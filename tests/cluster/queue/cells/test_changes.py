"""Promises while the number of a pool's cells changes."""

from __future__ import annotations

import random

import pytest

from cluster.errors import QuotaExceededError
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.names import cell_name
from cluster.queue.cells.queue import CellQueue
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import Quota, Settlement
from cluster.queue.heartbeats import RouterBeat
from tests.cluster.queue.backends import POOL, entry
from tests.cluster.queue.cells.scene import ROUTERS, CellScene
from tests.cluster.queue.cells.test_promises import opened


async def change(scene: CellScene, cells: int) -> None:
    """Tell all routers of another number, and move the replicas as they would."""
    for number in range(len(scene.own), cells):
        scene.own.append(scene.open_cell(cell_name(POOL, number)))
    for layout in scene.layouts.values():
        layout.change(cells)
    for number, name in enumerate(sorted(scene.cell_of)):
        if scene.cell_of[name] != number % cells:
            await scene.own[scene.cell_of[name]].retire_replica(name)
            scene.cell_of[name] = number % cells
    scene.cells = cells
    await scene.beat()
    await scene.beat()


async def three_beats(scene: CellScene) -> None:
    """Let all routers hear of a number, a second apart."""
    for _ in range(3):
        await scene.beat()
        scene.clock.advance(1.0)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("seconds", [0.0, 5.0, 11.0, 60.0])
async def test_a_key_is_found_after_the_number_of_cells_has_changed(before: int, after: int, seconds: float) -> None:
    scene = await opened(before, replicas=8)
    tenants = [f"tenant-{number}" for number in range(8)]
    for tenant in tenants:
        new = entry(f"first/{tenant}", tenant=tenant, client_key="key", digest="d")
        await scene.queue.submit("A", new)
    await change(scene, after)
    for _ in range(round(seconds)):
        scene.clock.advance(1.0)
        await scene.beat()
    for tenant in tenants:
        for router in ROUTERS:
            again = entry(f"{router}/{tenant}", tenant=tenant, client_key="key", digest="d")
            answer = await scene.queue.submit(router, again)
            assert answer.known is not None, (tenant, router)
            assert f"first/{tenant}" == answer.known.request_id
    await scene.close()


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("seconds", [0, 1, 3, 6])
async def test_two_routers_that_learn_of_it_one_after_the_other_take_a_key_once(before: int, seconds: int) -> None:
    """The second one is not told of it, and reads the record."""
    scene = await opened(before, replicas=8)
    await scene.queue.submit("A", entry("before"))
    scene.layouts["A"].change(4)
    await scene.beat()
    for _ in range(seconds):
        scene.clock.advance(1.0)
        await scene.beat()
    for number in range(30):
        tenant = f"tenant-{number}"
        answers = [
            await scene.queue.submit(router, entry(f"{router}{number}", tenant=tenant, client_key="k", digest="d"))
            for router in (ROUTERS if number % 2 else ROUTERS[::-1])
        ]
        assert [True, False] == [answer.known is None for answer in answers]
    await scene.close()


async def test_homes_in_a_new_pool_move_at_all_routers_at_once() -> None:
    """It has no keys, so nothing is looked for in former homes, and no tenant has to wait for its own."""
    scene = await opened(1, replicas=8)
    scene.layouts["A"].change(4)
    await three_beats(scene)
    assert [4, 4] == [layout.homes for layout in scene.layouts.values()]
    assert [[], []] == [queue._homes.former("acme") for queue in scene.routers_queues.values()]
    await scene.close()


async def test_the_ledger_and_what_runs_of_former_cells_are_still_seen() -> None:
    scene = await opened(4, replicas=8)
    names = [f"q{number}" for number in range(8)]
    for name in names:
        await scene.queue.submit("A", entry(name))
    await change(scene, 1)
    late = CellQueue(POOL, scene.open_cell)
    assert 8 == (await late.observe()).running
    for name in names[:4]:
        assert name == await scene.queue.cancel("B", "acme", name)
    for grant in [grant for grant in scene.grants if grant.request_id in names]:
        await scene.queue.release("A", grant.request_id, grant.attempt, Settlement(1, requests=1))
    assert 0 == (await late.observe()).running
    assert 8 == sum(line.requests for line in await late.usage("", 0, 10**6))
    await late.close()
    await scene.close()


async def test_the_number_is_on_record_again_after_the_store_lost_it() -> None:
    scene = await opened(4, replicas=8)
    await change(scene, 3)
    scene.clock.advance(60.0)
    await scene.beat()
    scene.store.restart("another", forget=True)
    await scene.beat()
    found = await scene.own[0].cells(0)
    assert (3, 3, 4, -1) == (found.count, found.before, found.most, found.age_ms)
    late = CellQueue(POOL, scene.open_cell)
    assert 8 == len((await late.observe()).replicas)
    await late.close()
    await scene.close()


async def test_a_router_with_another_number_follows_the_newest() -> None:
    scene = await opened(2, replicas=8)
    scene.layouts["B"].change(4)
    await three_beats(scene)
    assert [4, 4] == [scene.layouts[router].count for router in ROUTERS[:2]]
    assert scene.layouts["A"].homes == scene.layouts["B"].homes
    scene.clock.advance(60.0)
    await scene.beat()
    assert [4, 4] == [scene.layouts[router].homes for router in ROUTERS[:2]]
    await scene.close()


async def test_a_router_that_has_not_read_the_registry_brings_no_old_number_back() -> None:
    """Its settings may be older. It follows the record, and notes its own number once it knows that it holds."""
    scene = await opened(2, replicas=8)
    await change(scene, 4)
    scene.layouts["B"] = late = Layout(2, clock=scene.clock.monotonic)
    late.sure = False
    queue = CellQueue(POOL, scene.open_cell, CellsSeen(late))
    for _ in range(3):
        scene.clock.advance(3.0)
        await queue.heartbeat_router(RouterBeat("late", ()))
        await scene.beat()
    assert (4, 4) == (late.count, scene.layouts["A"].count)
    late.confirm()
    await queue.heartbeat_router(RouterBeat("late", ()))
    scene.clock.advance(3.0)
    await scene.beat()
    assert (2, 2) == (late.count, scene.layouts["A"].count)
    await queue.close()
    await scene.close()


async def test_homes_stay_when_the_number_changes_twice_in_a_moment() -> None:
    """One router hears of both changes, the other of none."""
    scene = await opened(2, replicas=8)
    scene.clock.advance(60.0)
    await scene.beat()
    homes = set[int]()
    for count in (4, 2):
        scene.layouts["A"].change(count)
        for _ in range(3):
            await scene.beat()
            scene.clock.advance(1.0)
            homes |= {layout.homes for layout in scene.layouts.values()}
    assert {2} == homes
    await scene.close()


@pytest.mark.parametrize("seed", range(3))
async def test_a_change_gives_a_tenant_at_most_one_bucket_more(seed: int) -> None:
    scene, draw = await opened(1, replicas=8), random.Random(seed)
    quota, tokens, began = Quota(tokens_per_minute=600, strict=True), 0, scene.clock.monotonic()
    for number in range(240):
        if number == 80:
            await change(scene, 4)
        new = entry(f"q{number}", tenant="t1", prompt_tokens=20, expected_tokens=20, max_tokens=20, quota=quota)
        try:
            answer = await scene.queue.submit(router := draw.choice(ROUTERS), new)
        except QuotaExceededError:
            pass
        else:
            assert answer.grant is not None
            tokens += 40
            await scene.queue.release(router, new.request_id, answer.grant.attempt, Settlement(20))
        scene.clock.advance(0.25)
        if not number % 4:
            await scene.beat()
    most = 600 + 10 * (scene.clock.monotonic() - began)
    assert most - 100 < tokens <= most + 600
    await scene.close()
