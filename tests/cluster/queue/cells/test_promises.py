"""What a pool promises holds over cells, exactly or within a stated bound of the pool of one cell."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from cluster.errors import KeyReusedError, QueueFullError, QuotaExceededError
from cluster.models import Windows
from cluster.queue.cells.cell import CellOrders
from cluster.queue.cells.choice import home
from cluster.queue.entries import Mark, QueueLimits, Quota, Settlement, Where
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from cluster.redis.keys import pool_key
from penstock.models import ReplicaState, RequestClass
from tests.cluster.queue.backends import POOL, entry
from tests.cluster.queue.cells.scene import ROUTERS, CellScene
from tests.cluster.queue.shop import Shop, service_s
from tests.cluster.queue.test_fairness import jain

TWO = Windows(sequences=2, kv_tokens=10**9, prefill_tokens=10**9)
CELLS = [1, 2, 4]


async def opened(cells: int, replicas: int = 4, windows: Windows = TWO, **settings: object) -> CellScene:
    return await CellScene(cells, **settings).open(replicas, windows)  # type: ignore[arg-type]


@pytest.mark.parametrize("cells", CELLS)
async def test_tenants_share_by_tokens_within_a_few_percent_of_one_cell(cells: int) -> None:
    """Jain's index of three tenants, one of which sends ten times as much, and one long prompts."""
    scene = await opened(cells)
    shop = Shop(scene)
    for turn in range(60):
        for tenant, count, prompt in (("loud", 10, 100), ("plain", 1, 100), ("long", 1, 800)):
            for _ in range(count):
                shop.job(tenant, turn * 0.01, prompt, 50)
    tenants = ("loud", "plain", "long")
    least = min(sum(service_s(job) for job in shop.jobs.values() if job.entry.tenant == each) for each in tenants)

    await shop.run(1.5 * least / 8)

    served = shop.served()
    for job in shop.jobs.values():
        if job.started >= 0 > job.ended:
            part = (shop.now - job.started) / service_s(job)
            served[job.entry.tenant] = served.get(job.entry.tenant, 0) + (job.entry.prompt_tokens + job.used) * part
    assert jain([served[each] for each in tenants]) >= 0.93
    await scene.close()


@pytest.mark.parametrize("cells", CELLS)
async def test_a_class_has_its_reserved_share_over_all_cells(cells: int) -> None:
    scene = await opened(cells, limits=QueueLimits(class_shares=(0.0, 0.0, 0.25), preempt_after_ms=0))
    shop = Shop(scene)
    for turn in range(400):
        for request_class in (RequestClass.INTERACTIVE, RequestClass.BATCH):
            shop.job(request_class.name, turn * 0.02, 100, 20, request_class=request_class)

    await shop.run(25.0)

    served = shop.served()
    assert 0.25 == pytest.approx(served["BATCH"] / sum(served.values()), abs=0.04)
    await scene.close()


@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("seed", range(3))
async def test_a_strict_quota_is_exact_whatever_the_routers_and_cells(cells: int, seed: int) -> None:
    """In any time T at most a bucket and rate x T are granted."""
    scene, draw = await opened(cells, replicas=8), random.Random(seed)
    quota = Quota(tokens_per_minute=3000, strict=True)
    granted: list[tuple[float, int]] = []
    for number in range(300):
        prompt, most = draw.randint(1, 60), draw.randint(1, 60)
        new = entry(f"q{number}", prompt_tokens=prompt, expected_tokens=most, max_tokens=most, quota=quota)
        router = draw.choice(ROUTERS)
        try:
            answer = await scene.queue.submit(router, new)
        except QuotaExceededError:
            pass
        else:
            if answer.grant is not None:
                granted.append((scene.clock.monotonic(), prompt + most))
                await scene.queue.release(router, answer.grant.request_id, answer.grant.attempt, Settlement(most))
        scene.clock.advance(draw.random() * 0.4)
        if not number % 4:
            await scene.beat()
    for first, (since, _) in enumerate(granted):
        tokens = 0
        for at, used in granted[first:]:
            tokens += used
            assert tokens <= 3000 + 50 * (at - since) + 1
    assert sum(used for _, used in granted) > 3000
    await scene.close()


