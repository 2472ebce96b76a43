"""The queue stops answering: streams go on, new requests are refused at once, and everything settles afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc
import pytest
import redis
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cluster.clock import SystemClock
from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Mail, QueueEntry, Settlement, Submitted
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.cluster.queue.backends import turns
from tests.router.dispatch.streams import hold_at, move_on, stand
from tests.support.stack import collect, first_tokens, ids_of, request, request_id_of, running_stack, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.every_store("connections of a running router")

CANCELLED = types.FINISH_REASON_CANCELLED


class SteppedClock(SystemClock):
    """Runs ahead by what it was set forward."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        """Return the time with what it was set forward by."""
        return super().wall_ms() + self.ahead_ms


async def test_a_clock_that_is_set_forward_ends_no_wait_early(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"base_ms": 3.0, "max_num_seqs": 1}) as stack:
        clock = stack.store._clock = SteppedClock()
        pool = stack.routers[0].pools["demo"]
        running = stack.inference().StreamGenerate(stream_request(max_tokens=1_500, ignore_eos=True))
        await running.read()
        await running.read()
        asked = stream_request(max_tokens=2, ignore_eos=True)
        asked.generate.queue_timeout.FromSeconds(60)
        waiting = stack.inference().StreamGenerate(asked)
        await until(lambda: pool.active == 2)
        clock.ahead_ms = 300_000
        await collect(running)
        assert 2 == len(ids_of(await collect(waiting)))


async def test_streams_go_on_and_new_requests_are_told_when_to_come_back(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 3.0}) as stack:
        pool = stack.routers[0].pools["demo"]
        call = stack.inference().StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        events = [await call.read(), await call.read()]
        stack.store.down = True
        await until(lambda: not pool.available)

        refused = stack.inference().Generate(request(max_tokens=2))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await refused
        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        status = await rpc_status.aio.from_call(refused)
        assert status is not None
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)

        events.extend(await collect(call))
        assert 300 == len(ids_of(events))
        stack.store.down = False
        await until(lambda: pool.available and pool.beat is not None and pool.beat.running == 0)
        assert 2 == (await stack.inference().Generate(request(max_tokens=2, ignore_eos=True))).usage.output_tokens


async def test_a_request_that_ends_while_the_queue_is_away_runs_once_under_its_key(tmp_path: Path) -> None:
    """Its client may have lost its connection with the same failure, and repeats the key afterwards."""
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 3.0}) as stack:
        pool = stack.routers[0].pools["demo"]
        asked = stream_request(max_tokens=100, ignore_eos=True, temperature=1.0)
        asked.generate.idempotency_key = "mine"
        hold_at(stack, 10)
        call = stack.inference().StreamGenerate(asked)
        events = await first_tokens(call, 10)
        stack.store.down = True
        move_on(stack)
        events.extend(await collect(call))
        await until(lambda: len(pool.releases) == 1 and pool.active == 0)
        await turns(20)
        stack.store.down = False
        await until(lambda: pool.available and not len(pool.releases))

        reply = await stack.inference(1).Generate(asked.generate, timeout=30)
        assert request_id_of(events) == reply.request_id
        assert ids_of(events) == list(reply.choices[0].token_ids)
        queue = stack.factory().pool("demo")
        assert 1 == sum(line.requests for line in await queue.usage("", 0, 10**6))
        await queue.close()


async def test_a_queue_that_forgot_everything_is_filled_again_by_heartbeats(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 3.0}) as stack:
        call = stack.inference().StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        events = [await call.read(), await call.read()]
        stack.store.restart(forget=True)
        events.extend(await collect(call))
        assert 300 == len(ids_of(events))

        async def served() -> bool:
            try:
                reply = await stack.inference(1).Generate(request(max_tokens=2, ignore_eos=True), timeout=5)
            except grpc.aio.AioRpcError:
                return False
            return bool(reply.usage.output_tokens == 2)

        await until(served)
        await asyncio.gather(*(stack.inference(i % 2).Generate(request(max_tokens=2), timeout=20) for i in range(20)))


async def test_requests_that_waited_when_the_store_forgot_them_are_put_in_line_again(
    tmp_path: Path, store_url: str
) -> None:
    """In their order, with their keys, also beyond a bound or quota that they had passed; cancels find them."""
    sections = {"default_tenant": {"quota": {"concurrency": 8}}}
    sim = {"base_ms": 5.0, "max_num_seqs": 1}
    queue = {"max_waiting_per_tenant": 7}
    async with running_stack(
        tmp_path, redis_url=store_url, routers=2, sim=sim, queue=queue, sections=sections
    ) as stack:
        slot = stack.inference(0).StreamGenerate(stream_request(max_tokens=100, ignore_eos=True))
        await slot.read()
        # It keeps its slot until all is in line again.
        stand(stack)
        bodies = [stream_request(f"{number}", max_tokens=5, ignore_eos=True) for number in range(7)]
        bodies[0].generate.idempotency_key = "mine"
        calls = [stack.inference(number % 2).StreamGenerate(body) for number, body in enumerate(bodies)]
        request_ids = [(await call.read()).queued.request_id for call in calls]
        assert all(request_ids)

        pool = stack.routers[1].pools["demo"]
        before = pool.resubmit.run_id
        if store_url:
            with contextlib.closing(redis.Redis.from_url(store_url.replace("+cluster", ""))) as client:
                client.flushall()
        else:
            stack.store.restart(forget=True)
        # One of the other router's is known again.
        await until(lambda: before != pool.resubmit.run_id == pool.choices[request_ids[5]].run_id)
        again = [router.pools["demo"].resubmit for router in stack.routers]
        await until(lambda: [(1, 4), (1, 3)] == [(each.changes, each.submitted) for each in again])
        await stack.inference(0).Cancel(api.CancelRequest(request_id=request_ids[5]))

        move_on(stack)
        await collect(slot)
        ends = [(await collect(call))[-1].finished for call in calls]
        assert [end.usage.output_tokens for end in ends] == [5, 5, 5, 5, 5, 0, 5]
        assert ends[5].choices[0].finish_reason == CANCELLED
        assert [end.request_id for end in ends] == request_ids
        again = await collect(stack.inference(1).StreamGenerate(bodies[0]))
        assert again[-1].finished.request_id == ends[0].request_id
        await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_a_repeat_goes_on_with_what_a_lost_answer_left_in_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call gave up what it may have put in line, and tells the store so when it answers again: too late."""
    async with running_stack(tmp_path, sim={"base_ms": 3.0, "max_num_seqs": 1}) as stack:
        slot = stack.inference().StreamGenerate(stream_request(max_tokens=3_000, ignore_eos=True))
        await slot.read()
        queue = stack.routers[0].pools["demo"]._context.queue
        submit, withdraw = queue.submit, queue.withdraw
        away = asyncio.Event()

        async def happens_unheard(router_id: str, entry: QueueEntry) -> Submitted:
            await submit(router_id, entry)
            raise QueueUnavailableError("no answer")

        async def when_back(router_id: str, request_id: str, used: Settlement | None, *, refused: bool) -> Mail:
            if away.is_set():
                raise QueueUnavailableError("no answer")
            return await withdraw(router_id, request_id, used, refused=refused)

        away.set()
        monkeypatch.setattr(queue, "withdraw", when_back)
        monkeypatch.setattr(queue, "submit", happens_unheard)
        asked = request(max_tokens=3, ignore_eos=True)
        asked.idempotency_key = "key"
        with pytest.raises(grpc.aio.AioRpcError):
            await stack.inference().Generate(asked)
        monkeypatch.setattr(queue, "submit", submit)

        again = asyncio.ensure_future(stack.inference().Generate(asked, timeout=20))
        await until(lambda: stack.routers[0].pools["demo"].active == 2)
        away.clear()
        beat = stack.routers[0].pools["demo"].beat
        await until(lambda: stack.routers[0].pools["demo"].beat is not beat)
        slot.cancel()
        assert 3 == (await again).usage.output_tokens


