"""Operators' own limits, and constraints that an engine would choke on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from annotated_types import Le

from cluster.errors import InvalidRequestError
from cluster.models import ModelInfo
from cluster.settings import LimitSettings
from penstock.models import Capabilities
from penstock.v1 import types_pb2
from router.validation import RequestLimits, check_request, resolve
from router.validation import schema as schema_module
from router.validation.pattern import extent
from router.validation.schema import schema_problem
from tests.router.validation.test_validation import request, violations

DEFAULTS = LimitSettings()


def limited(settings: dict[str, int], **sampling: Any) -> dict[str, str]:
    limits = RequestLimits(1_024, LimitSettings.model_validate(settings))
    return violations(request(sampling=types_pb2.SamplingParams(**sampling)), limits)


def structured(**fields: Any) -> dict[str, Any]:
    return {"structured_output": types_pb2.StructuredOutput(**fields)}


def test_what_was_right_is_not_right_for_every_router() -> None:
    """Right parameters are remembered, with the limits that they were right for."""
    for most in (8, 2, 8):
        assert ({"sampling.n"} if most < 5 else set()) == set(limited({"max_choices": most}, n=5))
    for _ in range(2):
        assert {"sampling.top_p"} == set(limited({}, top_p=2.0))


@pytest.mark.parametrize(
    ("settings", "sampling", "field", "says"),
    [
        ({"max_choices": 2}, {"n": 3}, "sampling.n", "at most 2, got 3"),
        ({"max_tokens": 100}, {"max_tokens": 101}, "sampling.max_tokens", "at most 100, got 101"),
        ({"max_logprobs": 1}, {"logprobs": 2}, "sampling.logprobs", "at most 1, got 2"),
        ({"max_stop_strings": 1}, {"stop": ["a", "b"]}, "sampling.stop", "at most 1 entries, got 2"),
        ({"max_stop_bytes": 3}, {"stop": ["abcd"]}, "sampling.stop[0]", "1 to 3 bytes, got 4"),
        ({"max_stop_tokens": 1}, {"stop_token_ids": [1, 2]}, "sampling.stop_token_ids", "at most 1 entries, got 2"),
        ({"max_logit_biases": 1}, {"logit_bias": {1: 1, 2: 1}}, "sampling.logit_bias", "at most 1 entries, got 2"),
        ({"max_schema_bytes": 4}, structured(json_schema="{    }"),
         "sampling.structured_output.json_schema", "1 to 4 bytes, got 6"),
        ({"max_grammar_bytes": 4}, structured(grammar='root ::= "a"'),
         "sampling.structured_output.grammar", "1 to 4 bytes, got 12"),
        ({"max_regex_bytes": 4}, structured(regex="aaaaa"),
         "sampling.structured_output.regex", "1 to 4 bytes, got 5"),
        ({"max_group_depth": 2}, structured(regex="(((a)))"),
         "sampling.structured_output.regex", "nested at most 2 deep, got 3"),
        ({"max_choice_values": 1}, structured(choice=types_pb2.ChoiceConstraint(values=["a", "b"])),
         "sampling.structured_output.choice.values", "1 to 1 entries, got 2"),
    ],
)  # fmt: skip
def test_an_operators_limit_is_named_with_field_and_value(
    settings: dict[str, int], sampling: dict[str, Any], field: str, says: str
) -> None:
    found = limited(settings, **sampling)

    assert list(found) == [field]
    assert says in found[field]
    assert limited({}, **sampling) == {}


def test_a_conversation_has_a_bounded_number_of_messages() -> None:
    chat = types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(role="user", content="x")] * 3)
    limits = RequestLimits(1_024, LimitSettings(max_messages=2))

    found = violations(request(prompt=types_pb2.Prompt(chat=chat)), limits)

    assert found == {"prompt.chat.messages": "must have 1 to 2 entries, got 3"}


def test_without_max_tokens_the_operators_limit_is_taken() -> None:
    model = ModelInfo("m", "t", 1_000, 100, Capabilities())
    limits = RequestLimits(1_024, LimitSettings(max_tokens=100))

    assert resolve(check_request(request(), limits), model, 10)[0].max_tokens == 100
    assert resolve(check_request(request(), limits), model, 950)[0].max_tokens == 50


@pytest.mark.parametrize("name", [name for name in LimitSettings.model_fields if name.startswith("max_")])
def test_an_operator_cannot_go_above_what_the_api_documents(name: str) -> None:
    field = LimitSettings.model_fields[name]
    [*_, highest] = [None, *(getattr(rule, "le", None) for rule in field.metadata)]
    if highest is None:
        assert name in ("max_tokens", "max_rendered_characters")
    else:
        with pytest.raises(ValueError, match="less than or equal"):
            LimitSettings.model_validate({name: highest + 1})


def nested(depth: int, inside: Any = None) -> dict[str, Any]:
    schema: dict[str, Any] = inside or {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param(nested(64), "nested at most 64 deep, got 65", id="too deep"),
        pytest.param({"$ref": "#"}, "lead only to each other", id="itself"),
        pytest.param(
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "lead only to each other", id="circle",
        ),
        pytest.param({"items": {"$ref": "#/$defs/a"}}, "got no '#/$defs/a'", id="nowhere"),
        pytest.param({"$ref": "https://example.org/schema"}, "references into itself only", id="elsewhere"),
        pytest.param({"$ref": "#name"}, "references into itself only", id="an anchor"),
        pytest.param({"type": "string", "pattern": "(a{1000}){1000}"}, "got 1000000", id="pattern"),
    ],
)  # fmt: skip
def test_schemas_without_a_usable_meaning_are_refused(schema: dict[str, Any], says: str) -> None:
    assert says in (schema_problem(json.dumps(schema), DEFAULTS) or "")


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(nested(63), id="as deep as allowed"),
        pytest.param({"properties": {"left": {"$ref": "#"}}}, id="a tree"),
        pytest.param({"$ref": "#/$defs/a~1b/0", "$defs": {"a/b": [{"type": "string"}]}}, id="escaped path into a list"),
        pytest.param({"enum": [{"$ref": "https://example.org"}]}, id="a reference that is data"),
        pytest.param({"properties": {"$ref": {"type": "string"}}}, id="a property of that name"),
        pytest.param({"type": "string", "pattern": "^[a-z]{1,200}$"}, id="pattern"),
    ],
)
def test_schemas_that_mean_something_pass(schema: dict[str, Any]) -> None:
    assert schema_problem(json.dumps(schema), DEFAULTS) is None


@pytest.mark.parametrize(
    ("pattern", "size", "depth"),
    [
        ("abc", 3, 0),
        ("a{3}", 3, 0),
        ("a{2,5}b", 6, 0),
        ("(ab){10}", 20, 1),
        ("((a{10}){10}){10}", 1_000, 2),
        ("a{2}{3}{4}", 24, 0),
        ("[a-z(]{4}", 16, 0),
        (r"\({3}", 3, 0),
        (r"[\]{9}]", 5, 0),
        ("[]a{5}", 6, 0),
        ("(?:a|b){7}", 21, 1),
        ("{", 1, 0),
        (")))", 3, 0),
        ("a{99999999999999999999}", 10**12, 0),
        ("(a{1000000}){1000000}" * 50, 10**12, 1),
    ],
)
def test_a_pattern_is_measured_with_its_repetitions_written_out(pattern: str, size: int, depth: int) -> None:
    measured = extent(pattern, quoted=False)

    assert (measured.size, measured.depth) == (size, depth)


def test_a_grammars_literals_are_quoted() -> None:
    assert extent('root ::= ("({[" {4})', quoted=True).depth == 1
    found = limited({}, **structured(grammar='root ::= ("a"{1000}){1000}'))
    assert "at most 131072 items" in found["sampling.structured_output.grammar"]


def test_each_reference_of_a_long_chain_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of thousands fits into the allowed bytes; to walk it anew from each of its links would take seconds."""
    followed: list[str] = []
    resolve_one = schema_module._resolve
    monkeypatch.setattr(schema_module, "_resolve", lambda schema, ref: followed.append(ref) or resolve_one(schema, ref))
    chain = {f"a{link}": {"$ref": f"#/$defs/a{link + 1}"} for link in range(1_500)} | {"a1500": {}}
    text = json.dumps({"$defs": chain})

    assert len(text) <= DEFAULTS.max_schema_bytes
    assert schema_problem(text, DEFAULTS) is None
    assert len(followed) <= 3_000


def test_violations_reach_the_caller_as_one_error() -> None:
    limits = RequestLimits(1_024, LimitSettings(max_choices=1, max_tokens=5))
    with pytest.raises(InvalidRequestError) as caught:
        check_request(request(sampling=types_pb2.SamplingParams(n=2, max_tokens=6)), limits)

    assert {"sampling.n", "sampling.max_tokens"} == {violation.field for violation in caught.value.violations}


def test_no_limit_can_be_raised_above_what_the_api_documents() -> None:
    """A client that keeps to the documentation of the API is never the one that is wrong, nor is its documentation."""
    highest = {
        name: bound.le
        for name, field in LimitSettings.model_fields.items()
        for bound in field.metadata
        if isinstance(bound, Le)
    }
    assert {"max_schema_depth", "max_group_depth", "max_repetitions", "max_choices"} <= set(highest)
    assert highest == {name: LimitSettings.model_fields[name].default for name in highest}