@pytest.mark.parametrize("cells", CELLS)
async def test_a_bound_on_concurrency_is_exact(cells: int) -> None:
    scene = await opened(cells, replicas=8)
    quota, open_now = Quota(concurrency=5), dict[str, tuple[str, str]]()
    draw = random.Random(3)
    most = 0
    for number in range(200):
        router = draw.choice(ROUTERS)
        try:
            await scene.queue.submit(router, entry(f"q{number}", quota=quota))
            open_now[f"q{number}"] = router, f"base-q{number}.1"
        except QuotaExceededError:
            assert 5 == len(open_now)
        most = max(most, len(open_now))
        if open_now and draw.random() < 0.4:
            name = draw.choice(sorted(open_now))
            owner, attempt = open_now.pop(name)
            await scene.queue.release(owner, name, attempt, Settlement(1))
            await scene.queue.withdraw(owner, name, None)
    assert 5 == most
    await scene.close()


@pytest.mark.parametrize("cells", CELLS)
async def test_a_key_has_one_request_however_many_routers_get_it(cells: int) -> None:
    scene = await opened(cells)
    for number in range(40):
        tenant = f"tenant-{number % 7}"
        calls = [
            scene.queue.submit(router, entry(f"{router}{number}", tenant=tenant, client_key=f"k{number}", digest="d"))
            for router in ROUTERS
        ]
        one, other = await asyncio.gather(*calls)
        assert [True, False] == sorted([one.known is None, other.known is None], reverse=True)
        with pytest.raises(KeyReusedError):
            await scene.queue.submit("A", entry(f"x{number}", tenant=tenant, client_key=f"k{number}", digest="other"))
    await scene.close()


@pytest.mark.parametrize("cells", CELLS)
async def test_a_key_is_kept_while_any_choice_of_its_request_goes_on(cells: int) -> None:
    """The first choice alone carries the key, and ends first. A repeat must find the others, or it would run again."""
    scene = await opened(cells, replicas=8)
    for number in range(10):
        key = {"tenant": f"tenant-{number}", "client_key": "key", "digest": "d"}
        await scene.queue.submit("A", entry(f"q{number}/0", **key))
        for index in (1, 2, 3):
            await scene.queue.submit("A", entry(f"q{number}/{index}", **{**key, "client_key": ""}))
        await scene.queue.withdraw("A", f"q{number}/0", None)
        known = (await scene.queue.submit("B", entry(f"again{number}", **key))).known
        assert known is not None
        assert (f"q{number}", True) == (known.request_id, known.live)
    await scene.close()


@pytest.mark.parametrize("cells", CELLS)
async def test_a_kept_result_is_found_at_any_router(cells: int) -> None:
    scene = await opened(cells)
    await scene.queue.submit("A", entry("q", client_key="key", digest="d"))
    await scene.queue.release("A", "q", "base-q.1", Settlement(3))
    assert await scene.queue.finish_key("A", "acme", "key", "q", b"result")
    found = await scene.routers_queues["B"].find_key("acme", "key", "p", "d")
    assert ("q", b"result") == (found.request_id, found.result)
    await scene.close()


@pytest.fixture
async def full() -> AsyncIterator[CellScene]:
    """Two cells with a replica of two slots each, and a line."""
    scene = await opened(2, replicas=2)
    for number in range(12):
        await scene.queue.submit(ROUTERS[number % 2], entry(f"q{number}"))
    await scene.beat()
    yield scene
    await scene.close()


async def test_an_entry_is_cancelled_and_adopted_at_another_router_whatever_its_cell(full: CellScene) -> None:
    for number in range(0, 12, 2):
        adopted = await full.queue.adopt("B", "acme", f"q{number}")
        assert adopted is not None
        assert None is await full.queue.adopt("B", "other", f"q{number}")
    for number in range(12):
        assert f"q{number}" == await full.queue.cancel("B", "acme", f"q{number}")
    assert None is await full.queue.cancel("A", "acme", "unknown")


async def test_all_choices_of_a_request_are_cancelled(full: CellScene) -> None:
    for index in range(4):
        await full.queue.submit("A", entry(f"many/{index}"))
    assert "many" == await full.queue.cancel("B", "acme", "many")
    orders = {order.request_id for order in (await full.queue.collect("A")).orders}
    assert {f"many/{index}" for index in range(4)} == orders


