"""Names of schemas and of dialects, which change nothing of what a schema allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.engines.vllm.compilers import llguidance
from deployments.engines.vllm.compilers.names import unnamed, unnamed_text
from deployments.engines.vllm.compilers.relax import relax_schema
from deployments.engines.vllm.compilers.tags import format_of
from deployments.engines.vllm.parsing.constraint import schema_problem
from deployments.engines.vllm.sampling import to_vllm_constraint
from penstock.models import (
    ConstraintKind,
    OutputParsing,
    StructuralTag,
    StructuredOutput,
    TaggedSchema,
    Tool,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PLAIN: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"type": "null"}}}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
NAMED = [
    {"$id": "Output Format", **PLAIN},
    {"$id": "https://json-schema.org/draft/2020-12/schema", **PLAIN},
    {"id": "Output Format", "$schema": DRAFT_4, **PLAIN},
    {**PLAIN, "$defs": {"p": {"$id": "a b", "type": "null"}}},
    {"$schema": "https://json-schema.org/draft-07/schema#", **PLAIN},
    {"$schema": "http://json-schema.org/draft/2020-12/schema", **PLAIN},
    {"$schema": "http://json-schema.org/schema#", **PLAIN},
    {"$schema": "my own", **PLAIN},
]


def refused(text: str) -> bool:
    from llguidance import LLMatcher

    try:
        return bool(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)))
    except ValueError:
        return True


@pytest.mark.parametrize("schema", NAMED)
def test_a_name_that_the_compiler_does_not_know_is_no_reason_to_refuse_a_schema(schema: dict[str, Any]) -> None:
    text = json.dumps(schema)
    assert refused(text)
    assert not refused(to_vllm_constraint(StructuredOutput(ConstraintKind.JSON_SCHEMA, text)).json)


@pytest.mark.parametrize("schema", NAMED)
def test_a_strict_tool_may_have_such_names(schema: dict[str, Any]) -> None:
    tool = Tool("f", parameters=json.dumps(schema), strict=True)
    assert schema_problem("llguidance", OutputParsing(tools=(tool,))) is None


@pytest.mark.parametrize("schema", NAMED)
def test_a_part_between_tags_may_have_such_names(schema: dict[str, Any]) -> None:
    tag = StructuralTag((TaggedSchema("<a>", json.dumps(schema), "</a>"),), ("<a>",))
    assert not refused(json.dumps(format_of(tag)["format"]["tags"][0]["content"]["json_schema"]))


@pytest.mark.parametrize("schema", NAMED)
def test_best_effort_finds_the_keywords_of_a_schema_with_such_names(schema: dict[str, Any]) -> None:
    found = relax_schema("llguidance", {**schema, "not": {"const": 1}})
    assert found is not None
    assert ["#/not"] == [each.place for each in found[1]]
    assert not llguidance.words_of(found[0])


def test_the_dialect_is_written_as_its_authors_do() -> None:
    assert DRAFT_4 == unnamed({"$schema": DRAFT_4.replace("http:", "https:")})["$schema"]
    assert (
        "https://json-schema.org/draft/2019-09/schema"
        == unnamed({"$schema": "http://json-schema.org/draft/2019-09/schema"})["$schema"]
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-07/schema#", **PLAIN},
        {"type": "object", "properties": {"$id": {"type": "string"}, "id": {"type": "string"}}},
        {"const": {"$id": "a b", "id": "c d"}},
        {"$defs": {"p": {"$id": "p", "properties": {"a": {"$ref": "#/$defs/q"}}, "$defs": {"q": {}}}}},
    ],
)
def test_what_has_a_meaning_stays(schema: dict[str, Any]) -> None:
    text = json.dumps(schema, indent=1)
    assert schema == unnamed(schema)
    assert text is unnamed_text(text)
