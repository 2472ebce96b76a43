"""A pool of several cells, served by real routers and replicas over one Redis in this process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from cluster.errors import QueueUnavailableError
from cluster.queue.cells.names import cell_name
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.keys import pool_key
from penstock.models import ReplicaState
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.dispatch.streams import move_on, stand
from tests.support.stack import Stack, collect, ids_of, request, running_stack, sim_pool, stream_request
from tests.support.traffic import traffic
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Two routers, and two cells with a replica each."""
    folder: Path = tmp_path_factory.mktemp("cells")
    pools = {"demo": {**sim_pool(max_num_seqs=4, base_ms=2.0), "replicas": 2, "cells": 2}}
    async with running_stack(folder, routers=2, replicas=2, pools=pools) as running:
        await until(lambda: [1, 1] == _members(running))
        yield running


def _members(stack: Stack) -> list[int]:
    """Count the replicas of each cell, as the first router sees them."""
    return [len(view.replicas) for view in stack.routers[0].pools["demo"].cells.seen.views()]


async def _served(queue: RedisQueue) -> bool:
    return sum(line.requests.gpu_seconds for line in await queue.costs(0, 10**7)) > 0


async def test_each_cell_gets_a_replica_and_all_of_them_take_work(stack: Stack) -> None:
    await asyncio.gather(*(stack.inference(number % 2).Generate(request(max_tokens=8)) for number in range(24)))
    for cell in (0, 1):
        queue = stack.queue(cell_name("demo", cell))
        view = await queue.observe()
        assert [ReplicaState.READY] == [each.state for each in view.replicas]
        # Routers settle together, a moment after the answers.
        await until(partial(_served, queue))
        await queue.close()


async def test_more_requests_than_slots_are_served_by_all_cells_in_order(stack: Stack) -> None:
    calls = [stack.inference(number % 2).StreamGenerate(stream_request(max_tokens=20)) for number in range(40)]
    ends = [events[-1] for events in await asyncio.gather(*(collect(call) for call in calls))]
    assert [20] * 40 == [end.finished.usage.output_tokens for end in ends]
    pools = [router.pools["demo"] for router in stack.routers]
    await until(lambda: not any(len(pool.releases) for pool in pools))
    queue = stack.factory().pool("demo")
    view = await queue.observe()
    assert (0, 0) == (view.running, sum(view.waiting))
    await queue.close()


async def test_a_request_is_cancelled_at_another_router(stack: Stack) -> None:
    call = stack.inference(0).StreamGenerate(stream_request(max_tokens=2000))
    first = await call.read()
    name = first.queued.request_id or first.started.request_id
    assert name == (await stack.inference(1).Cancel(api.CancelRequest(request_id=name))).request_id
    assert types.FINISH_REASON_CANCELLED == (await collect(call))[-1].finished.choices[0].finish_reason