@pytest.mark.parametrize("ended", [False, True], ids=["runs", "ended"])
async def test_a_request_whose_grant_comes_although_the_answer_is_lost_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    """A heartbeat brings the grant while the answer is waited for: the attempt goes on, and is in the ledger."""
    async with running_stack(tmp_path, sim={"base_ms": 3.0}) as stack:
        pool = stack.routers[0].pools["demo"]
        queue = pool._context.queue
        submit = queue.submit

        async def happens_unheard(router_id: str, entry: QueueEntry) -> Submitted:
            await submit(router_id, entry)
            choice = pool.choices[entry.request_id]
            await until(lambda: choice.state.over if ended else choice.state.runs)
            raise QueueUnavailableError("no answer")

        monkeypatch.setattr(queue, "submit", happens_unheard)
        answer = await stack.inference().Generate(request(max_tokens=30, ignore_eos=True))
        assert 30 == len(answer.choices[0].token_ids)
        await until(lambda: not len(pool.releases))
        lines = await pool.ledger.usage("", 0, 10**6)
        assert [(1, 30)] == [(line.requests, line.output_tokens) for line in lines]


async def test_a_call_that_breaks_off_while_its_request_runs_already_pays_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot stays taken until the replica has let go, and what it used is in the ledger."""
    async with running_stack(tmp_path, sim={"base_ms": 3.0}) as stack:
        pool = stack.routers[0].pools["demo"]
        queue = pool._context.queue
        submit = queue.submit
        runs = asyncio.Event()

        async def unheard(router_id: str, entry: QueueEntry) -> Submitted:
            submitted = await submit(router_id, entry)
            choice = pool.choices[entry.request_id]
            await until(lambda: choice.tokens > 0)
            runs.set()
            await asyncio.Event().wait()
            return submitted

        monkeypatch.setattr(queue, "submit", unheard)
        call = stack.inference().Generate(request(max_tokens=3_000, ignore_eos=True))
        await runs.wait()
        call.cancel()
        await until(lambda: pool.active == 0 and not len(pool.releases))
        lines = await pool.ledger.usage("", 0, 10**6)
        assert 1 == sum(line.requests for line in lines)
        assert 0 < sum(line.output_tokens for line in lines) < 3_000
