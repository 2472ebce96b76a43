"""A choice whose replica dies goes on at another one, from its tokens; its client misses nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.links.failure import Failure
from tests.router.dispatch.streams import (
    LONG,
    SIM,
    Events,
    error_of,
    hold_at,
    idle,
    plain,
    read_into,
    read_until_resumed,
    replica_of,
    resumed_of,
)
from tests.router.dispatch.test_lost_leases import lose_lease
from tests.router.links.parts import RelayedReplica, read_until
from tests.support.speed import patience
from tests.support.stack import collect, ids_of, running_stack, stream_request, text_of
from tests.support.waiting import until


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"min_tokens": 200},
        {"n": 3},
    ],
    ids=str,
)
async def test_the_output_of_a_killed_replica_goes_on_elsewhere(tmp_path: Path, sampling: dict[str, Any]) -> None:
    async with running_stack(tmp_path, routers=2, replicas=2, sim=SIM) as stack:
        expected = await plain(stack, **LONG, **sampling)
        call = stack.inference(1).StreamGenerate(stream_request(**LONG, **sampling))
        events = await read_until(call, 30)
        victim = replica_of(stack, events)
        await stack.kill_replica(victim)
        events += await collect(call)

        for index in range(sampling.get("n", 1)):
            assert ids_of(expected, index) == ids_of(events, index)
            assert text_of(expected, index) == text_of(events, index)
        end, dead = events[-1].finished, stack.replicas[victim].plan.replica_id
        assert (True, True) == (end.receipt.exact, all(resumed.exact for resumed in resumed_of(events)))
        assert resumed_of(events) != []
        assert expected[-1].finished.usage.output_tokens == end.usage.output_tokens
        for resumed in resumed_of(events):
            first, second = [a for a in end.receipt.attempts if a.choice_index == resumed.choice_index]
            assert dead == first.replica_id != second.replica_id == resumed.replica_id
            assert 0 < resumed.offset <= first.output_tokens
            assert 300 == first.output_tokens + second.output_tokens
            assert (
                0
                < first.decode_time.ToTimedelta().total_seconds()
                < end.receipt.total_time.ToTimedelta().total_seconds()
            )
            assert 0 == first.gpu_seconds < second.gpu_seconds
        if "logprobs" in sampling:
            assert 300 == sum(len(event.delta.logprobs) for event in events)
            assert _logprobs(expected) == _logprobs(events)
            assert [1, 1] == [sum(bool(event.delta.prompt_logprobs) for event in each) for each in (expected, events)]


def _logprobs(events: Events) -> list[types.PositionLogprobs]:
    return [position for event in events for position in event.delta.logprobs]


async def test_a_stop_string_across_the_break_is_found_and_never_sent(tmp_path: Path) -> None:
    """The string begins in text that the dead replica held back, and ends at the next one."""
    async with running_stack(tmp_path, replicas=2, sim={"base_ms": 15.0}) as stack:
        free = await plain(stack, **{**LONG, "max_tokens": 80})
        text, ids = text_of(free), ids_of(free)
        # A machine that stands still merges deltas, so they do not tell where each token ends.
        begin, end = [
            len((await stack.inference().Detokenize(api.DetokenizeRequest(model="demo", token_ids=ids[:tokens]))).text)
            for tokens in (26, 41)
        ]
        stop = text[begin:end]
        assert text.index(stop) == begin
        wanted = {**LONG, "max_tokens": 80, "stop": [stop, "never there"]}
        expected = await plain(stack, **wanted)
        hold_at(stack, 30)
        call = stack.inference().StreamGenerate(stream_request(**wanted))
        events = await read_until(call, 30)
        await stack.kill_replica(replica_of(stack, events))
        events += await collect(call)

        [resumed] = resumed_of(events)
        assert 30 == resumed.offset
        assert text_of(expected) == text_of(events) == text[:begin]
        assert ids_of(expected) == ids_of(events)
        assert (types.FINISH_REASON_STOP, stop) == (
            events[-1].finished.choices[0].finish_reason,
            events[-1].finished.choices[0].stop_match,
        )


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.7, "seed": 3}], ids=str)
async def test_a_sampled_continuation_says_that_it_is_another_draw(tmp_path: Path, sampling: dict[str, Any]) -> None:
    async with running_stack(tmp_path, replicas=2, sim=SIM) as stack:
        call = stack.inference().StreamGenerate(stream_request(**LONG, **sampling))
        events = await read_until(call, 30)
        await stack.kill_replica(replica_of(stack, events))
        events += await collect(call)

        assert 300 == len(ids_of(events)) == events[-1].finished.usage.output_tokens
        assert [False] == [resumed.exact for resumed in resumed_of(events)]
        assert not events[-1].finished.receipt.exact


async def test_without_output_a_sampled_choice_starts_afresh_and_stays_exact(tmp_path: Path) -> None:
    async with running_stack(tmp_path, replicas=2, sim=SIM) as stack:
        for replica in stack.replicas:
            replica._engine.wedge()  # type: ignore[attr-defined]
        call = stack.inference().StreamGenerate(stream_request(**LONG, temperature=1.0, seed=5))
        events = [await call.read()]
        victim = replica_of(stack, events)
        stack.replicas[1 - victim]._engine._moving.set()  # type: ignore[attr-defined]
        await stack.kill_replica(victim)
        events += await collect(call)

        assert [] == resumed_of(events)
        assert 300 == len(ids_of(events))
        assert events[-1].finished.receipt.exact
        assert 2 == len(events[-1].finished.receipt.attempts)


async def test_a_dead_engine_is_told_and_left_at_once(tmp_path: Path) -> None:
    """Link and lease live; the replica itself reports the death and takes nothing more."""
    async with running_stack(tmp_path, routers=2, replicas=2, sim=SIM) as stack:
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        victim = replica_of(stack, events)
        stack.replicas[victim]._engine.die()  # type: ignore[attr-defined]
        events += await read_until_resumed(call)
        # No lease and no grace had to end first.
        losses = stack.routers[0].pools["demo"].losses
        assert {Failure.ENGINE_DIED: 1} == {failure: count for failure, count in losses.items() if count}
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        one, two = events[-1].finished.receipt.attempts
        assert 300 == one.output_tokens + two.output_tokens
        assert one.gpu_seconds > 0
        name = stack.replicas[victim].plan.replica_id
        after = [await stack.inference(i % 2).Generate(stream_request(max_tokens=1).generate) for i in range(8)]
        assert name not in {reply.receipt.attempts[-1].replica_id for reply in after}
        with pytest.raises(Exception, match="died"):
            await stack.replicas[victim].check_health()


async def test_nothing_is_started_on_a_dead_engine_before_the_pool_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots are free at once, and its process may end before it can refuse: such a start would count as lost."""
    async with running_stack(tmp_path, replicas=2, sim=SIM, router={"max_attempts": 2}) as stack:
        pool = stack.routers[0].pools["demo"]
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        victim = stack.replicas[replica_of(stack, events)]
        [other] = [replica for replica in stack.replicas if replica is not victim]
        full = other.table.windows
        other.table.windows = replace(full, sequences=0)
        other._report_now()
        await until(lambda: pool.replicas.capacity() < 2 * full.sequences)
        starts: list[str] = []

        async def unanswered(request_id: str, *_: object) -> None:
            starts.append(request_id)

        monkeypatch.setattr(victim.table, "start", unanswered)
        victim._engine.die()  # type: ignore[attr-defined]
        await until(lambda: pool.losses[Failure.ENGINE_DIED] == 1)
        await stack.kill_replica(stack.replicas.index(victim))
        other.table.windows = full
        other._report_now()
        events += await collect(call)

        assert [] == starts
        assert (300, 2) == (len(ids_of(events)), len(events[-1].finished.receipt.attempts))
        assert 1 == sum(pool.losses.values())


