"""Whatever ends a request, wherever it is: its slot is free after the engine's step, and nothing is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
import pytest_asyncio

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Mail
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.dispatch.pool import Pool
from router.identity import Caller
from router.inference.servicer import InferenceServicer
from tests.cluster.queue.backends import KEPT_WHEN_IDLE, ask, sizes
from tests.cluster.queue.servers import Server, running
from tests.router.inference.test_adoption import adopting
from tests.support.stack import Stack, collect, ids_of, running_stack, sim_pool, stream_request, text_of
from tests.support.waiting import TimedOutError, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE_S = 0.4
SIM = {"base_ms": 5.0, "max_num_seqs": 1, "max_num_batched_tokens": 16}
LONG_PROMPT = 3_000
"""Tokens: a prefill of about a second."""
STATES = ("queued", "granted", "prefill", "decode")


class Clueless:
    """Estimates nothing, so that hopeless deadlines are not refused at the door."""

    def run_s(self, *_: object) -> None:
        return None

    first_token_s = None
    wait_s = beat = ran = run_s


class Bench:
    """One stack on one store, with what it held before any request."""

    def __init__(self, stack: Stack, server: Server | None) -> None:
        self.stack = stack
        self._server = server
        self._tasks = count_tasks()
        for router in stack.routers:
            router.pools["demo"].admission.estimate = Clueless()  # type: ignore[assignment]

    @property
    def pools(self) -> list[Pool]:
        return [router.pools["demo"] for router in self.stack.routers]

    def leftovers(self) -> dict[str, int]:
        """Count what requests hold, anywhere."""
        store = self._server or self.stack.store
        held = {name: n for name, n in sizes(partial(ask, store)).items() if name not in KEPT_WHEN_IDLE}
        for number, (router, pool) in enumerate(zip(self.stack.routers, self.pools, strict=True)):
            held |= {
                f"choices {number}": pool.active,
                f"ends {number}": len(pool.releases),
                f"sinks {number}": sum(link.busy for link in pool.replicas._links.values()),
                f"calls {number}": router._inference.open_calls,
            }
        [replica] = self.stack.replicas
        held |= {"slots": replica.table.sequences, "attempts": len(replica.table._attempts)}
        tasks = count_tasks()
        # Those that start the stack end a little later.
        self._tasks = min(self._tasks, tasks)
        held |= {"prefill tokens": replica.table.prefill_tokens, "tasks": tasks - self._tasks}
        return {name: n for name, n in held.items() if n}

    async def nothing_is_left(self) -> None:
        """Wait until nothing is held; says what is."""
        try:
            await until(lambda: self.leftovers() == {}, 10.0)
        except TimedOutError:
            # What is left for good is a fault of the product, not a slow machine.
            assert {} == self.leftovers()
            raise


@pytest.fixture(scope="module", params=["in-process", "redis-6.2", "redis-7.0", "redis-cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    with contextlib.nullcontext() if request.param == "in-process" else running(request.param) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory, server: Server | None) -> AsyncIterator[Bench]:
    """One slot, so that a second request waits."""
    folder, url = tmp_path_factory.mktemp("stack"), "" if server is None else server.url
    sections = {"default_tenant": {"quota": {"concurrency": 8}}}
    pools = {"demo": sim_pool(**SIM)}
    async with running_stack(folder, routers=2, pools=pools, redis_url=url, sections=sections) as stack:
        yield Bench(stack, server)


def count_tasks() -> int:
    """Count tasks, without the few of connections to Redis, which start when they are first used."""
    return sum(not task.get_name().startswith("queue-") for task in asyncio.all_tasks())


def endless(*, prompt_tokens: int = 0, key: str = "") -> api.StreamGenerateRequest:
    """Build a request that ends by a cancel only; a prompt of tokens is a new one each time, so nothing is cached."""
    wanted = stream_request(max_tokens=4_000, ignore_eos=True)
    wanted.generate.idempotency_key = key
    if prompt_tokens:
        ids = random.choices(range(3, 200), k=prompt_tokens)
        wanted.generate.prompt.CopyFrom(types.Prompt(tokens=types.TokenPrompt(ids=ids)))
    return wanted


async def seen(call: Any, kind: str) -> api.StreamGenerateResponse:
    """Read a stream to the next event of a kind."""
    while not (event := await call.read()).HasField(kind):
        pass
    return event


async def begin(bench: Bench, state: str, timeout: float | None) -> tuple[Any, str, Callable[[], None]]:
    """Bring a request of router 0 into a state; returns its call, its id, and what lets the router go on."""
    stack, pool = bench.stack, bench.pools[0]
    held: list[Mail] = []

    def resume() -> None:
        if "deliver" in vars(pool.mailbox):
            del pool.mailbox.deliver
            pool.mailbox.deliver = type(pool.mailbox).deliver.__get__(pool.mailbox)
        for mail in held:
            pool.mailbox.deliver(mail)

    blocker = stack.inference(0).StreamGenerate(endless()) if state in ("queued", "granted") else None
    if blocker is not None:
        await seen(blocker, "started")
    wanted = endless(prompt_tokens=LONG_PROMPT if state == "prefill" else 0)
    call = stack.inference(0).StreamGenerate(wanted, timeout=timeout)
    try:
        event = await seen(call, "queued" if blocker is not None else "started")
    except grpc.aio.AioRpcError:
        if blocker is not None:
            blocker.cancel()
        raise
    request_id = event.queued.request_id or event.started.request_id
    if state == "granted":
        # Redis knows of the grant, the router does not yet.
        pool.mailbox.deliver = held.append  # type: ignore[method-assign, assignment]
        assert blocker is not None
        blocker.cancel()
        await until(
            lambda: call.done() or any(grant.request_id == request_id for mail in held for grant in mail.grants)
        )
    elif state == "queued":
        # Let go once the request behind it has ended.
        held.clear()
        return call, request_id, lambda: blocker.cancel() and None
    elif state == "prefill":
        await until(lambda: call.done() or stack.replicas[0].table.prefill_tokens == LONG_PROMPT)
    else:
        await seen(call, "delta")
    return call, request_id, resume


async def outcome(call: Any) -> tuple[grpc.StatusCode, api.Finished | None]:
    """Read a stream to its end."""
    finished = None
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        while (event := await call.read()) is not grpc.aio.EOF:
            finished = event.finished if event.HasField("finished") else finished
    return await call.code(), finished


@pytest.mark.parametrize("router", [0, 1])
@pytest.mark.parametrize("state", STATES)
async def test_a_cancel_through_any_router_leaves_nothing_behind(bench: Bench, state: str, router: int) -> None:
    call, request_id, resume = await begin(bench, state, None)
    reply = await bench.stack.inference(router).Cancel(api.CancelRequest(request_id=request_id))
    resume()
    code, finished = await outcome(call)

    assert (grpc.StatusCode.OK, request_id) == (code, reply.request_id)
    assert finished is not None
    [end] = finished.choices
    assert types.FINISH_REASON_CANCELLED == end.finish_reason
    if state != "granted":
        assert (state == "decode") == bool(end.output_tokens)
    await bench.nothing_is_left()


@pytest.mark.parametrize("state", STATES)
async def test_a_client_that_is_gone_leaves_nothing_behind(bench: Bench, state: str) -> None:
    call, _, resume = await begin(bench, state, None)
    call.cancel()
    resume()

    assert grpc.StatusCode.CANCELLED == (await outcome(call))[0]
    await bench.nothing_is_left()


@pytest.mark.parametrize("state", STATES)
async def test_a_deadline_leaves_nothing_behind(bench: Bench, state: str) -> None:
    while True:
        try:
            call, _, resume = await begin(bench, state, DEADLINE_S)
            break
        except grpc.aio.AioRpcError:
            # The machine halted, and it passed before the request was in this state.
            await bench.nothing_is_left()
    code, finished = await outcome(call)
    resume()

    # Whichever sees the deadline first, gRPC or the replica.
    if finished is not None:
        assert types.FINISH_REASON_DEADLINE == finished.choices[0].finish_reason
    else:
        assert grpc.StatusCode.DEADLINE_EXCEEDED == code
    await bench.nothing_is_left()


async def test_a_unary_client_may_leave_at_any_moment(bench: Bench) -> None:
    """Before, while and after its request is put in line and started."""
    for turns in range(60):
        call = bench.stack.inference(turns % 2).Generate(endless().generate)
        await asyncio.sleep(turns / 5_000)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    await bench.nothing_is_left()


@pytest.mark.parametrize("router", [0, 1])
async def test_a_request_of_several_choices_is_cancelled_as_a_whole(bench: Bench, router: int) -> None:
    """Where one choice runs and the others wait; by id and by key."""
    for by_key in (False, True):
        wanted = endless(key="several" if by_key else "")
        wanted.generate.sampling.n = 4
        call = bench.stack.inference(0).StreamGenerate(wanted)
        event = await seen(call, "started")
        request_id = event.started.request_id
        target = {"idempotency_key": "several"} if by_key else {"request_id": request_id}
        reply = await bench.stack.inference(router).Cancel(api.CancelRequest(**target))
        finished = (await collect(call))[-1].finished

        assert request_id == reply.request_id
        assert [types.FINISH_REASON_CANCELLED] * 4 == [choice.finish_reason for choice in finished.choices]
        await bench.nothing_is_left()


@pytest.mark.parametrize("keyed", [False, True])
async def test_who_leaves_while_taking_a_request_over_leaves_nothing_behind(
    bench: Bench, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue has made the slot this router's own, and the client is gone before the router hears of it. With a key
    its request goes on until nobody has come for as long as the grace.
    """
    stack = bench.stack
    monkeypatch.setattr(stack.routers[1]._inference._generations, "grace_s", 0.5)
    key = "taken" if keyed else ""
    first = stack.inference(0).StreamGenerate(endless(key=key))
    token = (await seen(first, "started")).started.resume_token
    await seen(first, "delta")
    async with adopting(bench.pools[1]) as (adopted, go_on):
        repeat = endless(key=key)
        if not keyed:
            repeat.resume.CopyFrom(api.Resume(resume_token=token, received_tokens=[0]))
        second = stack.inference(1).StreamGenerate(repeat)
        reading = asyncio.ensure_future(outcome(second))
        await adopted.wait()
        second.cancel()
        await until(second.done)
        # Nothing shows that the router has heard of it.
        await asyncio.sleep(0.05)
        go_on.set()
        await reading
        assert grpc.StatusCode.ABORTED == (await outcome(first))[0]
    await bench.nothing_is_left()


