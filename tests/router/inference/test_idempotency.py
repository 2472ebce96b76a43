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
from penstock.v1 import inference_pb2_grpc, types_pb2
from router.inference import admit as opening
from router.inference.collect import Collector
from tests.router.dispatch.streams import move_on, stand
from tests.support.speed import patience
from tests.support.stack import Stack, collect, ids_of, request_id_of, running_stack, stream_request, text_of
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
    stand(stack)
    second = stack.inference(second_router).StreamGenerate(keyed())
    events = [await second.read()]
    move_on(stack)
    events += await collect(second)

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


async def test_a_choice_that_its_client_had_whole_is_in_the_result(stack: Stack) -> None:
    """It ended before the others, and the call that came back for those was sent nothing of it."""
    wanted = keyed(tokens=300, n=2, temperature=1.0)
    wanted.generate.sampling.ignore_eos = False
    plain = wanted.generate
    plain.idempotency_key = ""
    for seed in range(100):
        plain.sampling.seed = seed
        whole = (await stack.inference(0).Generate(plain)).choices
        have = len(whole[0].token_ids)
        if have + 50 < len(whole[1].token_ids):
            break
    wanted.generate.idempotency_key = "key"
    first = stack.inference(0).StreamGenerate(wanted)
    begun: list[api.StreamGenerateResponse] = []
    while len(ids_of(begun)) < have:
        begun.append(await first.read())
    first.cancel()
    again = api.StreamGenerateRequest(generate=wanted.generate)
    again.resume.resume_token = token_of(begun)
    again.resume.received_tokens.extend([have, len(ids_of(begun, 1))])
    rest = await collect(stack.inference(1).StreamGenerate(again))

    assert {1} == {event.delta.choice_index for event in rest if event.HasField("delta")}
    kept = await stack.inference(0).Generate(wanted.generate)
    assert [choice.token_ids for choice in whole] == [choice.token_ids for choice in kept.choices]
    assert [choice.text for choice in whole] == [choice.text for choice in kept.choices]


@pytest.mark.parametrize("token", [False, True])
async def test_who_comes_back_needs_no_time_for_what_is_done(stack: Stack, token: bool) -> None:
    """Its deadline is shorter than a whole run, which would be refused."""
    first = stack.inference(0).StreamGenerate(keyed())
    begun = await read_tokens(first, 30)
    first.cancel()
    pool = stack.routers[1].pools["demo"]
    pool.admission.estimate.ran(10, 200, 0.1, 1000.0)
    with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED") as refused:
        await collect(stack.inference(1).StreamGenerate(keyed("another"), timeout=30.0))
    assert reason_of(refused.value) == "NOT_IN_TIME"

    again = keyed()
    again.resume.received_tokens.append(count(*begun))
    again.resume.resume_token = token_of(begun) if token else b""
    events = await collect(stack.inference(1).StreamGenerate(again, timeout=30.0))
    assert count(*begun, *events) == 200
    # Nor does who asks for the result.
    pool.admission.estimate.ran(10, 200, 0.1, 1000.0)
    kept = await stack.inference(1).Generate(keyed().generate, timeout=30.0)
    assert len(kept.choices[0].token_ids) == 200


async def test_after_the_end_the_result_is_returned(stack: Stack) -> None:
    events = await collect(stack.inference(0).StreamGenerate(keyed(tokens=12)))
    end = events[-1].finished

    repeated = await collect(stack.inference(1).StreamGenerate(keyed(tokens=12)))
    unary = await stack.inference(1).Generate(keyed(tokens=12).generate)

    assert (ids_of(repeated), text_of(repeated)) == (ids_of(events), text_of(events))
    assert repeated[-1].finished == end
    assert (unary.request_id, unary.receipt, unary.usage) == (end.request_id, end.receipt, end.usage)
    assert list(unary.choices[0].token_ids) == ids_of(events)


