"""The same key is one execution: repeats attach to it, at any router, or get its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2

from router.service import opening
from tests.support.stack import Stack, collect, ids_of, running_stack, stream_request, text_of
from tests.support.waiting import until


@pytest.fixture
async def stack(tmp_path: Path, store_url: str) -> AsyncIterator[Stack]:
    async with running_stack(
        tmp_path, redis_url=store_url, routers=2, sim={"base_ms": 5.0, "max_num_seqs": 2}
    ) as running:
        yield running


def keyed(key: str = "key", tokens: int = 200, **sampling: Any) -> api.StreamGenerateRequest:
    wanted = stream_request(max_tokens=tokens, ignore_eos=True, **sampling)
    wanted.generate.idempotency_key = key
    return wanted


async def read_tokens(call: Any, count: int) -> list[api.StreamGenerateResponse]:
    """Read events until so many tokens came."""
    events = []
    while sum(len(event.delta.token_ids) for event in events) < count:
        events.append(await call.read())
    return events


async def drain(call: Any) -> None:
    """Read a stream to its end, whatever that is."""
    while await call.read() is not grpc.aio.EOF:
        pass


def reason_of(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(error)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return info.reason


@pytest.mark.parametrize("second_router", [0, 1])
async def test_a_repeat_attaches_to_the_running_generation(stack: Stack, second_router: int) -> None:
    first = stack.inference(0).StreamGenerate(keyed())
    begun = await read_tokens(first, 20)

    events = await collect(stack.inference(second_router).StreamGenerate(keyed()))

    ids = ids_of(events)
    assert len(ids) == 200
    assert ids[:20] == ids_of(begun)[:20]
    request_ids = {event.started.request_id for event in (*begun, *events) if event.HasField("started")}
    assert len(request_ids) == 1
    with pytest.raises(grpc.aio.AioRpcError) as taken:
        await drain(first)
    assert (taken.value.code(), reason_of(taken.value)) == (grpc.StatusCode.ABORTED, "TAKEN_OVER")
    [attempt] = events[-1].finished.receipt.attempts
    assert attempt.output_tokens == 200


async def test_a_repeat_goes_on_from_an_offset_and_its_result_is_whole(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(keyed())
    begun = await read_tokens(first, 30)
    have = len(ids_of(begun))
    first.cancel()

    again = keyed()
    again.resume.received_tokens.append(have)
    events = await collect(stack.inference(1).StreamGenerate(again))

    rest = [event.delta for event in events if event.HasField("delta")]
    assert rest[0].offset == have
    assert have + sum(len(delta.token_ids) for delta in rest) == 200
    # The kept result has the part, too, that the second call never sent.
    unary = await stack.inference(0).Generate(keyed().generate)
    assert unary.choices[0].text == text_of(begun) + text_of(events)
    assert len(unary.choices[0].token_ids) == 200


async def test_after_the_end_the_result_is_returned(stack: Stack) -> None:
    events = await collect(stack.inference(0).StreamGenerate(keyed(tokens=12)))
    end = events[-1].finished

    repeated = await collect(stack.inference(1).StreamGenerate(keyed(tokens=12)))
    unary = await stack.inference(1).Generate(keyed(tokens=12).generate)

    assert (ids_of(repeated), text_of(repeated)) == (ids_of(events), text_of(events))
    assert repeated[-1].finished == end
    assert (unary.request_id, unary.receipt, unary.usage) == (end.request_id, end.receipt, end.usage)
    assert list(unary.choices[0].token_ids) == ids_of(events)


async def test_the_rest_of_a_result_is_returned_from_the_end_of_a_delta(stack: Stack) -> None:
    events = await collect(stack.inference(0).StreamGenerate(keyed(tokens=12, logprobs=1)))
    deltas = [event.delta for event in events if event.HasField("delta")]
    # On a busy machine several tokens share one.
    have = deltas[len(deltas) // 2 - 1].offset + len(deltas[len(deltas) // 2 - 1].token_ids)
    wanted = keyed(tokens=12, logprobs=1)
    wanted.resume.received_tokens.append(have)
    rest = await collect(stack.inference(1).StreamGenerate(wanted))

    [delta] = [event.delta for event in rest if event.HasField("delta")]
    assert 0 < have < 12
    assert (delta.offset, list(delta.token_ids)) == (have, ids_of(events)[have:])
    assert len(delta.logprobs) == 12 - have
    assert text_of(events).endswith(delta.text)
    beyond = keyed(tokens=12, logprobs=1)
    beyond.resume.received_tokens.append(13)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await collect(stack.inference(1).StreamGenerate(beyond))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_many_choices_are_returned_when_all_have_ended(stack: Stack) -> None:
    wanted = keyed(tokens=60, n=2).generate
    first = asyncio.ensure_future(stack.inference(0).Generate(wanted))
    await until(lambda: any(replica.table.sequences for replica in stack.replicas))
    second = await stack.inference(1).Generate(wanted)

    assert second == await first
    assert len(second.choices) == 2


async def test_a_default_that_is_written_out_makes_no_other_request(stack: Stack) -> None:
    first = await stack.inference(0).Generate(keyed(tokens=4).generate)
    repeat = keyed(tokens=4, n=1, top_p=1.0, repetition_penalty=1.0, min_tokens=0).generate
    repeat.request_class = types_pb2.REQUEST_CLASS_STANDARD

    assert first == await stack.inference(1).Generate(repeat)


async def test_another_body_under_the_key_is_refused(stack: Stack) -> None:
    await collect(stack.inference(0).StreamGenerate(keyed(tokens=3)))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stack.inference(1).Generate(keyed(tokens=4).generate)
    assert (refused.value.code(), reason_of(refused.value)) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "IDEMPOTENCY_KEY_REUSED",
    )


async def test_how_long_the_client_waits_is_not_part_of_the_body(stack: Stack) -> None:
    await collect(stack.inference(0).StreamGenerate(keyed(tokens=3)))
    wanted = keyed(tokens=3).generate
    wanted.queue_timeout.FromSeconds(7)
    assert (await stack.inference(1).Generate(wanted)).usage.output_tokens == 3


async def test_a_waiting_repeat_keeps_the_place(stack: Stack) -> None:
    busy = [stack.inference(0).StreamGenerate(stream_request(max_tokens=4000, ignore_eos=True)) for _ in range(2)]
    for call in busy:
        await call.read()
    first = stack.inference(0).StreamGenerate(keyed(tokens=5))
    assert (await first.read()).HasField("queued")
    behind = stack.inference(0).StreamGenerate(stream_request(max_tokens=5, ignore_eos=True))
    assert (await behind.read()).queued.position == 1

    second = stack.inference(1).StreamGenerate(keyed(tokens=5))
    queued = await second.read()
    assert (queued.queued.position, queued.HasField("queued")) == (0, True)
    with pytest.raises(grpc.aio.AioRpcError) as taken:
        await drain(first)
    assert reason_of(taken.value) == "TAKEN_OVER"
    for call in busy:
        call.cancel()
    assert len(ids_of([queued, *(await collect(second))])) == 5
    await collect(behind)


async def test_a_lost_client_finds_its_generation_within_the_grace(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(keyed())
    begun = await read_tokens(first, 10)
    first.cancel()
    await until(lambda: stack.routers[0]._inference.open_calls == 0)

    events = await collect(stack.inference(1).StreamGenerate(keyed()))

    assert ids_of(events)[:10] == ids_of(begun)[:10]
    assert events[-1].finished.request_id == begun[0].started.request_id
    assert len(events[-1].finished.receipt.attempts) == 1


async def test_a_lost_client_that_stays_away_costs_no_more_than_the_grace(tmp_path: Path, store_url: str) -> None:
    async with running_stack(
        tmp_path, redis_url=store_url, queue={"attach_grace_s": 0.3}, sim={"base_ms": 5.0}
    ) as stack:
        first = stack.inference().StreamGenerate(keyed(tokens=20_000))
        begun = await read_tokens(first, 10)
        first.cancel()
        await until(lambda: stack.replicas[0].table.sequences == 0)
        # The key is free again.
        again = stack.inference().StreamGenerate(keyed(tokens=20_000))
        started = await again.read()
        assert started.started.request_id != begun[0].started.request_id
        again.cancel()


async def test_a_cancelled_request_leaves_no_result(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(keyed(tokens=5000))
    begun = await read_tokens(first, 10)
    await stack.inference(1).Cancel(api.CancelRequest(idempotency_key="key"))
    await collect(first)

    again = stack.inference(1).StreamGenerate(keyed(tokens=5000))
    started = await again.read()
    assert started.started.request_id != begun[0].started.request_id
    again.cancel()


async def test_many_choices_whose_result_never_came_run_again(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their router died between their ends and the result; while one of them runs, its result may come."""
    monkeypatch.setattr(opening, "JOIN_S", 0.3)

    async def lost(*_: Any) -> None: ...

    monkeypatch.setattr(stack.routers[0].pools["demo"], "finish_key", lost)
    first = asyncio.ensure_future(stack.inference(0).Generate(keyed(n=2, seed=1).generate))
    await until(lambda: stack.replicas[0].table.sequences == 2)
    again = await stack.inference(1).Generate(keyed(n=2, seed=1).generate, timeout=30)

    assert first.done()
    assert first.result().request_id != again.request_id
    assert [list(choice.token_ids) for choice in first.result().choices] == [list(c.token_ids) for c in again.choices]


async def test_a_request_that_is_refused_in_part_leaves_its_key_free(tmp_path: Path, store_url: str) -> None:
    """Its first choice had opened the key, and no result ever comes."""
    quota = {"default_tenant": {"quota": {"concurrency": 2}}}
    async with running_stack(tmp_path, redis_url=store_url, sim={"base_ms": 5.0}, sections=quota) as stack:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stack.inference(0).Generate(keyed(n=3).generate, timeout=20)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED is refused.value.code()
        answers: list[api.GenerateResponse] = []

        async def served() -> bool:
            try:
                answers.append(await stack.inference(0).Generate(keyed(tokens=5, n=2).generate, timeout=20))
            except grpc.aio.AioRpcError as error:
                # What the refused ones had of the quota is on its way back.
                assert grpc.StatusCode.RESOURCE_EXHAUSTED is error.code()  # noqa: PT017 - either will do
            return bool(answers)

        await until(served)
        (answer,) = answers
        assert [5, 5] == [len(choice.token_ids) for choice in answer.choices]
