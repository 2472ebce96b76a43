"""Structural tags in bodies, as vLLM's server takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import structural_tag
from penstock.batch.body import read_body
from penstock.values.objects import BodyError, Fields

SCHEMA = {"type": "integer"}
PART = {"begin": "<f=x>", "schema": SCHEMA, "end": "</f>"}
TAG = {"type": "structural_tag", "structures": [PART], "triggers": ["<f="]}
TRIGGERED = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [
        {"type": "tag", "begin": "<f=x>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
    ],
}
EXPECTED = structural_tag([PART], ["<f="])


def read(**fields: Any) -> Any:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return read_body(Fields("", body, ignore_unknown=True), chat=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": TAG},
        {"response_format": {"type": "structural_tag", "format": TRIGGERED}},
        {"response_format": {"type": "structural_tag", "format": {**TRIGGERED, "at_least_one": False}}},
        {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
        {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": TRIGGERED})}},
    ],
)
def test_every_spelling_of_vllm_is_the_same_tag(fields: dict[str, Any]) -> None:
    found = read(**fields)
    assert (found.sampling.structured, found.ignored) == (EXPECTED, ())


def test_best_effort_is_read_too() -> None:
    found = read(response_format=TAG, structured_output_best_effort=True)
    assert found.sampling.structured == structural_tag([PART], ["<f="], best_effort=True)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({**TAG, "structures": []}, "response_format.structures"),
        ({**TAG, "structures": [{**PART, "schema": None}]}, "response_format.structures[0].schema"),
        ({**TAG, "structures": [{**PART, "begin": 3}]}, "response_format.structures[0].begin"),
        ({**TAG, "triggers": [3]}, "response_format.triggers"),
        ({"type": "structural_tag"}, "response_format.structures"),
        ({"type": "structural_tag", "format": {"type": "sequence"}}, "response_format.format.type"),
        (
            {"type": "structural_tag", "format": {**TRIGGERED, "at_least_one": True}},
            "response_format.format.at_least_one",
        ),
        (
            {"type": "structural_tag", "format": {**TRIGGERED, "tags": [{"begin": "a", "content": {"type": "regex"}}]}},
            "response_format.format.tags[0].content.type",
        ),
    ],
)
def test_what_can_not_be_read_is_named(wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(BodyError) as caught:
        read(response_format=wanted)
    assert caught.value.field == field


def test_triggers_are_the_beginnings_unless_they_are_given() -> None:
    found = structural_tag([PART, {**PART, "begin": "<g>"}]).tag
    assert found is not None
    assert found.triggers == ("<f=x>", "<g>")


def test_a_structure_without_a_field_is_named() -> None:
    with pytest.raises(TypeError, match=r"structures\[1\]: must be a TaggedSchema"):
        structural_tag([PART, {"begin": "a"}])