async def test_places_in_line_count_the_whole_pool(full: CellScene) -> None:
    """A place is that of the cell times the cells, as far as the cells are alike."""
    reply = await full.beat_router("A", positions_of=tuple(f"q{number}" for number in range(0, 12, 2)))
    last = await full.queue.submit("A", entry("last"))
    assert 8 == sum(await full.waiting()) - 1
    assert 6 <= last.position <= 10
    assert set(reply.positions.values()) <= set(range(0, 9, 2))


async def test_a_mark_of_one_router_reaches_the_other_with_its_next_answer(full: CellScene) -> None:
    await full.queue.quarantine("A", Mark(b"content", "incident", 60_000))
    reply = await full.beat_router("B")
    found = await full.queue.quarantine("B")
    assert reply.marks == found.count > 0
    assert [b"content"] == [mark.content for mark in found.marks]
    answer = await full.queue.submit("B", entry("next"))
    assert found.count == answer.marks


async def test_the_line_of_the_pool_is_bounded_within_the_arrivals_of_a_heartbeat() -> None:
    scene = await opened(2, replicas=2, max_waiting=10)
    limits = []
    for number in range(40):
        if not number % 5:
            await scene.beat()
        try:
            await scene.queue.submit(ROUTERS[number % 2], entry(f"q{number}"))
        except QueueFullError as error:
            limits.append(error.limit)
    assert 10 <= sum(await scene.waiting()) < 10 + 5
    assert {10} == set(limits)
    await scene.close()


@pytest.mark.parametrize("cells", CELLS)
async def test_the_ledgers_of_all_cells_add_up_to_what_was_settled(cells: int) -> None:
    scene = await opened(cells)
    for number in range(30):
        name = f"q{number}"
        answer = await scene.queue.submit("A", entry(name, tenant=f"t{number % 3}"))
        assert answer.grant is not None
        settled = Settlement(7, requests=1, prompt_tokens=10, gpu_seconds=0.5, cost=0.25)
        await scene.queue.release("A", name, answer.grant.attempt, settled)
    queue = scene.routers_queues["B"]
    lines = await queue.usage("", 0, 10**6)
    assert ["t0", "t1", "t2"] == [line.tenant for line in lines]
    assert [10] * 3 == [line.requests for line in lines]
    assert [70] * 3 == [line.output_tokens for line in lines]
    assert [2.5] * 3 == [line.cost for line in lines]
    assert [[10]] * 3 == [[use.requests for use in line.hours] for line in lines]
    await scene.close()


@pytest.mark.parametrize("seed", range(4))
async def test_an_entry_is_never_in_two_places(seed: int) -> None:
    """Random calls, moves between cells among them."""
    scene, draw = await opened(3, replicas=3), random.Random(seed)
    owners = dict[str, str]()
    for number in range(250):
        router = draw.choice(ROUTERS)
        mine = sorted(name for name, owner in owners.items() if owner == router)
        queue = scene.routers_queues[router]
        match draw.choice(("submit", "submit", "end", "move", "withdraw", "adopt", "beat")):
            case "submit":
                await scene.queue.submit(router, entry(name := f"q{number}"))
                owners[name] = router
            case "move" if mine and (name := draw.choice(mine)) in {
                held.request_id for held in (await queue.holdings(router)).page if held.where.value == "line"
            }:
                await queue.move(router, name, entry(name), draw.randrange(3))
            case "withdraw" if mine:
                await scene.queue.withdraw(router, name := draw.choice(mine), None)
                owners.pop(name)
            case "adopt" if owners:
                name = draw.choice(sorted(owners))
                if await scene.queue.adopt(router, "acme", name) is not None:
                    owners[name] = router
            case "beat":
                scene.clock.advance(0.2)
                await scene.beat()
            case "end" if scene.grants:
                grant = draw.choice(scene.grants)
                if owners.get(grant.request_id) == router:
                    await scene.queue.release(router, grant.request_id, grant.attempt, Settlement(1))
        places = await scene.places()
        assert [] == [name for name, cells in places.items() if len(set(cells)) > 1 and name in owners]
    await scene.close()


def test_the_tenants_of_the_tests_have_different_homes() -> None:
    assert 4 == len({home(f"tenant-{number}", 4) for number in range(7)})


