"""A replica's lease is lost while its link is up: nothing new goes there, and its streams go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.errors import PenstockError, QueueUnavailableError
from cluster.queue.heartbeats import RouterBeat, RouterBeatReply
from deployments.replica.replica import Replica
from tests.router.dispatch.streams import move_on, stand
from tests.support.stack import Stack, collect, ids_of, request, running_stack, stream_request
from tests.support.waiting import until, until_sync


async def start_stream(stack: Stack) -> tuple[Any, list[Any]]:
    """Open a long stream; returns when it has output."""
    call = stack.inference().StreamGenerate(stream_request(max_tokens=600, ignore_eos=True))
    events = [await call.read() for _ in range(4)]
    return call, events


async def lose_lease(stack: Stack, replica: Replica, patch: pytest.MonkeyPatch) -> None:
    """Let a replica's heartbeats fail until the pool and every router have dropped it."""

    async def unreachable() -> Any:
        raise QueueUnavailableError("cut off by the test")

    patch.setattr(replica._keeper, "_beat", unreachable)
    name = replica.plan.replica_id
    await until(lambda: all(name not in router.pools["demo"].replicas.records for router in stack.routers))


async def test_streams_go_on_and_new_requests_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_stack(tmp_path, routers=2, replicas=1, sim={"base_ms": 8.0}) as stack:
        call, events = await start_stream(stack)
        cut_off = stack.replicas[0]
        other = await stack.add_replica()
        await lose_lease(stack, cut_off, monkeypatch)

        replies = await asyncio.gather(
            *(stack.inference(i % 2).Generate(request(max_tokens=2, ignore_eos=True), timeout=20) for i in range(12))
        )
        served_by = {reply.receipt.attempts[0].replica_id for reply in replies}
        assert {other.plan.replica_id} == served_by
        assert len(ids_of(events)) < 600
        events.extend(await collect(call))
        assert 600 == len(ids_of(events))
        receipt = events[-1].finished.receipt
        assert [cut_off.plan.replica_id] == [attempt.replica_id for attempt in receipt.attempts]


async def test_without_another_replica_requests_wait_until_the_lease_is_back(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"base_ms": 8.0}) as stack:
        call, events = await start_stream(stack)
        # A lease is long on a busy machine, and a link without a lease stays as long as it has work.
        stand(stack)
        with pytest.MonkeyPatch.context() as patch:
            await lose_lease(stack, stack.replicas[0], patch)
            waiting = stack.inference().StreamGenerate(stream_request(max_tokens=2, ignore_eos=True))
            assert (await waiting.read()).HasField("queued")
            pool = stack.routers[0].pools["demo"]
            await until(lambda: pool.beat is not None and 1 == sum(pool.beat.waiting))
            assert pool.replicas.link(stack.replicas[0].plan.replica_id) is not None
        move_on(stack)
        assert 2 == len(ids_of(await collect(waiting)))
        events.extend(await collect(call))
        assert 600 == len(ids_of(events))
        assert grpc.StatusCode.OK is await call.code()


async def test_a_router_says_when_it_has_no_time_for_its_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeats go on from a thread of their own."""
    async with running_stack(tmp_path) as stack:
        membership = stack.routers[0].pools["demo"]._membership
        beats, queue = list[bool](), membership._queue
        assert queue is not None
        send = queue.heartbeat_router

        async def noted(beat: RouterBeat) -> RouterBeatReply:
            beats.append(beat.busy)
            return await send(beat)

        monkeypatch.setattr(queue, "heartbeat_router", noted)
        await until(lambda: beats[-2:] == [False, False])
        # The loop stands still: this is what it is about.
        until_sync(lambda: any(beats))
        await until(lambda: beats[-2:] == [False, False])


@pytest.mark.parametrize("error", [QueueUnavailableError("cut off by the test"), PenstockError("a script failed")])
async def test_what_a_heartbeat_that_failed_told_is_told_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PenstockError
) -> None:
    """Else a grant that is used would be taken back, and a prompt that is read would count as one that is not."""
    async with running_stack(tmp_path) as stack:
        membership, replica = stack.routers[0].pools["demo"]._membership, stack.replicas[0]
        failed, told = set[str](), set[str]()

        def watch(queue: Any, name: str, news: str) -> None:
            send = getattr(queue, name)

            async def watched(beat: Any) -> Any:
                if getattr(beat, news) and news not in failed:
                    failed.add(news)
                    raise error
                reply = await send(beat)
                told.update({news} if getattr(beat, news) else ())
                return reply

            monkeypatch.setattr(queue, name, watched)

        watch(membership._queue, "heartbeat_router", "started")
        watch(replica._queue, "heartbeat_replica", "prefilled")
        await stack.inference().Generate(request(max_tokens=2, ignore_eos=True))
        await until(lambda: told == failed == {"started", "prefilled"})