async def test_a_living_lease_means_reattach_and_no_second_run(tmp_path: Path) -> None:
    # The replica keeps it on a machine, too, that holds its heartbeats up for a while.
    lease_s = round(3.0 * patience(), 1)
    queue = {"lease_s": lease_s, "attach_grace_s": 20.0 * lease_s}
    async with running_stack(tmp_path, routers=0, sim=SIM, queue=queue) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        expected = await plain(stack, **LONG)
        other = await stack.add_replica()
        take_work = await idle(stack, other)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        relay.cut()
        take_work()
        await until(lambda: stack.replicas[0].table.parked == 1)
        # Longer than a lease: its heartbeats go on, only this link is away.
        await asyncio.sleep(lease_s * 1.2)
        assert 0 == other.table.sequences
        relay.mend()
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert [] == resumed_of(events)
        assert 1 == len(events[-1].finished.receipt.attempts)
        await relay.close()


async def test_a_link_that_stays_away_moves_the_work_after_the_grace(tmp_path: Path) -> None:
    """The replica has its lease, but this router does not reach it: after `attach_grace` both give the attempt up."""
    async with running_stack(tmp_path, routers=0, sim=SIM, queue={"attach_grace_s": 0.5}) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        expected = await plain(stack, **LONG)
        other = await stack.add_replica()
        take_work = await idle(stack, other)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        relay.cut()
        take_work()
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert other.plan.replica_id == resumed_of(events)[0].replica_id
        await until(lambda: stack.replicas[0].table.sequences == 0)
        await relay.close()


