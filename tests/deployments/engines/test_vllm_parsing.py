"""Tools and reasoning on a real engine: a grammar forces calls even from a model that knows no tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
import pytest_asyncio

from cluster.errors import EngineRequestError, EngineStartError
from cluster.models import GenerationSpec, Judgement, ResumeRecord, SequenceEnd
from cluster.settings import PoolSettings, VllmSettings
from deployments.demo_model.tokenizer import CALL, SPECIAL_TOKENS, TAGS
from deployments.engines.factory import build_engine
from deployments.engines.vllm.engine import VllmEngine
from deployments.replica.output_log import OutputLog
from penstock.models import (
    ConstraintKind,
    FinishReason,
    OutputParsing,
    ParsedDelta,
    PositionLogprobs,
    SamplingParams,
    StructuredOutput,
    Tool,
    ToolCallDelta,
    ToolMode,
)
from tests.support.waiting import until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = Tool("get_weather", "Weather of a city", json.dumps(SCHEMA), strict=True)
TIME = Tool("get_time", "Time", '{"type": "object", "properties": {"zone": {"type": "string"}}}')
NO_THINKING = '{"enable_thinking": false}'
REQUIRED = OutputParsing((WEATHER,), ToolMode.REQUIRED, single_call=True, template_kwargs=NO_THINKING)
PROMPT = (0, *range(600, 640))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[VllmEngine]:
    settings = VllmSettings(
        max_num_seqs=8, kv_cache_memory_mb=32, dtype="float32", tool_call_parser="hermes", reasoning_parser="qwen3"
    )
    engine = build_engine(PoolSettings(model="demo", vllm=settings))
    assert isinstance(engine, VllmEngine)
    try:
        identity = await engine.start()
        assert identity.model.capabilities.tools
        assert identity.model.capabilities.reasoning
        assert identity.group_id.endswith("hermes-qwen3")
        yield engine
    finally:
        await engine.close()


class SentLog(OutputLog):
    """A log whose every delta is sent, and parsed for that."""

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        super().on_tokens(token_ids, text, logprobs)
        self.parse()


def whole(pieces: Sequence[ParsedDelta | None]) -> tuple[str, str, list[ToolCallDelta]]:
    """Join the pieces of an output: reasoning, text, calls."""
    calls: dict[int, ToolCallDelta] = {}
    for piece in pieces:
        for call in piece.tool_calls if piece is not None else ():
            before = calls.setdefault(call.index, ToolCallDelta(call.index, call.id, call.name))
            calls[call.index] = replace(before, arguments=before.arguments + call.arguments)
    found = [piece for piece in pieces if piece is not None]
    return "".join(piece.reasoning for piece in found), "".join(piece.text for piece in found), list(calls.values())


async def run(
    engine: VllmEngine, parsing: OutputParsing | None, resume: ResumeRecord | None = None, **sampling: object
) -> tuple[OutputLog, SequenceEnd]:
    params = SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": 5} | sampling)  # type: ignore[arg-type]
    log = SentLog("request", "a", lambda _log, _ended: None, resume, parsing=parsing)
    await engine.submit(f"request#{id(log)}", GenerationSpec(PROMPT, params, resume=resume, parsing=parsing), log)
    await until(lambda: log.end is not None, 60)
    assert log.end is not None
    return log, log.end


def arguments_of(log: OutputLog) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in whole(log.pieces)[2]]


async def test_a_required_tool_is_called_with_what_its_schema_says(engine: VllmEngine) -> None:
    log, end = await run(engine, REQUIRED)

    reasoning, text, (call,) = whole(log.pieces)
    assert (FinishReason.TOOL_CALLS, "", "") == (end.reason, reasoning, text)
    assert "get_weather" == call.name
    assert call.id.startswith("call_")
    arguments = json.loads(call.arguments)
    assert {"city", "days"} == set(arguments)
    assert arguments["city"] in ("Paris", "Rome")
    assert 1 <= arguments["days"] <= 9


async def test_a_cut_call_ends_with_length(engine: VllmEngine) -> None:
    whole_log, _ = await run(engine, REQUIRED)
    log, end = await run(engine, REQUIRED, max_tokens=whole_log.tokens - 5)

    assert FinishReason.LENGTH is end.reason
    assert whole(whole_log.pieces)[2][0].arguments.startswith(whole(log.pieces)[2][0].arguments)


async def test_a_call_goes_on_after_a_resume_at_every_token(engine: VllmEngine) -> None:
    """The grammar, the parser and the id of the call go on: each piece is that of an undisturbed run."""
    first, end = await run(engine, REQUIRED, temperature=0.0)
    ids = [token for entry in first.entries for token in entry[1]]
    for cut in range(1, len(ids)):
        entries = [entry for entry in first.entries if entry[0] < cut]
        text = "".join(entry[2] for entry in entries)
        deltas = tuple((len(entry[1]), len(entry[2])) for entry in entries)
        record = ResumeRecord(tuple(ids[:cut]), len(text), "", text, deltas)
        rest, rest_end = await run(engine, REQUIRED, record, temperature=0.0)

        assert ("", end.reason) == (rest_end.error, rest_end.reason), cut
        assert whole(first.pieces) == whole(rest.pieces)
        assert first.pieces == rest.pieces


async def test_tools_may_be_called_beside_a_format(engine: VllmEngine) -> None:
    """With a JSON Schema of the answer the model still chooses: a call, or that answer."""
    parsing = OutputParsing((WEATHER,), template_kwargs=NO_THINKING)
    answer = StructuredOutput(ConstraintKind.JSON_SCHEMA, '{"enum": ["yes", "no"]}')
    seen = set()
    # The demo model likes to call: one half of the runs makes that unlikely.
    for seed, dislike in product(range(4), (0.0, -100.0)):
        bias = {(*SPECIAL_TOKENS, *TAGS).index(CALL): dislike}
        log, end = await run(engine, parsing, structured=answer, seed=seed, logit_bias=bias)
        _, text, calls = whole(log.pieces)
        assert bool(calls) != bool(text)
        assert text in ("", '"yes"', '"no"')
        seen.add(end.reason)
    assert seen == {FinishReason.STOP, FinishReason.TOOL_CALLS}


async def test_a_constraint_holds_after_the_reasoning(engine: VllmEngine) -> None:
    """The model does not end its reasoning by itself, so its output is unconstrained reasoning to the end."""
    log, end = await run(engine, replace(REQUIRED, template_kwargs=""), max_tokens=20, ignore_eos=False)

    reasoning, text, calls = whole(log.pieces)
    assert reasoning
    assert not calls
    assert not text
    assert end.reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert 0 < end.reasoning_tokens <= end.output_tokens


async def test_a_constraint_without_parsing_holds_from_the_first_token(engine: VllmEngine) -> None:
    answer = StructuredOutput(ConstraintKind.CHOICE, choices=("yes", "no"))
    log, _ = await run(engine, None, structured=answer)

    assert "".join(entry[2] for entry in log.entries) in ("yes", "no")


async def test_reasoning_that_is_not_wanted_is_counted(engine: VllmEngine) -> None:
    parsing = OutputParsing((), ToolMode.NONE, without_reasoning=True)
    log, end = await run(engine, parsing, max_tokens=12)

    assert ("", "", []) == whole(log.pieces)
    assert 0 < end.reasoning_tokens


async def test_a_strict_schema_that_the_compiler_does_not_follow_is_refused_with_its_words(engine: VllmEngine) -> None:
    unique = '{"type": "object", "properties": {"all": {"type": "array", "uniqueItems": true}}}'
    strict = replace(REQUIRED, tools=(Tool("list", "", unique, strict=True),))
    with pytest.raises(EngineRequestError, match=r"parameters of tool 'list'.*uniqueItems.*\(at #/properties/all\)"):
        await run(engine, strict)

    log, end = await run(engine, replace(REQUIRED, tools=(Tool("list", "", unique),)))
    assert FinishReason.TOOL_CALLS is end.reason
    assert ["list"] == [name for name, _ in arguments_of(log)]


async def test_several_tools_may_be_called(engine: VllmEngine) -> None:
    parsing = replace(REQUIRED, tools=(WEATHER, TIME), single_call=False)
    log, end = await run(engine, parsing, max_tokens=400)

    calls = whole(log.pieces)[2]
    assert {"get_weather", "get_time"} >= {call.name for call in calls}
    assert list(range(len(calls))) == [call.index for call in calls]
    assert len({call.id for call in calls}) == len(calls)
    assert end.reason in (FinishReason.TOOL_CALLS, FinishReason.LENGTH)


@pytest.mark.parametrize("setting", ["tool_call_parser", "reasoning_parser"])
async def test_a_parser_that_vllm_does_not_have_is_refused_with_the_names(setting: str) -> None:
    engine = build_engine(PoolSettings(model="demo", vllm=VllmSettings(**{setting: "qwen33"})))
    with pytest.raises(EngineStartError, match=rf"vllm\.{setting}.*'qwen33'.*hermes|deepseek_r1") as told:
        await engine.start()
    assert told.value.final


async def test_a_parser_that_the_tokenizer_does_not_fit_is_refused() -> None:
    engine = build_engine(PoolSettings(model="demo", vllm=VllmSettings(reasoning_parser="mistral")))
    with pytest.raises(EngineStartError, match=r"vllm\.reasoning_parser 'mistral': .*token") as told:
        await engine.start()
    assert told.value.final


async def test_demanded_calls_are_judged_before_a_sequence(engine: VllmEngine) -> None:
    assert await engine.judge_calls(REQUIRED, None) == Judgement()
    wrong = replace(WEATHER, name="wrong", parameters='{"type": "object", "properties": {"a": {"not": {}}}}')
    found = await engine.judge_calls(replace(REQUIRED, tools=(WEATHER, wrong)), None)
    assert (found.field, found.problem) == ("tools[1].parameters", 'Unimplemented keys: ["not"] (at #/properties/a)')
    shown = replace(wrong, strict=False)
    assert await engine.judge_calls(replace(REQUIRED, tools=(WEATHER, shown)), None) == Judgement()
