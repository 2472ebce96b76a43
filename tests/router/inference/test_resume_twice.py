"""Clients that come back while their request changes hands: cancelled, asked for twice, or granted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.dispatch.pool import Pool
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.links.link import ReplicaLink
from tests.router.dispatch.streams import error_of, move_on, stand
from tests.router.links.parts import kill, newest_token, read_until
from tests.support.stack import Stack, collect, ids_of, running_stack, stream_request
from tests.support.waiting import until

LONG = {"max_tokens": 600, "ignore_eos": True}


@pytest.fixture
async def stack(tmp_path: Path, store_url: str) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path, redis_url=store_url, routers=2, sim={"base_ms": 5.0}) as running:
        yield running


def again(begun: list[api.StreamGenerateResponse], **sampling: Any) -> api.StreamGenerateRequest:
    """Ask for the rest of a stream."""
    wanted = stream_request(**sampling)
    received = [len(ids_of(begun, index)) for index in range(sampling.get("n", 1))]
    wanted.resume.CopyFrom(api.Resume(resume_token=newest_token(begun), received_tokens=received))
    return wanted


def request_of(begun: list[api.StreamGenerateResponse]) -> str:
    return next(event.started.request_id for event in begun if event.HasField("started"))


def tokens_of(events: list[api.StreamGenerateResponse], index: int = 0) -> int:
    return sum(len(event.delta.token_ids) for event in events if event.delta.choice_index == index)


def unreached(stack: Stack) -> tuple[Pool, ReplicaLink]:
    """Let the second router's link look down, as while it reconnects; what runs stays as it is."""
    pool = stack.routers[1].pools["demo"]
    link = pool.replicas.link(stack.replicas[0].plan.replica_id)
    assert link is not None
    link._set_up(False)
    return pool, link


async def test_who_is_cancelled_while_its_replica_is_not_reached_does_not_run_on(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(stream_request(**LONG))
    begun = await read_until(first, 20)
    stand(stack)
    pool, link = unreached(stack)
    second = stack.inference(1).StreamGenerate(again(begun, **LONG))
    await until(lambda: pool.replicas._awaited.total() == 1)
    await stack.inference(1).Cancel(api.CancelRequest(request_id=request_of(begun)))
    link._set_up(True)
    move_on(stack)

    events = await collect(second)
    assert [types.FINISH_REASON_CANCELLED] == [end.finish_reason for end in events[-1].finished.choices]
    assert not tokens_of(events)
    with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
        await collect(first)


@pytest.mark.parametrize("reached", ["then", "later"])
async def test_work_that_is_cancelled_while_its_replica_is_not_reached_stops_when_it_is(
    tmp_path: Path, reached: str
) -> None:
    """Not only when the replica's grace is over: until then it would run in a slot that others have."""
    grace_s = 60.0 if reached == "then" else 0.5
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 5.0}) as stack:
        table = stack.replicas[0].table
        stack.routers[1].pools["demo"].adoption._attach_grace_s = grace_s
        table._grace_s = 60.0
        first = stack.inference(0).StreamGenerate(stream_request(max_tokens=4_000, ignore_eos=True))
        begun = await read_until(first, 20)
        await kill(stack.routers[0])
        pool, link = unreached(stack)
        second = stack.inference(1).StreamGenerate(again(begun, max_tokens=4_000, ignore_eos=True))
        await until(lambda: pool.replicas._awaited.total() == 1)
        await stack.inference(1).Cancel(api.CancelRequest(request_id=request_of(begun)))
        if reached == "later":
            await until(lambda: pool.replicas._awaited.total() == 0)
            assert link._wire is not None
            link._begin(link._wire)
        else:
            link._set_up(True)

        await collect(second)
        await until(lambda: table.sequences == 0, 5.0)
        # Its code comes after what was sent before, which somebody has to read.
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await collect(first)
        stack.routers.pop(0)