async def test_the_slot_is_free_when_the_running_step_ends(tmp_path: Path) -> None:
    """Not before, not a step later; and who waited has it in the step after."""
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 1000.0, "max_num_seqs": 2}) as stack:
        engine, table = stack.replicas[0]._engine, stack.replicas[0].table
        calls = [stack.inference(0).StreamGenerate(endless()) for _ in range(2)]
        ids = [(await seen(call, "started")).started.request_id for call in calls]
        waiting = stack.inference(1).StreamGenerate(endless())
        await seen(waiting, "queued")
        for router, (call, request_id) in enumerate(zip(calls, ids, strict=True)):
            await until(lambda: table.sequences == 2)
            await seen(call, "delta")
            steps, slots = engine.stats().steps, table.sequences
            await stack.inference(router).Cancel(api.CancelRequest(request_id=request_id))
            # The step that was running has not ended, so its slot is still taken.
            assert (steps, slots) == (engine.stats().steps, table.sequences)
            await collect(call)
            assert steps + 1 == engine.stats().steps
        await seen(waiting, "delta")
        # The last one started in the step after the first cancel.
        assert engine.stats().steps <= steps + 2
        waiting.cancel()


@pytest.mark.parametrize("ended_by", ["cancel", "deadline"])
async def test_the_text_that_was_held_back_comes_at_the_end(tmp_path: Path, ended_by: str) -> None:
    """For a stop string that did not come: the client has the text of all tokens that it has."""
    async with running_stack(tmp_path, sim={"base_ms": 5.0}) as stack:
        wanted = stream_request(max_tokens=4_000, ignore_eos=True, stop=["z" * 200])
        call = stack.inference().StreamGenerate(wanted)
        started = await seen(call, "started")
        events = [await seen(call, "delta") for _ in range(20)]
        if ended_by == "cancel":
            await stack.inference().Cancel(api.CancelRequest(request_id=started.started.request_id))
        else:
            # As if it had passed there: the one of the call would end it before.
            [attempt] = stack.replicas[0].table._attempts.values()
            attempt.deadline = 0.0
        events += await collect(call)
        ids = ids_of(events)
        wanted.generate.sampling.max_tokens = len(ids)
        whole = await collect(stack.inference().StreamGenerate(wanted))

        reasons = {"cancel": types.FINISH_REASON_CANCELLED, "deadline": types.FINISH_REASON_DEADLINE}
        assert reasons[ended_by] == events[-1].finished.choices[0].finish_reason
        assert ids == ids_of(whole)
        assert text_of(whole) == text_of(events)