async def test_the_autoscalers_orders_reach_all_cells_and_end_there(full: CellScene) -> None:
    async def told() -> list[tuple[bytes | None, str]]:
        replies = [await queue.heartbeat_router(RouterBeat("A", ())) for queue in full.own]
        return [(reply.point, reply.relief) for reply in replies]

    until = full.clock.wall_ms() + 3_000
    orders = ("point", "point", "relief", "preempt_batch", "relief_until", until, "standby", "\nr1\n")
    full.store.execute("HSET", pool_key(POOL, "control"), *orders, "standby_until", until)
    await full.beat()
    assert [(b"point", "preempt_batch")] * 2 == await told()
    assert [False, True] == [await stands_by(full, name) for name in ("r0", "r1")]
    full.clock.advance(3.5)
    await full.beat()
    assert [(b"point", "none")] * 2 == await told()
    assert [None, None] == [await stands_by(full, name) for name in ("r0", "r1")]


async def stands_by(scene: CellScene, name: str) -> bool | None:
    """Return what a replica hears in its cell."""
    beat = ReplicaBeat(name, b"record", ReplicaState.READY, TWO, ())
    return (await scene.own[scene.cell_of[name]].heartbeat_replica(beat)).standby


async def test_orders_end_by_themselves_where_nobody_brings_them_any_more(full: CellScene) -> None:
    await full.own[1].copy_orders(CellOrders(b"point", "shed", 60_000, b"\nr1\n", 60_000))
    assert "shed" == (await full.own[1].heartbeat_router(RouterBeat("B", ()))).relief
    full.clock.advance(4.0)
    assert "none" == (await full.own[1].heartbeat_router(RouterBeat("B", ()))).relief


async def charge(scene: CellScene, cell: int, cost: float) -> None:
    """Charge a tenant in a cell."""
    name = f"before-{cell}"
    answer = await scene.own[cell].submit("A", entry(name))
    assert answer.grant is not None
    await scene.own[cell].release("A", name, answer.grant.attempt, Settlement(1, requests=1, cost=cost))


@pytest.mark.parametrize("budget", ["cost_per_day", "cost_per_month"])
async def test_a_budget_counts_what_was_charged_in_all_cells(budget: str) -> None:
    """The tenant had no budget before, so its requests went anywhere."""
    scene = await opened(4)
    await scene.beat()
    for cell in range(4):
        await charge(scene, cell, 1.0)
    answer = await scene.queue.submit("A", entry("a", quota=Quota(**{budget: 5.0})))
    assert answer.budget is not None
    assert (budget, 4.0, 5.0) == (answer.budget.budget, answer.budget.used, answer.budget.limit)
    for limit in (4.0, 3.0, 0.5):
        with pytest.raises(QuotaExceededError) as refused:
            await scene.queue.submit("B", entry("b", quota=Quota(**{budget: limit})))
        error = refused.value
        assert ("demo", budget, limit) == (error.pool, error.quota, error.limit)
        assert limit <= (error.used or 0.0) <= 4.0
    await scene.close()


async def test_a_tenants_bound_on_waiting_requests_is_told_as_it_is_set() -> None:
    scene = await opened(2, replicas=2)
    refused: QueueFullError | None = None
    for number in range(20):
        try:
            await scene.queue.submit("A", entry(f"q{number}", quota=Quota(max_waiting=5)))
        except QueueFullError as error:
            refused = error
    assert refused is not None
    assert ("demo", 5, "acme") == (refused.pool, refused.limit, refused.tenant)
    assert 5 <= sum(await scene.waiting()) <= 6
    await scene.close()


async def test_an_entry_that_came_back_is_known_by_its_place_and_not_by_old_news(full: CellScene) -> None:
    """Router B took it over and moved it. The news of that waits in its old cell when A takes it over again."""
    waiting = {name: cells[0] for name, cells in (await full.places()).items()}
    held = [each for queue in full.own for each in (await queue.holdings("A")).page if each.where is Where.LINE]
    for name in (each.request_id for each in held):
        before = waiting[name]
        assert await full.queue.adopt("B", "acme", name) is not None
        await full.routers_queues["B"].move("B", name, entry(name), 1 - before)
        assert await full.queue.adopt("A", "acme", name) is not None
        queue, after = full.routers_queues["A"], b""
        while True:
            after = (await queue.holdings("A", after)).last
            if not after:
                break
        assert 1 - before == queue.seen.entries.get(name)
        await full.queue.withdraw("A", name, None)
        assert name not in await full.places()
    assert held
