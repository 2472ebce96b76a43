"""Generation through a real router, a real replica and real gRPC, with a simulated engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.support.stack import (
    Stack,
    collect,
    first_tokens,
    ids_of,
    request,
    request_id_of,
    running_stack,
    stream_request,
    text_of,
)
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), routers=2) as running:
        yield running


def slots(stack: Stack) -> int:
    """Count slots taken on all replicas."""
    return sum(replica.table.sequences for replica in stack.replicas)


async def test_a_stream_has_started_deltas_and_a_finished_with_its_receipt(stack: Stack) -> None:
    events = await collect(stack.inference().StreamGenerate(stream_request(max_tokens=20, ignore_eos=True)))

    kinds = [event.WhichOneof("event") for event in events]
    assert "started" == kinds[0]
    assert "finished" == kinds[-1]
    assert {"delta"} == set(kinds[1:-1])
    assert 20 == len(ids_of(events))
    end = events[-1].finished
    assert (20, types.FINISH_REASON_LENGTH) == (end.choices[0].output_tokens, end.choices[0].finish_reason)
    assert 20 == end.usage.output_tokens
    [attempt] = end.receipt.attempts
    assert attempt.replica_id == events[0].started.replica_id
    assert attempt.group_id
    assert end.receipt.exact
    parts = [attempt.queue_time, attempt.prefill_time, attempt.decode_time]
    assert all(part.ToTimedelta().total_seconds() > 0 for part in parts)
    total = end.receipt.total_time.ToTimedelta().total_seconds()
    # Replica and router look at their clocks at different turns of a busy loop.
    assert sum(part.ToTimedelta().total_seconds() for part in parts) <= total + 0.2


async def test_generate_returns_what_the_stream_gives(stack: Stack) -> None:
    events = await collect(stack.inference().StreamGenerate(stream_request(max_tokens=12)))
    call = stack.inference().Generate(request(max_tokens=12))
    reply = await call

    assert text_of(events) == reply.choices[0].text
    assert ids_of(events) == list(reply.choices[0].token_ids)
    metadata = dict(await call.initial_metadata())
    assert reply.request_id == metadata["penstock-request-id"]
    assert metadata["penstock-resume-token-bin"]


async def test_the_same_greedy_prompt_gives_the_same_tokens_through_both_routers(stack: Stack) -> None:
    one, other = await asyncio.gather(
        *(stack.inference(router).Generate(request("Hello", max_tokens=9)) for router in (0, 1))
    )
    assert one.choices[0].token_ids == other.choices[0].token_ids
    assert one.receipt.router_id != other.receipt.router_id


async def test_n_choices_are_independent_streams_with_one_receipt(stack: Stack) -> None:
    events = await collect(
        stack.inference().StreamGenerate(stream_request(n=3, seed=5, temperature=1.0, max_tokens=8, ignore_eos=True))
    )
    end = events[-1].finished
    assert [0, 1, 2] == [choice.index for choice in end.choices]
    assert 3 == len({tuple(ids_of(events, index)) for index in range(3)})
    assert 3 == len(end.receipt.attempts)
    assert 24 == end.usage.output_tokens
    single = await stack.inference().Generate(request(seed=6, temperature=1.0, max_tokens=8, ignore_eos=True))
    assert ids_of(events, 1) == list(single.choices[0].token_ids)


async def test_logprobs_come_with_every_token(stack: Stack) -> None:
    reply = await stack.inference().Generate(request(max_tokens=6, logprobs=2, ignore_eos=True))
    positions = reply.choices[0].logprobs
    assert list(reply.choices[0].token_ids) == [position.chosen.token_id for position in positions]
    assert all(2 == len(position.top) for position in positions)


def joined(positions: Iterable[types.PositionLogprobs]) -> str:
    return b"".join(position.chosen.token_bytes for position in positions).decode()


async def test_log_probabilities_name_the_texts_of_all_tokens(stack: Stack) -> None:
    reply = await stack.inference().Generate(request(max_tokens=6, logprobs=3, ignore_eos=True))
    [choice] = reply.choices
    assert choice.text == joined(choice.logprobs)
    for position in choice.logprobs:
        for token in position.top:
            shown = await stack.inference().Detokenize(api.DetokenizeRequest(model="demo", token_ids=[token.token_id]))
            assert shown.text == token.token_bytes.decode(errors="replace")
    assert not (await stack.inference().Generate(request(max_tokens=2))).choices[0].logprobs


async def test_log_probabilities_of_the_prompt_come_once_with_the_first_choice(stack: Stack) -> None:
    text = "What is Penstock? The pipe of a turbine."
    asked = stream_request(text, max_tokens=8, n=3, prompt_logprobs=2, temperature=1.0, seed=5, ignore_eos=True)
    events, whole = await asyncio.gather(
        collect(stack.inference(0).StreamGenerate(asked)), stack.inference(1).Generate(asked.generate)
    )
    [delta] = [event.delta for event in events if event.delta.prompt_logprobs]
    assert (0, 0) == (delta.choice_index, delta.offset)
    first, *others = delta.prompt_logprobs
    assert f"<|begin|>{text}" == joined(delta.prompt_logprobs)
    assert (-9999.0, 0, 0) == (first.chosen.logprob, len(first.top), first.rank)
    for position in others:
        assert 2 == len(position.top)
        assert all(token.token_bytes for token in position.top)
        assert (position.rank, position.top[0]) == (1, position.chosen)
    assert list(delta.prompt_logprobs) == list(whole.prompt_logprobs)
    assert whole.usage.prompt_tokens == len(whole.prompt_logprobs)
    assert 0 == whole.usage.cached_tokens


async def test_a_long_prompt_gets_all_its_log_probabilities_and_no_more_than_one_request_may_ask(
    stack: Stack,
) -> None:
    tokens = types.Prompt(tokens=types.TokenPrompt(ids=[5 + i % 200 for i in range(3_000)]))
    sampling = types.SamplingParams(max_tokens=1, prompt_logprobs=20)
    reply = await stack.inference().Generate(api.GenerateRequest(model="demo", prompt=tokens, sampling=sampling))
    assert list(tokens.tokens.ids) == [position.chosen.token_id for position in reply.prompt_logprobs]

    tokens.tokens.ids.extend([5] * 4_000)
    with pytest.raises(grpc.aio.AioRpcError, match="at most 17 with 7000 prompt tokens, got 20") as caught:
        await stack.inference().Generate(api.GenerateRequest(model="demo", prompt=tokens, sampling=sampling))
    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()


async def test_a_stop_string_ends_the_text_before_it(stack: Stack) -> None:
    whole = (await stack.inference().Generate(request(max_tokens=30, ignore_eos=True))).choices[0].text
    stop = whole[len(whole) // 2 :][:4]
    reply = await stack.inference().Generate(request(max_tokens=30, ignore_eos=True, stop=[stop]))

    assert whole[: whole.index(stop)] == reply.choices[0].text
    assert (types.FINISH_REASON_STOP, stop) == (reply.choices[0].finish_reason, reply.choices[0].stop_match)


async def test_chat_text_and_tokens_are_three_ways_to_prompt(stack: Stack) -> None:
    chat = types.Prompt(chat=types.ChatPrompt(messages=[types.ChatMessage(role="user", content="Hi")]))
    count = await stack.inference().CountTokens(api.CountTokensRequest(model="demo", prompt=chat))
    shown = await stack.inference().Detokenize(api.DetokenizeRequest(model="demo", token_ids=count.token_ids))
    assert "<|begin|><|user|>Hi<|end|><|assistant|>" == shown.text
    tokens = types.Prompt(tokens=types.TokenPrompt(ids=count.token_ids))
    sampling = types.SamplingParams(max_tokens=8, temperature=0.0)
    by_chat, by_tokens = await asyncio.gather(
        *(
            stack.inference().Generate(api.GenerateRequest(model="demo", prompt=prompt, sampling=sampling))
            for prompt in (chat, tokens)
        )
    )
    assert count.tokens == by_chat.usage.prompt_tokens
    assert by_chat.choices[0].token_ids == by_tokens.choices[0].token_ids


async def test_flush_interval_merges_deltas_but_not_the_first(stack: Stack) -> None:
    every = await collect(stack.inference().StreamGenerate(stream_request(max_tokens=60, ignore_eos=True)))
    merged_request = stream_request(max_tokens=60, ignore_eos=True)
    merged_request.flush_interval.CopyFrom(Duration(nanos=40_000_000))
    merged = await collect(stack.inference().StreamGenerate(merged_request))

    assert ids_of(every) == ids_of(merged)
    deltas = [event.delta for event in merged if event.HasField("delta")]
    assert len(deltas) < sum(event.HasField("delta") for event in every) / 2
    assert len(deltas[0].token_ids) < 10


async def test_the_first_token_of_no_choice_waits_for_the_flush_interval(tmp_path: Path) -> None:
    """One slot: the second choice begins when the first one has ended."""
    two = stream_request(max_tokens=20, ignore_eos=True, n=2)
    two.flush_interval.CopyFrom(Duration(seconds=10))
    async with running_stack(tmp_path, sim={"base_ms": 50.0, "max_num_seqs": 1}) as stack:
        events = await collect(stack.inference().StreamGenerate(two))

    deltas = [event.delta for event in events if event.HasField("delta")]
    firsts = [next(delta for delta in deltas if delta.choice_index == choice) for choice in (0, 1)]
    assert all(len(delta.token_ids) < 10 for delta in firsts)


async def test_the_end_is_not_held_back_by_a_long_flush_interval(stack: Stack) -> None:
    long_request = stream_request(max_tokens=20, ignore_eos=True)
    long_request.flush_interval.CopyFrom(Duration(seconds=10))
    async with asyncio.timeout(8):
        events = await collect(stack.inference().StreamGenerate(long_request))

    assert 20 == len(ids_of(events))


async def test_a_router_that_streams_much_merges_where_that_is_left_open(tmp_path: Path) -> None:
    busy = {"merging": {"streams": 1, "at_most_s": 0.1}}
    async with running_stack(tmp_path, router=busy, sim={"base_ms": 5.0}) as stack:
        left_open = stream_request(max_tokens=400, ignore_eos=True)
        every = stream_request(max_tokens=400, ignore_eos=True)
        every.flush_interval.CopyFrom(Duration())
        merged, single = [await collect(stack.inference().StreamGenerate(asked)) for asked in (left_open, every)]

    assert ids_of(merged) == ids_of(single)
    messages, of_every = [sum(event.HasField("delta") for event in events) for events in (merged, single)]
    # A machine that is behind merges what it was asked not to, too, if not as much.
    assert messages < min(0.6 * 400, of_every)


async def test_a_cancelled_stream_frees_its_slot_and_ends_with_finished(stack: Stack) -> None:
    call = stack.inference().StreamGenerate(stream_request(max_tokens=5_000, ignore_eos=True))
    events = await first_tokens(call, 1)
    reply = await stack.inference().Cancel(api.CancelRequest(request_id=request_id_of(events)))
    events.extend(await collect(call))

    assert request_id_of(events) == reply.request_id
    assert types.FINISH_REASON_CANCELLED == events[-1].finished.choices[0].finish_reason
    assert len(ids_of(events)) == events[-1].finished.choices[0].output_tokens
    await until(lambda: slots(stack) == 0)


async def test_any_router_cancels_by_the_clients_own_key(stack: Stack) -> None:
    generate = request(max_tokens=5_000, ignore_eos=True)
    generate.idempotency_key = "mine"
    call = stack.inference(0).StreamGenerate(api.StreamGenerateRequest(generate=generate))
    await call.read()
    await stack.inference(1).Cancel(api.CancelRequest(idempotency_key="mine"))
    events = await collect(call)

    assert types.FINISH_REASON_CANCELLED == events[-1].finished.choices[0].finish_reason
    await until(lambda: slots(stack) == 0)


async def test_a_client_that_goes_away_frees_its_slot(stack: Stack) -> None:
    call = stack.inference().StreamGenerate(stream_request(max_tokens=5_000, ignore_eos=True))
    await call.read()
    await until(lambda: slots(stack) == 1)
    call.cancel()
    await until(lambda: slots(stack) == 0)


async def test_cancelling_an_unknown_request_is_not_found(stack: Stack) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.inference().Cancel(api.CancelRequest(request_id="nope"))
    assert grpc.StatusCode.NOT_FOUND is caught.value.code()


async def test_models_are_listed_and_described(stack: Stack) -> None:
    [model] = (await stack.inference().ListModels(api.ListModelsRequest())).models
    assert "demo" == model.name
    assert 1 == model.ready_replicas
    assert model.capabilities.chat
    assert model == (await stack.inference().GetModel(api.GetModelRequest(model="demo"))).model


async def test_nothing_is_left_in_the_queue_when_all_is_done(stack: Stack) -> None:
    await asyncio.gather(*(stack.inference(i % 2).Generate(request(max_tokens=3)) for i in range(40)))
    await until(lambda: slots(stack) == 0)
    for router in stack.routers:
        await until(lambda router=router: router.pools["demo"].active == 0)
        await until(lambda router=router: router.pools["demo"].beat.running == 0)
    await until(lambda: stack.replicas[0].table.retained == 0)


async def test_the_model_says_the_most_log_probabilities_that_are_accepted(tmp_path: Path) -> None:
    """The engine's bound or the operator's, whichever is lower."""
    async with running_stack(tmp_path, sim={"time_scale": 0.0}, router={"limits": {"max_logprobs": 3}}) as stack:
        model = (await stack.inference().GetModel(api.GetModelRequest(model="demo"))).model
        assert 3 == model.capabilities.max_logprobs
        await stack.inference().Generate(request(max_tokens=2, logprobs=3))
