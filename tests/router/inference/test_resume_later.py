"""A client comes back to a request that was interrupted and went on meanwhile; deadlines and drains on the way."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.server import Router
from tests.support.speed import patience
from tests.support.stack import Stack, ids_of, running_stack, stream_request, text_of
from tests.support.waiting import until

QUICK = {"preempt_after_s": 0.1, "preempt_quantum_s": 0.2}
ONE = {"base_ms": 5.0, "max_num_seqs": 1}
TOKENS = 300


def batch(key: str, **sampling: Any) -> api.StreamGenerateRequest:
    wanted = stream_request("What is Penstock?", max_tokens=TOKENS, ignore_eos=True, **sampling)
    wanted.generate.request_class = types.REQUEST_CLASS_BATCH
    wanted.generate.idempotency_key = key
    return wanted


async def read(call: Any, tokens: int) -> list[api.StreamGenerateResponse]:
    events: list[api.StreamGenerateResponse] = []
    while len(ids_of(events)) < tokens:
        events.append(await call.read())
    return events


async def rest(call: Any) -> list[api.StreamGenerateResponse]:
    return [event async for event in call]


async def undisturbed(stack: Stack) -> list[api.StreamGenerateResponse]:
    return await rest(stack.inference(0).StreamGenerate(batch("another")))


async def gave_way(stack: Stack, have: int, **sampling: Any) -> list[api.StreamGenerateResponse]:
    """Return what a client got that left after `have` tokens; its request gave way since, and goes on."""
    first = stack.inference(0).StreamGenerate(batch("k", **sampling))
    begun = await read(first, have)
    first.cancel()
    chat = stream_request("Hi", max_tokens=5, ignore_eos=True)
    chat.generate.request_class = types.REQUEST_CLASS_INTERACTIVE
    await stack.inference(1).Generate(chat.generate)
    logs = stack.replicas[0].table._attempts
    await until(lambda: any(item.log._prior > have and item.log.produced > 3 for item in logs.values()))
    return begun


@pytest.mark.parametrize("router", [0, 1])
@pytest.mark.parametrize("token", [False, True])
async def test_a_client_goes_on_inside_of_the_output_before_an_interruption(
    tmp_path: Path, router: int, token: bool
) -> None:
    async with running_stack(tmp_path, routers=2, sim=ONE, queue=QUICK) as stack:
        whole = await undisturbed(stack)
        begun = await gave_way(stack, 20)
        again = batch("k")
        again.resume.received_tokens.append(len(ids_of(begun)))
        if token:
            again.resume.resume_token = next(e.started.resume_token for e in begun if e.HasField("started"))
        events = await rest(stack.inference(router).StreamGenerate(again))

        assert ids_of(whole) == ids_of([*begun, *events])
        assert text_of(whole) == text_of([*begun, *events])
        # And what is kept under the key is all of it.
        kept = await stack.inference(0).Generate(batch("k").generate)
        assert ids_of(whole) == list(kept.choices[0].token_ids)


async def test_log_probabilities_stay_with_their_tokens(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim=ONE, queue=QUICK) as stack:
        asked = {"logprobs": 1, "prompt_logprobs": 1}
        begun = await gave_way(stack, 20, **asked)
        events = await rest(stack.inference(1).StreamGenerate(batch("k", **asked)))
        kept = await stack.inference(0).Generate(batch("k", **asked).generate)

        deltas = [event.delta for event in events if event.HasField("delta")]
        (choice,) = kept.choices
        for ids, logprobs in [*((d.token_ids, d.logprobs) for d in deltas), (choice.token_ids, choice.logprobs)]:
            assert list(ids) == [position.chosen.token_id for position in logprobs]
        assert TOKENS == len(choice.token_ids)
        # Those before the interruption went with it.
        assert -9999.0 == choice.logprobs[0].chosen.logprob
        assert choice.logprobs[-1].chosen.logprob > -100
        assert 1 == len(choice.logprobs[-1].top)
        # Those of the prompt were computed again, for a client that begins from the beginning.
        [prompt] = [list(event.delta.prompt_logprobs) for event in begun if event.delta.prompt_logprobs]
        assert [prompt] == [list(delta.prompt_logprobs) for delta in deltas if delta.prompt_logprobs]
        assert prompt == list(kept.prompt_logprobs)


async def test_a_call_that_takes_over_brings_its_own_deadline(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 5.0}) as stack:
        table = stack.replicas[0].table
        wanted = stream_request(max_tokens=3000, ignore_eos=True)
        wanted.generate.idempotency_key = "k"
        first = stack.inference(0).StreamGenerate(wanted, timeout=600)
        await read(first, 20)
        first.cancel()
        [attempt] = table._attempts.values()
        before = attempt.deadline
        second = stack.inference(1).StreamGenerate(wanted, timeout=3600)
        await until(lambda: attempt.deadline > before + 1000)

        # A deadline that is over before its call is there is nobody's.
        second.cancel()
        while attempt.deadline > before - 300:
            with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                await rest(stack.inference(0).StreamGenerate(wanted, timeout=0.3))
        # Not only when its tokens or the grace are over.
        await until(lambda: not table.sequences, 8.0)


async def test_replicas_that_stop_one_after_another_cost_a_stream_nothing(tmp_path: Path) -> None:
    """Nothing failed, so nothing counts against `router.max_attempts`."""
    async with running_stack(tmp_path, replicas=5, sim={"base_ms": 5.0}) as stack:
        call = stack.inference(0).StreamGenerate(stream_request(max_tokens=600, ignore_eos=True))
        reading = asyncio.create_task(rest(call))
        for _ in range(4):
            busy = lambda: [r for r in stack.replicas if not r.stopped and any(  # noqa: E731
                item.log.produced > 20 for item in r.table._attempts.values() if item.live)]  # fmt: skip
            await until(busy)
            await busy()[0].stop(drain_s=0.0)
        events = await reading

        assert 600 == len(ids_of(events))
        finished = events[-1].finished
        assert 5 == len({attempt.replica_id for attempt in finished.receipt.attempts})
        assert 600 == finished.usage.output_tokens


async def test_tokens_of_a_replica_that_is_gone_hold_nobody_up(tmp_path: Path) -> None:
    """Each of them waits for all of the grace."""
    queue = {"attach_grace_s": 10.0}
    async with running_stack(tmp_path, replicas=2, sim={"base_ms": 5.0}, queue=queue) as stack:
        tokens: dict[str, bytes] = {}
        while len(tokens) < 2:
            calls = [stack.inference(0).StreamGenerate(stream_request(max_tokens=3)) for _ in range(4)]
            for events in await asyncio.gather(*map(rest, calls)):
                tokens.update((e.started.replica_id, e.started.resume_token) for e in events if e.HasField("started"))
        gone = stack.replicas[0].plan.replica_id
        await stack.kill_replica(0)

        def comeback(token: bytes, received: int, max_tokens: int) -> Any:
            wanted = stream_request(max_tokens=max_tokens, ignore_eos=True)
            wanted.resume.resume_token = token
            wanted.resume.received_tokens.append(received)
            return stack.inference(0).StreamGenerate(wanted)

        stale = [asyncio.create_task(rest(comeback(tokens[gone], 1, 3))) for _ in range(100)]
        running = stack.inference(0).StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True))
        begun = await read(running, 5)
        token = next(event.started.resume_token for event in begun if event.HasField("started"))
        again = comeback(token, len(ids_of(begun)), 5000)
        while not (await again.read()).HasField("delta"):
            pass
        assert not any(task.done() for task in stale)
        again.cancel()
        for outcome in await asyncio.gather(*stale, return_exceptions=True):
            assert isinstance(outcome, grpc.aio.AioRpcError)


@pytest.mark.parametrize("router", [0, 1])
async def test_a_client_without_output_comes_back_to_an_attempt_that_is_over(tmp_path: Path, router: int) -> None:
    """Its connection broke, so that it was cancelled: it runs again, and does not wait for ever."""
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 5.0}) as stack:
        wanted = stream_request(max_tokens=20, ignore_eos=True)
        first = stack.inference(0).StreamGenerate(wanted)
        while not (started := await first.read()).HasField("started"):
            pass
        first.cancel()
        await until(lambda: not stack.replicas[0].table._attempts)
        wanted.resume.resume_token = started.started.resume_token
        async with asyncio.timeout(10 * patience()):
            events = await rest(stack.inference(router).StreamGenerate(wanted))

        assert 20 == len(ids_of(events))
        assert started.started.request_id == events[-1].finished.request_id


@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize("all_of_it", [False, True])
async def test_a_client_goes_on_while_its_request_waits_after_it_gave_way(
    tmp_path: Path, token: bool, all_of_it: bool
) -> None:
    """At the router that has the output; no other one has it."""
    async with running_stack(tmp_path, routers=2, sim=ONE, queue=QUICK) as stack:
        whole = await undisturbed(stack)
        first = stack.inference(0).StreamGenerate(batch("k"))
        begun = await read(first, 20)
        least = len(ids_of(begun))
        chat = stream_request("Hi", max_tokens=600, ignore_eos=True)
        chat.generate.request_class = types.REQUEST_CLASS_INTERACTIVE
        chatting = asyncio.create_task(rest(stack.inference(1).StreamGenerate(chat)))
        while not begun[-1].HasField("queued"):
            begun.append(await first.read())
        first.cancel()
        again = batch("k")
        have = len(ids_of(begun)) if all_of_it else least
        again.resume.received_tokens.append(have)
        if token:
            again.resume.resume_token = begun[-1].queued.resume_token
        events = await rest(stack.inference(0).StreamGenerate(again))

        deltas = [event.delta for event in events if event.HasField("delta")]
        assert have == deltas[0].offset
        assert ids_of(whole)[have:] == [one for delta in deltas for one in delta.token_ids]
        assert text_of(whole).endswith("".join(delta.text for delta in deltas))
        assert [event.resumed.exact for event in events if event.HasField("resumed")] == [True]
        assert 2 == len(events[-1].finished.receipt.attempts)
        kept = await stack.inference(1).Generate(batch("k").generate)
        assert (ids_of(whole), text_of(whole)) == (list(kept.choices[0].token_ids), kept.choices[0].text)
        await chatting


def counted_tokens(router: Router) -> float:
    return (
        router._metrics.registry.get_sample_value("penstock_router_tokens_total", {"pool": "demo", "kind": "output"})
        or 0.0
    )


async def test_a_choice_that_ended_before_the_others_is_left_with_them(tmp_path: Path) -> None:
    """Its router stops: who goes on with the request needs the end of each choice."""
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 5.0}) as stack:
        wanted = stream_request(max_tokens=300, n=2, temperature=1.0)
        for seed in range(100):
            wanted.generate.sampling.seed = seed
            whole = (await stack.inference(1).Generate(wanted.generate)).choices
            if len(whole[0].token_ids) + 100 < len(whole[1].token_ids):
                break
        earlier = counted_tokens(stack.routers[1])
        stopping, table = stack.routers.pop(0), stack.replicas[0].table
        call = stack.inference(0).StreamGenerate(wanted)
        begun: list[Any] = await read(call, len(whole[0].token_ids))
        await until(lambda: (table.sequences, table.retained) == (1, 1))
        stop = asyncio.create_task(stopping.stop(drain_s=0.0))
        with contextlib.suppress(grpc.aio.AioRpcError):
            while True:
                begun.append(await call.read())
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await stop
        wanted.resume.resume_token = next(e.started.resume_token for e in reversed(begun) if e.HasField("started"))
        wanted.resume.received_tokens.extend(len(ids_of(begun, index)) for index in range(2))
        events = await rest(stack.inference(1).StreamGenerate(wanted))

        for index, choice in enumerate(whole):
            got = [one for e in (*begun, *events) if e.delta.choice_index == index for one in e.delta.token_ids]
            assert list(choice.token_ids) == got
        assert 2 == len(events[-1].finished.receipt.attempts)
        await until(lambda: not table._attempts)
        # A client has its end a moment before the router counts it.
        await until(lambda: counted_tokens(stack.routers[0]) > earlier)
        # What the first router has counted, and the ledger has, is not counted again.
        counted = [counted_tokens(router) for router in (stopping, stack.routers[0])]
        assert len(whole[0].token_ids) == counted[0]
        assert len(whole[1].token_ids) + earlier == counted[1]


async def test_output_that_went_with_its_request_is_not_begun_again(tmp_path: Path) -> None:
    """It gave way, and its client left while it waited; the token of that time names no attempt."""
    async with running_stack(tmp_path, routers=2, sim=ONE, queue=QUICK) as stack:
        wanted = batch("")
        first = stack.inference(0).StreamGenerate(wanted)
        begun = await read(first, 20)
        chat = stream_request("Hi", max_tokens=600, ignore_eos=True)
        chat.generate.request_class = types.REQUEST_CLASS_INTERACTIVE
        chatting = stack.inference(1).StreamGenerate(chat)
        while not begun[-1].HasField("queued"):
            begun.append(await first.read())
        first.cancel()
        pool = stack.routers[0].pools["demo"]
        await until(lambda: not pool.active and not len(pool.releases))
        wanted.resume.resume_token = begun[-1].queued.resume_token
        wanted.resume.received_tokens.append(len(ids_of(begun)))
        again = stack.inference(0).StreamGenerate(wanted)
        chatting.cancel()
        with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
            await rest(again)