@pytest.mark.parametrize("pools", [("demo",), ("demo", "other")])
async def test_a_cancel_of_what_runs_here_does_not_wait_for_the_queue(tmp_path: Path, pools: tuple[str, ...]) -> None:
    async with running_stack(tmp_path, pools={name: sim_pool(**SIM) for name in pools}) as stack:
        call = stack.inference().StreamGenerate(endless())
        started = (await seen(call, "started")).started
        await seen(call, "delta")
        stack.store.down = True
        reply = await stack.inference().Cancel(api.CancelRequest(request_id=started.request_id))
        finished = (await collect(call))[-1].finished
        stack.store.down = False

        assert started.request_id == reply.request_id
        assert types.FINISH_REASON_CANCELLED == finished.choices[0].finish_reason
        # The slot is given back once the queue answers again.
        await until(lambda: not sizes(stack.store.execute)["entries"])


@pytest.mark.parametrize("away_first", [True, False])
async def test_a_cancel_is_answered_although_the_queue_of_another_pool_is_away(away_first: bool) -> None:
    """Pools of a Redis Cluster lie on different servers."""
    has, lacks = Mock(cancel=AsyncMock(return_value="q")), Mock(cancel=AsyncMock(return_value=None))
    away = Mock(cancel=AsyncMock(side_effect=QueueUnavailableError("away")))

    async def cancel(*pools: Mock, key: str = "") -> api.CancelResponse:
        named = {str(number): pool for number, pool in enumerate(pools if away_first else pools[::-1])}
        servicer = InferenceServicer(named, Mock(), Mock(), Mock(), Mock(), Mock(), room=Mock())
        asked = api.CancelRequest(idempotency_key=key) if key else api.CancelRequest(request_id="q")
        return await servicer.Cancel(asked, None, Caller("acme"))

    assert "q" == (await cancel(away, lacks, has)).request_id
    # It may be there, or be there as well.
    with pytest.raises(QueueUnavailableError):
        await cancel(away, lacks)
    with pytest.raises(QueueUnavailableError):
        await cancel(away, has, key="k")