async def test_a_kept_result_has_its_log_probabilities(stack: Stack) -> None:
    asked = keyed(tokens=12, logprobs=2, prompt_logprobs=1)
    events = await collect(stack.inference(0).StreamGenerate(asked))
    [prompt] = [list(event.delta.prompt_logprobs) for event in events if event.delta.prompt_logprobs]
    repeated = await collect(stack.inference(1).StreamGenerate(asked))
    unary = await stack.inference(1).Generate(asked.generate)
    assert [prompt] == [list(e.delta.prompt_logprobs) for e in repeated if e.HasField("delta")]
    assert prompt == list(unary.prompt_logprobs)
    positions = [position for event in events for position in event.delta.logprobs]
    assert positions == list(unary.choices[0].logprobs)
    assert all(position.chosen.token_bytes for position in positions)


async def test_the_rest_of_a_result_is_returned_from_the_end_of_a_delta(stack: Stack) -> None:
    events = await collect(stack.inference(0).StreamGenerate(keyed(tokens=12, logprobs=1, prompt_logprobs=1)))
    deltas = [event.delta for event in events if event.HasField("delta")]
    # On a busy machine several tokens share one.
    have = deltas[len(deltas) // 2 - 1].offset + len(deltas[len(deltas) // 2 - 1].token_ids)
    wanted = keyed(tokens=12, logprobs=1, prompt_logprobs=1)
    wanted.resume.received_tokens.append(have)
    rest = await collect(stack.inference(1).StreamGenerate(wanted))

    [delta] = [event.delta for event in rest if event.HasField("delta")]
    assert 0 < have < 12
    assert (delta.offset, list(delta.token_ids)) == (have, ids_of(events)[have:])
    assert len(delta.logprobs) == 12 - have
    assert not delta.prompt_logprobs
    assert text_of(events).endswith(delta.text)
    beyond = keyed(tokens=12, logprobs=1, prompt_logprobs=1)
    beyond.resume.received_tokens.append(13)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await collect(stack.inference(1).StreamGenerate(beyond))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def count(*events: api.StreamGenerateResponse) -> int:
    """Count output tokens."""
    return sum(len(event.delta.token_ids) for event in events)


def token_of(events: list[api.StreamGenerateResponse]) -> bytes:
    return next(event.started.resume_token for event in events if event.HasField("started"))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("second_router", [0, 1])
async def test_a_token_finds_the_result_after_the_end(stack: Stack, second_router: int, n: int) -> None:
    events = await collect(stack.inference(0).StreamGenerate(keyed(tokens=60, n=n)))
    await until(lambda: not stack.replicas[0].table._attempts)
    again = keyed(tokens=60, n=n)
    again.resume.resume_token = token_of(events)

    whole = await collect(stack.inference(second_router).StreamGenerate(again))
    have = next(e.delta.offset + len(e.delta.token_ids) for e in events if e.HasField("delta"))
    again.resume.received_tokens.extend((have, 60)[:n])
    rest = await collect(stack.inference(second_router).StreamGenerate(again))

    assert n * 60 == count(*whole)
    assert 60 - have == count(*rest)
    assert events[-1].finished == whole[-1].finished == rest[-1].finished
    # Nor does a resume that can't go on take the result away.
    again.resume.received_tokens[0] = 61
    with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
        await collect(stack.inference(second_router).StreamGenerate(again))
    unary = await stack.inference(0).Generate(keyed(tokens=60, n=n).generate)
    assert events[-1].finished.request_id == unary.request_id


async def test_a_token_joins_the_request_that_has_its_key_now(stack: Stack) -> None:
    busy = [stack.inference(0).StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True)) for _ in range(2)]
    for call in busy:
        await call.read()
    first = stack.inference(0).StreamGenerate(keyed(tokens=50))
    queued = (await first.read()).queued
    await stack.inference(1).Cancel(api.CancelRequest(request_id=queued.request_id))
    await collect(first)
    second = stack.inference(1).StreamGenerate(keyed(tokens=50))
    other = (await second.read()).queued
    again = keyed(tokens=50)
    again.resume.resume_token = queued.resume_token
    third = stack.inference(1).StreamGenerate(again)
    assert (await third.read()).queued.request_id == other.request_id
    for call in busy:
        call.cancel()

    async with asyncio.timeout(10 * patience()):
        assert len(ids_of(await collect(third))) == 50
    with pytest.raises(grpc.aio.AioRpcError) as taken:
        await drain(second)
    assert reason_of(taken.value) == "TAKEN_OVER"
    # Tokens of one execution are not followed by those of another.
    again.resume.received_tokens.append(3)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await collect(stack.inference(0).StreamGenerate(again))
    assert reason_of(failed.value) == "GENERATION_FAILED"


