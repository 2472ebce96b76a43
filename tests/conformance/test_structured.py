"""Structured output: schemas, parts between tags, and mistakes in either."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.conformance.target import CHAT, MARKS, Target, refused

pytestmark = MARKS
ENDPOINT = ("POST", CHAT)

RECORD = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
PART = {"begin": "<part>", "schema": RECORD, "end": "</part>"}
TAG: dict[str, Any] = {"type": "structural_tag", "structures": [PART], "triggers": ["<part>"]}


async def answered(target: Target, **more: Any) -> str:
    """Return the text of an answer. Servers whose model follows no constraints are skipped."""
    reply = await target.post(CHAT, {**target.chat(), "max_tokens": 64, **more})
    if reply.status == 400 and "not supported" in reply.body.decode():
        pytest.skip("the model follows no constraints")
    assert reply.status == 200, reply.body
    choice = reply.json["choices"][0]
    if choice["finish_reason"] == "length" and more["response_format"]["type"] == "json_schema":
        pytest.skip("the model did not end; white space between the parts of JSON is free")
    return str(choice["message"]["content"])


async def test_an_answer_follows_its_schema(target: Target) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD, "strict": True}}
    assert json.loads(await answered(target, response_format=wanted))["a"] in (1, 2)


async def test_what_stands_between_tags_follows_its_schema(target: Target) -> None:
    text = await answered(target, response_format=TAG)
    for found in re.findall(r"<part>(.*?)</part>", text):
        assert json.loads(found)["a"] in (1, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "structural_tag"},
        {**TAG, "structures": "none"},
        {**TAG, "structures": [{**PART, "begin": 3}]},
        {**TAG, "triggers": [3]},
    ],
)
async def test_a_format_that_is_not_well_formed_is_refused(target: Target, wrong: Any) -> None:
    refused(await target.post(CHAT, {**target.chat(), "response_format": wrong}), (400, 422))


async def test_a_tool_that_is_not_strict_is_not_refused_for_its_schema(target: Target) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}, "unevaluatedItems": False}
    tools = [{"type": "function", "function": {"name": "odd", "parameters": odd}}]
    reply = await target.post(CHAT, {**target.chat(), "model": target.tool_model, "tools": tools})
    assert reply.status == 200, reply.body
