"""Tool calls from the engine's text to the client: streams, keys, and the deaths of routers and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.client import (
    AsyncClient,
    Completion,
    Delta,
    Finished,
    FinishReason,
    GenerateOptions,
    InvalidArgumentError,
    Message,
    Sampling,
    Tool,
    ToolCall,
    ToolCallDelta,
)
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.dispatch.streams import stand
from tests.router.links.parts import kill
from tests.support.stack import Stack, collect, running_stack, sim_pool
from tests.support.tools_model import make_tools_model
from tests.support.waiting import until

REASONING = "The user asks for the weather in two cities, so I look for both of them."
TEXT = "\nLet me look: 1 < 2.\n"
CALLS = (("get_weather", '{"city": "Paris", "days": 3, "note": "a \\"b\\" <c>"}'), ("get_time", '{"zone": "UTC"}'))
ANSWER = f"<think>{REASONING}</think>{TEXT}" + "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in CALLS
)
TOOLS = [Tool(name, parameters='{"type": "object"}') for name, _ in CALLS]
QUESTION = [Message("user", "What is the weather?")]
LONG = Sampling(temperature=0.0, max_tokens=600)


def tools_pool(folder: Path, **sim: Any) -> dict[str, Any]:
    return {"demo": {**sim_pool(answer=ANSWER, **sim), "model": str(make_tools_model(folder))}}


@dataclass
class Read:
    """What a client read of one choice."""

    tokens: int = 0
    text: str = ""
    reasoning: str = ""
    calls: dict[int, ToolCall] = field(default_factory=dict)
    pieces: list[ToolCallDelta] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        assert delta.offset == self.tokens
        self.tokens += len(delta.token_ids)
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.pieces += delta.tool_calls
        for call in delta.tool_calls:
            before = self.calls.get(call.index)
            # Id and name come once, with the first piece.
            assert bool(call.id) == bool(call.name) == (before is None)
            whole = (before.arguments if before else "") + call.arguments
            self.calls[call.index] = ToolCall((before or call).id, (before or call).name, whole)

    @property
    def whole(self) -> tuple[str, str, list[tuple[str, str]]]:
        return self.reasoning, self.text, [(call.name, call.arguments) for call in self.calls.values()]


WHOLE = (REASONING, TEXT, list(CALLS))


async def read(client: AsyncClient, **options: Any) -> tuple[dict[int, Read], Finished]:
    choices: dict[int, Read] = {}
    last = None
    async for event in client.stream("demo", QUESTION, LONG, tools=TOOLS, **options):
        if isinstance(event, Delta):
            choices.setdefault(event.choice_index, Read()).add(event)
        last = event
    assert isinstance(last, Finished)
    return choices, last


def of_completion(completion: Completion, index: int = 0) -> tuple[str, str, list[tuple[str, str]]]:
    choice = completion.choices[index]
    return choice.reasoning, choice.text, [(call.name, call.arguments) for call in choice.tool_calls]


def wire_request(**fields: Any) -> api.GenerateRequest:
    chat = types.ChatPrompt(
        messages=[types.ChatMessage(role="user", content="What is the weather?")],
        tools=[types.Tool(name=name, parameters='{"type": "object"}') for name, _ in CALLS],
    )
    sampling = types.SamplingParams(temperature=0.0, max_tokens=600)
    return api.GenerateRequest(model="demo", prompt=types.Prompt(chat=chat), sampling=sampling, **fields)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("model")
    async with running_stack(tmp_path_factory.mktemp("stack"), pools=tools_pool(folder)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
        yield client


@pytest.mark.asyncio(loop_scope="module")
async def test_calls_come_in_pieces_and_whole(stack: Stack, client: AsyncClient) -> None:
    choices, last = await read(client)
    whole = await client.generate("demo", QUESTION, LONG, tools=TOOLS)
    unary = Completion.from_proto(await stack.inference().Generate(wire_request()))

    assert WHOLE == choices[0].whole == of_completion(whole) == of_completion(unary)
    assert len(choices[0].pieces) > 10
    assert [FinishReason.TOOL_CALLS] * 3 == [
        last.choices[0].finish_reason, whole.choices[0].finish_reason, unary.choices[0].finish_reason
    ]  # fmt: skip
    assert 0 < unary.usage.reasoning_tokens == last.usage.reasoning_tokens < last.usage.output_tokens


@pytest.mark.asyncio(loop_scope="module")
async def test_each_choice_has_calls_of_its_own(client: AsyncClient) -> None:
    whole = await client.generate("demo", QUESTION, Sampling(max_tokens=600, n=3), tools=TOOLS)

    assert [WHOLE] * 3 == [of_completion(whole, index) for index in range(3)]
    assert 6 == len({call.id for choice in whole.choices for call in choice.tool_calls})


@pytest.mark.asyncio(loop_scope="module")
async def test_only_the_first_call_counts_where_they_must_not_be_parallel(client: AsyncClient) -> None:
    whole = await client.generate("demo", QUESTION, LONG, tools=TOOLS, parallel_tool_calls=False)

    assert (REASONING, TEXT, [CALLS[0]]) == of_completion(whole)


@pytest.mark.parametrize(
    ("choice", "called"), [("required", 2), ({"type": "function", "function": {"name": "get_weather"}}, 1)]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_tools_that_must_be_called_are_taken_by_a_simulated_engine(
    client: AsyncClient, choice: Any, called: int
) -> None:
    whole = await client.generate("demo", QUESTION, LONG, tools=TOOLS, tool_choice=choice)

    assert (REASONING, TEXT, list(CALLS[:called])) == of_completion(whole)


@pytest.mark.asyncio(loop_scope="module")
async def test_tools_that_must_not_be_called_leave_the_text_as_it_is(client: AsyncClient) -> None:
    whole = await client.generate("demo", QUESTION, LONG, tools=TOOLS, tool_choice="none")

    assert (REASONING, ANSWER.partition("</think>")[2], []) == of_completion(whole)
    assert FinishReason.STOP is whole.choices[0].finish_reason


@pytest.mark.asyncio(loop_scope="module")
async def test_reasoning_that_is_not_wanted_is_left_out_and_counted(client: AsyncClient) -> None:
    whole = await client.generate("demo", QUESTION, LONG, tools=TOOLS, include_reasoning=False)

    assert ("", TEXT, list(CALLS)) == of_completion(whole)
    assert whole.usage.reasoning_tokens > 0


@pytest.mark.asyncio(loop_scope="module")
async def test_length_wins_where_a_call_is_cut(client: AsyncClient) -> None:
    tokens = (await client.generate("demo", QUESTION, LONG, tools=TOOLS)).usage.output_tokens
    cut = await client.generate("demo", QUESTION, Sampling(temperature=0.0, max_tokens=tokens - 8), tools=TOOLS)

    assert FinishReason.LENGTH is cut.choices[0].finish_reason
    assert CALLS[0] == of_completion(cut)[2][0]


async def test_a_simulated_engine_whose_answer_has_no_call_promises_none(tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, pools={"demo": sim_pool(answer="No.")}) as stack,
        AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client,
    ):
        with pytest.raises(InvalidArgumentError, match=r"sim\.answer has no tool call"):
            await client.generate("demo", QUESTION, LONG, tools=TOOLS, tool_choice="required")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_result_of_a_key_goes_on_behind_every_delta(stack: Stack, client: AsyncClient) -> None:
    first, _ = await read(client, options=GenerateOptions(idempotency_key="stored"))
    boundaries, at = [], 0
    stored = api.StreamGenerateRequest(generate=wire_request(idempotency_key="stored"))
    await until(lambda: not stack.routers[0]._inference._generations._open)
    events = await collect(stack.inference().StreamGenerate(stored))
    again = Read()
    for event in events:
        if event.HasField("delta"):
            again.add(Delta.from_proto(event.delta))
    assert (WHOLE, first[0].calls) == (again.whole, again.calls)

    stream = stack.inference().StreamGenerate(
        api.StreamGenerateRequest(generate=wire_request(idempotency_key="cut")), timeout=30
    )
    deltas = [Delta.from_proto(event.delta) for event in await collect(stream) if event.HasField("delta")]
    for delta in deltas:
        at += len(delta.token_ids)
        boundaries.append(at)
    for number, received in enumerate(boundaries[:-1], start=1):
        rest = api.StreamGenerateRequest(generate=wire_request(idempotency_key="cut"))
        rest.resume.received_tokens.append(received)
        joined = Read()
        for delta in deltas[:number]:
            joined.add(delta)
        for event in await collect(stack.inference().StreamGenerate(rest)):
            if event.HasField("delta"):
                joined.add(Delta.from_proto(event.delta))
        assert joined.whole == WHOLE


@pytest.mark.parametrize("place", [0.15, 0.55])
async def test_a_call_survives_the_deaths_of_its_router_and_its_replica(tmp_path: Path, place: float) -> None:
    """The client gets every piece once: of the reasoning, the text, and the calls with their ids."""
    pools = tools_pool(tmp_path, base_ms=30.0)
    async with running_stack(tmp_path, routers=2, replicas=2, pools=pools, queue={"attach_grace_s": 20.0}) as stack:
        targets = [f"127.0.0.1:{router.port}" for router in stack.routers]
        async with AsyncClient(targets) as client:
            plain, _ = await read(client)
            tokens = plain[0].tokens
            streams = [asyncio.ensure_future(read(client)) for _ in range(6)]
            keyed = asyncio.ensure_future(read(client, options=GenerateOptions(idempotency_key="key")))
            unary = asyncio.ensure_future(client.generate("demo", QUESTION, LONG, tools=TOOLS))

            # All have the same prompt, and with it the same replica.
            await until(lambda: 8 == sum(each.table.sequences for each in stack.replicas))
            number = next(number for number, each in enumerate(stack.replicas) if each.table.sequences)
            logs = [item.log for item in stack.replicas[number].table._attempts.values() if item.live]
            assert 8 == len(logs)

            await until(lambda: all(log.tokens > place * tokens for log in logs))
            stand(stack)
            await kill(stack.routers[0])
            await until(lambda: stack.routers[1]._inference.open_calls == 8 and all(log.outlet for log in logs))
            assert all(log.end is None for log in logs)
            await stack.kill_replica(number)
            stack.engines[1 - number]._moving.set()  # type: ignore[attr-defined]
            results = await asyncio.gather(*streams, keyed)
            for choices, last in results:
                assert WHOLE == choices[0].whole
                assert FinishReason.TOOL_CALLS is last.choices[0].finish_reason
                assert plain[0].tokens == last.usage.output_tokens
            assert WHOLE == of_completion(await unary)
            assert 1 == len({last.usage.reasoning_tokens for _, last in results})
            assert {stack.replicas[1 - number].plan.replica_id} == {
                last.receipt.attempts[-1].replica_id for _, last in results
            }
        stack.routers.pop(0)