async def test_attempts_are_bounded_and_the_error_tells_the_usage(tmp_path: Path) -> None:
    async with running_stack(tmp_path, replicas=3, sim=SIM, router={"max_attempts": 2}) as stack:
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        stack.replicas[replica_of(stack, events)]._engine.die()  # type: ignore[attr-defined]
        events += await read_until_resumed(call)
        events += await read_until(call, 5)
        stack.replicas[replica_of(stack, events)]._engine.die()  # type: ignore[attr-defined]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_into(events, call)

        assert grpc.StatusCode.ABORTED is caught.value.code()
        reason, facts = error_of(caught.value)
        assert "GENERATION_FAILED" == reason
        assert str(len(ids_of(events))) == facts["delivered_tokens"]
        assert "2" == facts["attempts"]
        assert int(facts["prompt_tokens"]) > 0
        lost = {"pool": "demo", "failure": "engine_died"}
        assert 2 == stack.routers[0]._metrics.registry.get_sample_value("penstock_router_lost_attempts_total", lost)


async def test_a_cancelled_choice_of_a_dead_replica_ends_as_cancelled(tmp_path: Path) -> None:
    async with running_stack(tmp_path, replicas=2, sim=SIM) as stack:
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        victim = replica_of(stack, events)
        stack.replicas[victim]._engine.wedge()  # type: ignore[attr-defined]
        request_id = next(event.started.request_id for event in events if event.HasField("started"))
        await stack.inference().Cancel(api.CancelRequest(request_id=request_id))
        await stack.kill_replica(victim)
        events += await collect(call)

        assert types.FINISH_REASON_CANCELLED == events[-1].finished.choices[0].finish_reason
        assert len(ids_of(events)) == events[-1].finished.usage.output_tokens


async def test_it_goes_on_although_the_queue_has_forgotten_it(tmp_path: Path) -> None:
    """Redis lost everything while the stream ran: the entry that should get another slot is not there any more."""
    async with running_stack(tmp_path, replicas=2, sim=SIM) as stack:
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        stack.store.restart(forget=True)
        pool = stack.routers[0].pools["demo"]
        await until(
            lambda: (
                pool.beat is not None and pool.beat.run_id.startswith(stack.store.run_id) and pool.replicas.ready() == 2
            )
        )
        await stack.kill_replica(replica_of(stack, events))
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert 1 == len(resumed_of(events))


async def test_an_emptied_registry_is_no_sign_of_death(tmp_path: Path) -> None:
    """The link breaks while Redis has just forgotten all replicas: nothing runs twice."""
    # The link is to be back before the lease is over, on a slow machine too.
    async with running_stack(tmp_path, routers=0, sim=SIM, queue={"lease_s": 30.0}) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        pool = stack.routers[0].pools["demo"]
        with pytest.MonkeyPatch.context() as patch:
            stack.store.restart(forget=True)
            relay.cut()
            await lose_lease(stack, stack.replicas[0], patch)
            await until(lambda: not pool.replicas.connected())
            assert 1 == stack.replicas[0].table.sequences
        relay.mend()
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert [] == resumed_of(events)
        assert 1 == len(events[-1].finished.receipt.attempts)
        await relay.close()