async def test_output_under_a_key_that_nobody_knows_is_not_begun_again(stack: Stack) -> None:
    wanted = keyed("never used", tokens=10)
    wanted.resume.received_tokens.append(7)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await collect(stack.inference(0).StreamGenerate(wanted))
    assert reason_of(failed.value) == "GENERATION_FAILED"
    assert not stack.replicas[0].table.interactive_started
    wanted.resume.received_tokens[0] = 0
    assert len(ids_of(await collect(stack.inference(0).StreamGenerate(wanted)))) == 10


async def test_an_offset_that_is_no_end_of_a_delta_does_no_harm(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(keyed(tokens=600))
    begun = await read_tokens(first, 20)
    first.cancel()
    again = keyed(tokens=600)
    again.resume.received_tokens.append(590)
    for token in (b"", token_of(begun)):
        again.resume.resume_token = token
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await collect(stack.inference(1).StreamGenerate(again))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "resume.received_tokens" in str(refused.value.details())
    again.resume.received_tokens[0] = count(*begun)
    events = await collect(stack.inference(1).StreamGenerate(again))
    assert count(*begun, *events) == 600
    [attempt] = events[-1].finished.receipt.attempts
    assert attempt.output_tokens == 600


@pytest.mark.parametrize("comes_back", [True, False])
async def test_output_is_not_begun_again_while_its_replica_is_not_reached(
    stack: Stack, comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stack.inference(0).StreamGenerate(keyed(tokens=600))
    begun = await read_tokens(first, 20)
    first.cancel()
    pool = stack.routers[1].pools["demo"]
    link = pool.replicas.link(stack.replicas[0].plan.replica_id)
    assert link is not None
    # As while it reconnects; what runs stays as it is.
    link._set_up(False)
    again = keyed(tokens=600)
    again.resume.received_tokens.append(count(*begun))
    if comes_back:
        asyncio.get_running_loop().call_later(0.3, link._set_up, True)
    else:
        monkeypatch.setattr(pool.adoption, "_attach_grace_s", 0.3)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await collect(stack.inference(1).StreamGenerate(again))
        link._set_up(True)
    events = await collect(stack.inference(1).StreamGenerate(again))
    assert count(*begun, *events) == 600
    [attempt] = events[-1].finished.receipt.attempts
    assert attempt.output_tokens == 600


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
    assert events[-1].finished.request_id == request_id_of(begun)
    assert len(events[-1].finished.receipt.attempts) == 1


async def test_a_lost_client_that_stays_away_costs_no_more_than_the_grace(tmp_path: Path, store_url: str) -> None:
    async with running_stack(
        tmp_path, redis_url=store_url, queue={"attach_grace_s": 0.3}, sim={"base_ms": 5.0}
    ) as stack:
        first = stack.inference().StreamGenerate(keyed(tokens=20_000))
        begun = await read_tokens(first, 10)
        first.cancel()
        # An attempt that is lost to a busy machine runs again while the grace lasts.
        pool = stack.routers[0].pools["demo"]
        await until(lambda: not pool.active and stack.replicas[0].table.sequences == 0)
        # Its output is gone, and another run may say something else.
        late = keyed(tokens=20_000)
        late.resume.received_tokens.append(len(ids_of(begun)))
        for token in (b"", token_of(begun)):
            late.resume.resume_token = token
            with pytest.raises(grpc.aio.AioRpcError, match="ABORTED") as gone:
                await collect(stack.inference().StreamGenerate(late))
            assert "can't go on after" in str(gone.value.details())
            assert "0.3 s (queue.attach_grace_s)" in str(gone.value.details())
        # The key is free again.
        again = stack.inference().StreamGenerate(keyed(tokens=20_000))
        assert request_id_of([await again.read()]) != request_id_of(begun)
        again.cancel()


async def test_a_result_does_not_wait_for_a_client_that_does_not_read(stack: Stack) -> None:
    """Its connection may be dead, and its next call comes before the router knows. A request runs once all the same."""
    # Its own gRPC would read ahead otherwise.
    options = (
        ("grpc.http2.lookahead_bytes", 1 << 16),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.routers[0].port}", options=options) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        wanted = keyed(tokens=400, n=2, logprobs=20, prompt_logprobs=1)
        first = stub.StreamGenerate(wanted)
        begun = await read_tokens(first, 1)
        pool = stack.routers[0].pools["demo"]
        await until(lambda: not pool.active and not len(pool.releases))

        again = await collect(stack.inference(1).StreamGenerate(wanted))

        assert request_id_of(begun) == again[-1].finished.request_id
        events = [*begun, *await collect(first)]
        read, kept = Collector(), Collector()
        for collector, all_events in ((read, events), (kept, again)):
            for event in all_events:
                collector.add(event)
        assert [400, 400] == [len(choice.token_ids) for choice in read.response().choices]
        assert list(read.response().choices) == list(kept.response().choices)
        assert list(read.response().prompt_logprobs) == list(kept.response().prompt_logprobs) != []
        assert read.finished.usage == kept.finished.usage


async def test_a_cancelled_request_leaves_no_result(stack: Stack) -> None:
    first = stack.inference(0).StreamGenerate(keyed(tokens=5000))
    begun = await read_tokens(first, 10)
    await stack.inference(1).Cancel(api.CancelRequest(idempotency_key="key"))
    await collect(first)

    again = stack.inference(1).StreamGenerate(keyed(tokens=5000))
    assert request_id_of([await again.read()]) != request_id_of(begun)
    again.cancel()


async def test_many_choices_whose_result_never_came_run_again(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their router died between their ends and the result; while one of them runs, its result may come."""
    monkeypatch.setattr(opening, "JOIN_S", 0.3)

    async def lost(*_: Any) -> None: ...

    monkeypatch.setattr(stack.routers[0].pools["demo"].keys, "finish", lost)
    first = asyncio.ensure_future(stack.inference(0).Generate(keyed(n=2, seed=1).generate))
    await until(lambda: stack.replicas[0].table.sequences == 2)
    again = await stack.inference(1).Generate(keyed(n=2, seed=1).generate, timeout=30)

    assert first.done()
    assert first.result().request_id != again.request_id
    assert [list(choice.token_ids) for choice in first.result().choices] == [list(c.token_ids) for c in again.choices]


async def test_several_choices_run_on_while_a_repeat_waits_for_their_result(tmp_path: Path, store_url: str) -> None:
    """Their client leaves for longer than the grace, and the repeat can't attach."""
    async with running_stack(
        tmp_path,
        redis_url=store_url,
        routers=2,
        queue={"lease_s": 20.0, "attach_grace_s": 0.3},
        sim={"base_ms": 5.0, "max_num_seqs": 2},
    ) as stack:
        wanted = keyed(n=2, tokens=500)
        first = stack.inference(0).StreamGenerate(wanted)
        begun = await read_tokens(first, 4)
        [name] = {event.started.request_id for event in begun if event.HasField("started")}
        again = asyncio.ensure_future(stack.inference(1).Generate(wanted.generate, timeout=60))
        # With the grace alone, a slow machine could end it before the repeat is there.
        await until(lambda: stack.routers[0].pools["demo"].keys.awaited("anonymous", "key", name))
        first.cancel()

        answer = await again

        assert name == answer.request_id
        assert [500, 500] == [len(choice.token_ids) for choice in answer.choices]
        assert {1} == {len(answer.receipt.attempts) // 2}
        # Without one that waits, the grace is the end.
        lonely = stack.inference(0).StreamGenerate(keyed("lonely", n=2, tokens=5000))
        await read_tokens(lonely, 4)
        lonely.cancel()
        await until(lambda: stack.replicas[0].table.sequences == 0)


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
