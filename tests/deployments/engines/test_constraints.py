"""Constraints on a real engine: the same answer whatever came before, compact JSON, no success that breaks them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec, Judgement
from deployments.engines.vllm.compilers.check import compiler_id
from penstock.models import ConstraintKind, FinishReason, SamplingParams, StructuralTag, StructuredOutput, TaggedSchema
from tests.deployments.engines.conftest import Started
from tests.deployments.engines.recorder import Recorder, generate

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("started", ["vllm"], indirect=True),
]

PROMPT = tuple(range(600, 640))
SERVED = (
    {"type": "integer", "multipleOf": 5},
    {"type": "array", "items": [{"type": "integer"}], "minItems": 1},
    {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
    {"type": "string", "pattern": r"^\p{L}{2}$"},
    {"type": "string", "format": "uri", "minLength": 1, "maxLength": 83},
)
REFUSED = (
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, "propertyNames"),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "integer range"),
    ({"type": "string", "format": "password"}, "Unknown format: password"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
)
"""Schemas that the compiler does not follow, and its words."""


def schema(value: Any) -> StructuredOutput:
    return StructuredOutput(ConstraintKind.JSON_SCHEMA, json.dumps(value))


async def answer(started: Started, constraint: StructuredOutput, **more: Any) -> tuple[str, Any]:
    sampling = SamplingParams(**{"max_tokens": 60, "temperature": 0.0, "structured": constraint} | more)
    recorder, end = await generate(started.engine, GenerationSpec(PROMPT, sampling))
    return recorder.text, end


async def test_a_constraint_gets_the_same_answer_whatever_came_before(started: Started) -> None:
    before = [await answer(started, schema(each)) for each in SERVED]
    for refused, words in REFUSED:
        with pytest.raises(EngineRequestError, match=words):
            await started.engine.submit(f"refused {words}", *spec(schema(refused)))
    after = [await answer(started, schema(each)) for each in reversed(SERVED)]
    assert [text for text, _ in before] == [text for text, _ in reversed(after)]
    assert all(end.reason in (FinishReason.STOP, FinishReason.LENGTH) for _, end in before)


async def test_the_engine_tells_beforehand_what_its_compiler_follows(started: Started) -> None:
    for each in SERVED:
        assert not (await started.engine.judge(schema(each))).problem
    for each, words in REFUSED:
        assert words in (await started.engine.judge(schema(each))).problem
    nested = schema({"type": "object", "properties": {"secret": {"type": "string", "format": "password"}}})
    assert (await started.engine.judge(nested)).problem == "Unknown format: password (at #/properties/secret)"
    assert (await started.engine.judge(StructuredOutput(ConstraintKind.REGEX, "[a-"))).problem


async def test_what_is_left_of_a_schema_at_best_effort_is_followed(started: Started) -> None:
    parts = {"level": {"enum": ["low", "high"]}, "tags": {"type": "array", "uniqueItems": True, "maxItems": 0}}
    record = {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    asked = replace(schema(record), best_effort=True)
    found = await started.engine.judge(asked)
    assert [each.place for each in found.unenforced] == ["#/properties/tags/uniqueItems"]
    assert found.relaxed is not None
    text, end = await answer(started, found.relaxed)
    assert end.reason is FinishReason.STOP
    assert json.loads(text)["level"] in ("low", "high")


async def test_a_structural_tag_holds_where_its_trigger_is_written(started: Started) -> None:
    # Nearly any text has an "e".
    part = TaggedSchema("e", '{"enum": [7]}', "</e>")
    asked = StructuredOutput(ConstraintKind.STRUCTURAL_TAG, tag=StructuralTag((part,), ("e",)))
    assert await started.engine.judge(asked) == Judgement()
    text, _ = await answer(started, asked, temperature=1.0, seed=3)
    assert "e7</e>" in text
    _, trigger, rest = text.replace("e7</e>", "").partition("e")
    # Only the end may be cut off.
    assert "e7</e>".startswith(trigger + rest), text
    wrong = replace(part, begin="ef", schema='{"not": {}}')
    bad = replace(asked, tag=StructuralTag((part, wrong), ("e",)))
    assert (await started.engine.judge(bad)).field == "structures[1].json_schema"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_json_has_no_white_space_between_its_parts(started: Started, temperature: float) -> None:
    parts = {"answer": {"type": "string"}, "score": {"type": "number"}, "tags": {"type": "array", "items": {}}}
    record = {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    for seed in range(8):
        text, _ = await answer(started, schema(record), temperature=temperature, seed=seed)
        assert text.startswith('{"answer":"')
        whole, _ = await answer(started, schema({"enum": [{"a": [1, 2], "b": None}]}), temperature=temperature)
        assert whole == '{"a":[1,2],"b":null}'


async def test_output_that_can_not_satisfy_its_constraint_is_an_error(started: Started) -> None:
    """The compiler takes this schema, and finds only at the first token that no value satisfies it."""
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    _, end = await answer(started, schema(loop))
    assert (end.reason, end.invalid_request) == (FinishReason.ERROR, True)
    assert "can't be followed" in end.error
    _, after = await answer(started, schema({"enum": [1]}))
    assert after.reason is FinishReason.STOP


async def test_a_least_length_does_not_break_a_constraint(started: Started) -> None:
    text, end = await answer(started, schema({"enum": ["a"]}), min_tokens=30)
    assert end.reason is FinishReason.ERROR or text == '"a"'


async def test_the_group_of_replicas_names_the_compiler(started: Started) -> None:
    assert compiler_id("llguidance") in started.identity.group_id


def spec(constraint: StructuredOutput) -> tuple[GenerationSpec, Recorder]:
    return GenerationSpec(PROMPT, SamplingParams(max_tokens=8, structured=constraint)), Recorder()