async def test_of_two_calls_that_wait_for_the_replica_the_later_one_gets_the_rest(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(stream_request(**LONG))
    begun = await read_until(first, 20)
    stand(stack)
    pool, link = unreached(stack)
    calls = []
    for waiting in (1, 2):
        calls.append(stack.inference(1).StreamGenerate(again(begun, **LONG)))
        await until(lambda waiting=waiting: pool.replicas._awaited.total() == waiting)
    link._set_up(True)
    move_on(stack)

    events = await collect(calls[1])
    assert 600 == tokens_of(begun) + tokens_of(events)
    assert 1 == len(events[-1].finished.receipt.attempts)
    for call in (first, calls[0]):
        with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
            await collect(call)


async def test_a_grant_that_nobody_reported_is_not_started_again_while_its_replica_is_not_reached(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its router died before its next heartbeat, and so it is in the mail of the one that goes on."""
    had, table = stack.routers[0].pools["demo"], stack.replicas[0].table
    monkeypatch.setattr(had._membership, "started", lambda *_: None)
    monkeypatch.setattr(table, "progress", lambda: ())
    first = stack.inference(0).StreamGenerate(stream_request(**LONG))
    begun = await read_until(first, 1)
    await kill(stack.routers[0])
    pool, link = unreached(stack)
    second = stack.inference(1).StreamGenerate(again(begun, **LONG))
    await until(lambda: pool.replicas._awaited.total() == 1)
    told, beat = list[Any](), pool._membership._keeper._renewed_at
    monkeypatch.setattr(pool.releases, "refuse", lambda *refused: told.append(refused))
    await until(lambda: pool._membership._keeper._renewed_at > beat)
    await pool.mailbox._collect()
    link._set_up(True)

    events = await collect(second)
    assert not told
    assert 600 == tokens_of(begun) + tokens_of(events)
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await collect(first)
    stack.routers.pop(0)


async def test_choices_that_are_taken_over_one_after_another_all_go_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router that has them hears of the first one, and must not stop the second."""
    wanted = {**LONG, "n": 2}
    first = stack.inference(0).StreamGenerate(stream_request(**wanted))
    begun = await read_until(first, 40)
    had, pool = stack.routers[0].pools["demo"], stack.routers[1].pools["demo"]
    second = had.choices[f"{request_of(begun)}/1"]
    adopt = pool.adoption.adopt

    async def in_turn(choice: Choice) -> Any:
        if choice.index == 1:
            await until(lambda: second.error is not None or second.state is ChoiceState.STOPPING)
        return await adopt(choice)

    monkeypatch.setattr(pool.adoption, "adopt", in_turn)
    events = await collect(stack.inference(1).StreamGenerate(again(begun, **wanted)))

    assert [600, 600] == [tokens_of(begun, index) + tokens_of(events, index) for index in range(2)]
    assert 2 == len(events[-1].finished.receipt.attempts)
    with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
        await collect(first)
    # What was left is the other call's, which has acknowledged it.
    await until(lambda: not stack.replicas[0].table._attempts)


async def test_choices_that_wait_with_output_go_on_in_a_call_that_takes_them_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that has their output hears of the first one, and must keep that of the second for the other call."""
    async with running_stack(tmp_path, sim={"base_ms": 5.0}) as stack:
        wanted = {**LONG, "n": 2}
        first = stack.inference(0).StreamGenerate(stream_request(**wanted))
        begun = await read_until(first, 40)
        pool = stack.routers[0].pools["demo"]
        had = list(pool.choices.values())
        await stack.kill_replica(0)
        await until(lambda: all(choice.state.waits for choice in had))
        adopt = pool.adoption.adopt

        async def in_turn(choice: Choice) -> Any:
            if choice.index == 1:
                await until(lambda: had[0].error is not None)
                for _ in range(20):
                    await asyncio.sleep(0)
            return await adopt(choice)

        monkeypatch.setattr(pool.adoption, "adopt", in_turn)
        second = stack.inference(0).StreamGenerate(again(begun, **wanted))
        with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
            await collect(first)
        await stack.add_replica()
        events = await collect(second)

        assert [600, 600] == [tokens_of(begun, index) + tokens_of(events, index) for index in range(2)]


async def test_all_choices_of_a_router_that_stops_go_on(stack: Stack) -> None:
    """They are left one after another, and the first one's end is no reason to stop the second."""
    wanted = {**LONG, "n": 2}
    first = stack.inference(0).StreamGenerate(stream_request(**wanted))
    begun = await read_until(first, 40)
    assert 1 == stack.routers[0]._inference.park()  # type: ignore[attr-defined]
    events = await collect(stack.inference(1).StreamGenerate(again(begun, **wanted)))
    assert [600, 600] == [tokens_of(begun, index) + tokens_of(events, index) for index in range(2)]
    assert 2 == len(events[-1].finished.receipt.attempts)
    with pytest.raises(grpc.aio.AioRpcError) as stopped:
        await collect(first)
    assert "SHUTTING_DOWN" == error_of(stopped.value)[0]


async def test_errors_of_one_of_several_choices_name_the_request(stack: Stack) -> None:
    """Its name in the queue ends with the choice's number, and is of no use to a client."""
    wanted = {**LONG, "n": 2}
    first = stack.inference(0).StreamGenerate(stream_request(**wanted))
    begun = await read_until(first, 40)
    await collect(stack.inference(1).StreamGenerate(again(begun, **wanted)))
    with pytest.raises(grpc.aio.AioRpcError) as taken_over:
        await collect(first)
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await collect(stack.inference(1).StreamGenerate(again(begun, **wanted)))
    for failed, reason in ((taken_over, "TAKEN_OVER"), (gone, "GENERATION_FAILED")):
        told, facts = error_of(failed.value)
        assert (reason, request_of(begun)) == (told, facts["request_id"])
        assert "/" not in str(failed.value.details())


async def waits(stack: Stack) -> tuple[Any, api.StreamGenerateRequest]:
    """Open a stream that waits; return it with what its client would come back with."""
    wanted = stream_request(max_tokens=5, ignore_eos=True)
    waiting = stack.inference(0).StreamGenerate(wanted)
    queued = (await waiting.read()).queued
    assert queued.request_id
    wanted.resume.resume_token = queued.resume_token
    return waiting, wanted


async def test_who_comes_back_while_the_queue_is_away_keeps_the_place(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"base_ms": 5.0, "max_num_seqs": 1}) as stack:
        running = stack.inference(0).StreamGenerate(stream_request(**LONG))
        await read_until(running, 5)
        waiting, wanted = await waits(stack)
        stack.store.down = True
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await collect(stack.inference(0).StreamGenerate(wanted))
        stack.store.down = False
        running.cancel()

        assert 5 == tokens_of(await collect(waiting))


async def test_who_comes_back_to_what_the_queue_forgot_ends_the_earlier_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_stack(tmp_path, sim={"base_ms": 5.0, "max_num_seqs": 1}) as stack:
        running = stack.inference(0).StreamGenerate(stream_request(**LONG))
        await read_until(running, 5)
        waiting, wanted = await waits(stack)
        pool = stack.routers[0].pools["demo"]

        async def forgotten(*_: Any) -> None:
            return None

        monkeypatch.setattr(pool._context.queue, "adopt", forgotten)
        second = stack.inference(0).StreamGenerate(wanted)
        assert (await second.read()).HasField("queued")
        with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
            await collect(waiting)
        running.cancel()

        assert 5 == tokens_of(await collect(second))