async def test_a_cancel_ends_choices_in_a_cell_that_is_away(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the request ends all of it, without a word of that cell."""
    monkeypatch.setattr(stack.routers[0].pools["demo"].cells.queue, "_place", lambda entry: int(entry.request_id[-1]))
    call = stack.inference(0).StreamGenerate(stream_request(n=2, max_tokens=2000, ignore_eos=True))
    events = [await call.read()]
    while not all(ids_of(events, index) for index in (0, 1)):
        events.append(await call.read())
    name = next(event.started.request_id for event in events if event.HasField("started"))
    called = stack.routers[1].pools["demo"].cells.queue
    with monkeypatch.context() as cut_off:
        cut_off.setattr(called.cell(1), "cancel", no_answer)
        assert name == (await stack.inference(1).Cancel(api.CancelRequest(request_id=name))).request_id
        ends = (await collect(call))[-1].finished.choices
    assert [types.FINISH_REASON_CANCELLED] * 2 == [choice.finish_reason for choice in ends]


async def no_answer(*_arguments: object, **_named: object) -> None:
    """Fail as a call of a cell that is away."""
    raise QueueUnavailableError("cut off")


async def test_the_ledger_adds_the_cells_up(stack: Stack) -> None:
    pool = stack.routers[0].pools["demo"]
    before = sum(line.requests for line in await pool.ledger.usage("", 0, 10**6))
    await asyncio.gather(*(stack.inference(0).Generate(request(max_tokens=4)) for _ in range(10)))
    await until(lambda: not len(pool.releases))
    lines = await pool.ledger.usage("", 0, 10**6)
    assert before + 10 == sum(line.requests for line in lines)
    assert 1 == len({line.day for line in lines}) == len(lines)


async def test_the_number_of_cells_changes_under_load(tmp_path: Path) -> None:
    """One cell becomes three and then two. No request fails, and no replica is lost."""
    pools = {"demo": {**sim_pool(max_num_seqs=2, base_ms=2.0), "replicas": 3}}
    async with running_stack(tmp_path, routers=2, replicas=3, pools=pools) as stack, traffic(stack, clients=8) as load:
        for cells in (3, 2, 1):
            change(stack, cells)
            await until(lambda cells=cells: occupied(stack) == cells)
            served = load.ended
            await until(lambda served=served: load.ended >= served + 30)
        assert [] == load.failures
    assert [] == load.failures


async def test_what_waits_is_in_one_place_at_a_router_that_hears_of_more_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own settings say one. Then the store has another identity, and all that waits is put in line again."""
    pools = {"demo": {**sim_pool(max_num_seqs=1), "replicas": 3}}
    async with running_stack(tmp_path, routers=2, replicas=3, pools=pools) as stack:
        pool = stack.routers[0].pools["demo"]
        # A look at the records would find out, too, some seconds later.
        monkeypatch.setattr(pool.reconciler, "look", AsyncMock())
        stand(stack)
        calls = [stack.inference().StreamGenerate(stream_request(max_tokens=5)) for _ in range(12)]
        await until(lambda: 9 == len(pool.choices.waiting()) and all(each.run_id for each in pool.choices.waiting()))
        settings = stack.settings.pools["demo"].model_copy(update={"cells": 3})
        stack.routers[1].pools["demo"].change(settings)
        await until(lambda: 3 == len(pool.cells.seen.views()))
        beat = pool.beat
        await until(lambda: pool.beat is not beat)
        # Where a new request goes.
        monkeypatch.setattr(pool.cells.queue, "_place", lambda _entry: 2)
        stack.store.restart()
        await until(lambda: 0 < pool.resubmit.submitted)

        places = defaultdict[bytes, list[int]](list)
        for cell in range(3):
            for name in stack.store.execute("HGETALL", pool_key(cell_name("demo", cell), "entries"))[::2]:
                places[name].append(cell)
        assert [1] * 12 == [len(cells) for cells in places.values()]
        move_on(stack)
        for call in calls:
            await collect(call)


def change(stack: Stack, cells: int) -> None:
    """Change the number of cells everywhere, as an entry of the registry does."""
    settings = stack.settings.pools["demo"].model_copy(update={"cells": cells})
    for router in stack.routers:
        router.pools["demo"].change(settings)
    for replica in stack.replicas:
        replica._layout.change(cells)


def occupied(stack: Stack) -> int:
    """Count the cells that have replicas, once every router sees all replicas in those of now."""
    found = []
    for router in stack.routers:
        pool = router.pools["demo"]
        views = pool.cells.seen.views()
        members = [view.replicas for view in views if view.replicas]
        found.append(len(members) if len(stack.replicas) == sum(map(len, members)) else 0)
    return min(found)


async def test_waiting_requests_go_to_a_cell_with_room(stack: Stack) -> None:
    """All come in one cell, because its replica has their prompts' beginning."""
    pool = stack.routers[0].pools["demo"]
    seen = pool.cells.seen
    pool.cells.queue._place = lambda _entry: 0  # type: ignore[method-assign]
    before = pool.moves.moved
    stand(stack)
    calls = [stack.inference(0).StreamGenerate(stream_request(max_tokens=300, ignore_eos=True)) for _ in range(12)]
    await until(lambda: pool.moves.moved >= before + 4)
    del pool.cells.queue._place
    move_on(stack)
    ends = [events[-1] for events in await asyncio.gather(*(collect(call) for call in calls))]
    assert [300] * 12 == [end.finished.usage.output_tokens for end in ends]
    assert {0, 1} == {view.cell for view in seen.views()}
