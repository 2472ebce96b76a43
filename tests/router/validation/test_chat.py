"""Every documented bound of a conversation is enforced, with path, limit and value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cluster.errors import InvalidRequestError
from penstock.models import Capabilities, Tool, ToolCall, ToolChoice, ToolMode
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.validation import (
    ChatPrompt,
    CheckedRequest,
    Message,
    RequestLimits,
    check_count,
    check_request,
    resolve,
)
from tests.router.validation.test_resolve import MODEL

LIMITS = RequestLimits(max_prompt_bytes=4_096)
CALL = types.ToolCall(id="c1", name="f", arguments="{}")
PLAIN = types.ChatMessage(role="user", content="hi")
F, G = types.Tool(name="f"), types.Tool(name="g", parameters='{"type": "object"}')
REQUIRED, NONE, AUTO = types.TOOL_CHOICE_MODE_REQUIRED, types.TOOL_CHOICE_MODE_NONE, types.TOOL_CHOICE_MODE_AUTO


def request(messages: list[types.ChatMessage] | None = None, chat: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Build a valid request with some fields replaced."""
    prompt = types.Prompt(chat=types.ChatPrompt(messages=messages or [PLAIN], **(chat or {})))
    return pb.GenerateRequest(**{"model": "demo", "prompt": prompt, **fields})


def violations(message: pb.GenerateRequest, limits: RequestLimits = LIMITS) -> dict[str, str]:
    """Return field -> description of what is wrong."""
    try:
        check_request(message, limits)
    except InvalidRequestError as error:
        return {each.field: each.description for each in error.violations}
    return {}


def chat_of(message: pb.GenerateRequest) -> ChatPrompt:
    prompt = check_request(message, LIMITS).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_full_conversation_becomes_plain_values() -> None:
    checked = check_request(
        request(
            [
                types.ChatMessage(role="user", parts=[types.ContentPart(text="a"), types.ContentPart(text="b")]),
                types.ChatMessage(role="assistant", tool_calls=[CALL], reasoning="hm"),
                types.ChatMessage(role="tool", tool_call_id="c1", name="f", content="1"),
            ],
            {"tools": [F, G], "documents": ['{"a": 1}'], "template_kwargs": '{"b": 2}'},
            tool_choice=types.ToolChoice(mode=REQUIRED, names=["f"]),
            parallel_tool_calls=False,
            reasoning=types.ReasoningOptions(include=False, effort="low"),
        ),
        LIMITS,
    )

    assert checked.prompt == ChatPrompt(
        (
            Message("user", "a\nb", ("a", "b")),
            Message("assistant", "", tool_calls=(ToolCall("c1", "f", "{}"),), reasoning="hm"),
            Message("tool", "1", name="f", tool_call_id="c1"),
        ),
        tools=(Tool("f"), Tool("g", parameters='{"type": "object"}')),
        documents=('{"a": 1}',),
        template_kwargs='{"b": 2}',
        effort="low",
    )
    assert checked.tool_choice == ToolChoice(ToolMode.REQUIRED, ("f",))
    assert (checked.parallel_tool_calls, checked.include_reasoning, checked.reasoning_effort) == (False, False, "low")


def test_one_part_is_the_content() -> None:
    part = types.ChatMessage(role="user", parts=[types.ContentPart(text="a")])
    assert (Message("user", "a"),) == chat_of(request([part])).messages


@pytest.mark.parametrize(
    ("message", "field", "told"),
    [
        ({"role": "user", "content": "a", "parts": [types.ContentPart(text="b")]}, "parts", "must be empty where cont"),
        ({"role": "user", "parts": [types.ContentPart()]}, "parts[0]", "must have text"),
        (
            {"role": "user", "parts": [types.ContentPart(text="")] * 1_025},
            "parts",
            "must have at most 1024 entries, go",
        ),
        ({"role": "user", "name": "n" * 65}, "name", "must have at most 64 bytes, got 65"),
        (
            {"role": "user", "tool_calls": [CALL]},
            "tool_calls",
            "must be unset unless the role is 'assistant', got role",
        ),
        ({"role": "user", "reasoning": "x"}, "reasoning", "must be unset unless the role is 'assistant', got role 'us"),
        (
            {"role": "user", "tool_call_id": "x"},
            "tool_call_id",
            "must be unset unless the role is 'tool', got role 'us",
        ),
        ({"role": "tool", "tool_call_id": "x" * 129}, "tool_call_id", "must have at most 128 bytes, got 129"),
        ({"role": "assistant", "tool_calls": [CALL] * 129}, "tool_calls", "must have at most 128 entries, got 129"),
    ],
)
def test_a_message_is_checked(message: dict[str, Any], field: str, told: str) -> None:
    found = violations(request([PLAIN, types.ChatMessage(**message)]))
    assert [f"prompt.chat.messages[1].{field}"] == list(found)
    assert found[f"prompt.chat.messages[1].{field}"].startswith(told)


@pytest.mark.parametrize(
    ("call", "field", "told"),
    [
        ({"id": "x" * 129, "name": "f"}, "id", "must have at most 128 bytes, got 129"),
        ({"id": "x"}, "name", "must have 1 to 128 bytes, got 0"),
        ({"name": "f", "arguments": '{"a": '}, "arguments", "must be valid JSON: Expecting value at character 6"),
        ({"name": "f", "arguments": "[1]"}, "arguments", "must be a JSON object, got list"),
        ({"name": "f", "arguments": '{"a": NaN}'}, "arguments", "must be valid JSON: NaN is not a JSON number"),
        (
            {"name": "f", "arguments": '{"a":' * 65 + "1" + "}" * 65},
            "arguments",
            "must be nested at most 64 deep, got 6",
        ),
        ({"name": "f", "arguments": '{"a":' * 100_000}, "arguments", "must be nested at most 64 deep"),
        (
            {"name": "f", "arguments": '{"a": "\\ud800"}'},
            "arguments",
            "must have no half of a surrogate pair, which is",
        ),
    ],
)
def test_a_call_is_checked_and_nothing_is_repaired(call: dict[str, Any], field: str, told: str) -> None:
    limits = RequestLimits(max_prompt_bytes=1 << 20)
    found = violations(
        request([types.ChatMessage(role="assistant", tool_calls=[CALL, types.ToolCall(**call)])]), limits
    )
    assert [f"prompt.chat.messages[0].tool_calls[1].{field}"] == list(found)
    assert next(iter(found.values())).startswith(told)


@pytest.mark.parametrize("arguments", ["", "{}", ' {"a": {"b": []}} ', '{"a": "\\ud83d\\ude00"}'])
def test_good_arguments_pass(arguments: str) -> None:
    assert {} == violations(
        request([types.ChatMessage(role="assistant", tool_calls=[types.ToolCall(name="f", arguments=arguments)])])
    )


def test_a_result_needs_no_call_in_the_history() -> None:
    """Clients cut long histories."""
    assert {} == violations(request([types.ChatMessage(role="tool", tool_call_id="gone", content="1"), PLAIN]))


@pytest.mark.parametrize(
    "message",
    [
        types.ChatMessage(role="user", content="x" * 4_100),
        types.ChatMessage(role="user", parts=[types.ContentPart(text="x" * 2_050)] * 2),
        types.ChatMessage(role="assistant", reasoning="x" * 4_100),
        types.ChatMessage(
            role="assistant", tool_calls=[types.ToolCall(name="f", arguments=json.dumps({"a": "x" * 4_100}))]
        ),
    ],
)
def test_all_text_of_messages_counts(message: types.ChatMessage) -> None:
    assert "must have at most 4096 bytes of content, got 41" in violations(request([message]))["prompt.chat.messages"]


def test_a_message_with_calls_cannot_be_continued() -> None:
    last = types.ChatMessage(role="assistant", content="a", tool_calls=[CALL])
    found = violations(request([PLAIN, last], {"continue_final_message": True}))
    assert {"prompt.chat.continue_final_message": "must not be set where the last message has calls of tools"} == found


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "field", "told"),
    [
        ([F] * 129, "", "must have at most 128 entries, got 129"),
        ([F, types.Tool()], "[1].name", "must have 1 to 128 bytes, got 0"),
        ([types.Tool(name="x" * 129)], "[0].name", "must have 1 to 128 bytes, got 129"),
        ([F, G, F], "[2].name", "must be unique among the tools, got 'f' again"),
        ([types.Tool(name="f", parameters="{")], "[0].parameters", "must be valid JSON: "),
        ([types.Tool(name="f", parameters="true")], "[0].parameters", "must be a JSON object, got bool"),
        (
            [types.Tool(name="f", parameters='{"a":' * 65 + "1" + "}" * 65)],
            "[0].parameters",
            "must be nested at most 64",
        ),
        (
            [types.Tool(name="f", description="x" * 4_097)],
            "",
            "must have at most 4096 bytes of descriptions and parameter",
        ),
        (
            [types.Tool(name="f", parameters='{"$ref": "#/x"}', strict=True)],
            "[0].parameters",
            "must have what it refers",
        ),
    ],
)
def test_a_tool_is_checked(tools: list[types.Tool], field: str, told: str) -> None:
    found = violations(request(chat={"tools": tools}))
    assert [f"prompt.chat.tools{field}"] == list(found)
    assert next(iter(found.values())).startswith(told)


def test_a_schema_has_a_size() -> None:
    schema = json.dumps({"a": "x" * 65_536})
    found = violations(request(chat={"tools": [types.Tool(name="f", parameters=schema)]}), RequestLimits())
    assert {"prompt.chat.tools[0].parameters": "must have at most 65536 bytes, got 65545"} == found


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": True},
        {"$ref": "#/x"},
        {"$ref": "other.json"},
        {"pattern": "(a{1000}){1000}"},
        {"x-own": [1]},
        {},
    ],
)
def test_no_keyword_of_a_schema_that_is_only_shown_is_refused(schema: dict[str, Any]) -> None:
    assert {} == violations(request(chat={"tools": [types.Tool(name="f", parameters=json.dumps(schema))]}))


@pytest.mark.parametrize(
    ("choice", "field", "told"),
    [
        (
            types.ToolChoice(mode=REQUIRED, names=["h"]),
            ".names[0]",
            "must be the name of one of the tools, go",
        ),
        (types.ToolChoice(names=["f", "f"]), ".names[1]", "must not repeat a name, got 'f' again"),
        (types.ToolChoice(mode=NONE, names=["f"]), ".names", "must be empty with mode NONE"),
        (types.ToolChoice(mode=9), ".mode", "must be a known mode, got 9"),  # type: ignore[arg-type]
    ],
)
def test_a_choice_is_checked(choice: types.ToolChoice, field: str, told: str) -> None:
    found = violations(request(chat={"tools": [F]}, tool_choice=choice))
    assert [f"tool_choice{field}"] == list(found)
    assert next(iter(found.values())).startswith(told)


@pytest.mark.parametrize("prompt", [request().prompt, types.Prompt(text="hi")])
def test_a_choice_needs_tools(prompt: types.Prompt) -> None:
    for choice in (types.ToolChoice(mode=REQUIRED), types.ToolChoice(names=["f"])):
        found = violations(request(prompt=prompt, tool_choice=choice))
        assert {"tool_choice": "needs tools"} == found
    for mode in (AUTO, NONE):
        assert {} == violations(request(prompt=prompt, tool_choice=types.ToolChoice(mode=mode)))


def test_a_required_call_and_a_constraint_exclude_each_other() -> None:
    constrained = types.SamplingParams(structured_output=types.StructuredOutput(regex="a"))
    choice = types.ToolChoice(mode=REQUIRED)
    assert ["sampling.structured_output"] == list(
        violations(request(chat={"tools": [F]}, tool_choice=choice, sampling=constrained))
    )


def test_the_model_is_shown_the_tools_that_it_may_call_where_nothing_else_keeps_it_from_the_others() -> None:
    def shown(choice: types.ToolChoice) -> list[str]:
        return [tool.name for tool in chat_of(request(chat={"tools": [F, G]}, tool_choice=choice)).tools]

    assert ["g"] == shown(types.ToolChoice(names=["g"]))
    assert ["f", "g"] == shown(types.ToolChoice(mode=REQUIRED, names=["g"])) == shown(types.ToolChoice(mode=NONE))


# --- templates' variables, documents, reasoning -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "field", "told"),
    [
        ("x", "", "must be valid JSON: "),
        ("[]", "", "must be a JSON object, got list"),
        (json.dumps({"a": "x" * 16_384}), "", "must have at most 16384 bytes, got 16393"),
        ('{"messages": []}', ".messages", "must not be set: chat templates get it from elsewhere"),
        ('{"tools": []}', ".tools", "must not be set"),
        ('{"documents": []}', ".documents", "must not be set"),
        ('{"add_generation_prompt": false}', ".add_generation_prompt", "must not be set"),
        ('{"continue_final_message": true}', ".continue_final_message", "must not be set"),
        ('{"chat_template": "x"}', ".chat_template", "must not be set"),
        ('{"bos_token": "x"}', ".bos_token", "must not be set"),
        ('{"reasoning_effort": "high"}', ".reasoning_effort", "must equal reasoning.effort = 'low', got 'high'"),
    ],
)
def test_variables_are_checked(text: str, field: str, told: str) -> None:
    limits = RequestLimits()
    reasoning = types.ReasoningOptions(effort="low")
    found = violations(request(chat={"template_kwargs": text}, reasoning=reasoning), limits)
    assert [f"prompt.chat.template_kwargs{field}"] == list(found)
    assert next(iter(found.values())).startswith(told)


def test_documents_are_checked() -> None:
    found = violations(request(chat={"documents": ['{"a": 1}', "[]"]}))
    assert {"prompt.chat.documents[1]": "must be a JSON object, got list"} == found
    assert ["prompt.chat.documents"] == list(violations(request(chat={"documents": ["{}"] * 129})))
    assert ["prompt.chat.documents"] == list(violations(request(chat={"documents": ['{"a":"' + "x" * 4_096 + '"}']})))


def test_reasoning_is_for_conversations() -> None:
    text = types.Prompt(text="hi")
    for reasoning, field in (({"effort": "low"}, "effort"), ({"include": False}, "include")):
        found = violations(request(prompt=text, reasoning=types.ReasoningOptions(**reasoning)))
        assert {f"reasoning.{field}": "is for conversations only"} == found
    assert {} == violations(request(prompt=text, reasoning=types.ReasoningOptions(include=True)))
    assert ["reasoning.effort"] == list(violations(request(reasoning=types.ReasoningOptions(effort="x" * 65))))


def test_the_variables_are_those_of_the_client_and_of_the_effort() -> None:
    def variables(effort: str, **given: Any) -> dict[str, Any]:
        chat = {"template_kwargs": json.dumps(given)} if given else {}
        return chat_of(request(chat=chat, reasoning=types.ReasoningOptions(effort=effort))).variables()

    assert {} == variables("")
    assert {"a": 1} == variables("", a=1)
    assert {"reasoning_effort": "low", "enable_thinking": True, "thinking": True} == variables("low")
    assert {"reasoning_effort": "none", "enable_thinking": False, "thinking": False} == variables("none")
    assert variables("low", enable_thinking=False)["enable_thinking"] is False


def test_a_count_is_checked_as_a_generation_is() -> None:
    asked = request(chat={"tools": [F, G]}, tool_choice=types.ToolChoice(names=["g"]), reasoning={"effort": "low"})
    count = pb.CountTokensRequest(
        model="demo", prompt=asked.prompt, tool_choice=asked.tool_choice, reasoning=asked.reasoning
    )
    assert check_request(asked, LIMITS).prompt == check_count(count, LIMITS).prompt


# --- digests ----------------------------------------------------------------------------------------------------------


def plain_digest(**fields: Any) -> str:
    return check_request(request(chat={"tools": [F]}, idempotency_key="k", **fields), LIMITS).digest.split("/")[-1]


@pytest.mark.parametrize(
    "written_out",
    [
        {"tool_choice": types.ToolChoice()},
        {"tool_choice": types.ToolChoice(mode=AUTO)},
        {"parallel_tool_calls": True},
        {"reasoning": types.ReasoningOptions()},
        {"reasoning": types.ReasoningOptions(include=True)},
    ],
)
def test_a_default_that_is_written_out_makes_no_other_request(written_out: dict[str, Any]) -> None:
    assert plain_digest() == plain_digest(**written_out)


@pytest.mark.parametrize(
    "changed",
    [
        {"tool_choice": types.ToolChoice(mode=NONE)},
        {"tool_choice": types.ToolChoice(names=["f"])},
        {"parallel_tool_calls": False},
        {"reasoning": types.ReasoningOptions(include=False)},
        {"reasoning": types.ReasoningOptions(effort="low")},
    ],
)
def test_what_is_no_default_makes_another_request(changed: dict[str, Any]) -> None:
    assert plain_digest() != plain_digest(**changed)


# --- what the model can do --------------------------------------------------------------------------------------------


def served(message: pb.GenerateRequest, **able: bool) -> dict[str, str]:
    model = replace(MODEL, capabilities=Capabilities(**able))
    checked: CheckedRequest = check_request(message, LIMITS)
    try:
        resolve(checked, model, 5)
    except InvalidRequestError as error:
        return {each.field: each.description for each in error.violations}
    return {}


SIMULATED = ", sim.answer if its engine is simulated"


def test_a_model_without_a_parser_of_tools_takes_none_unless_they_must_not_be_called() -> None:
    tools = {"tools": [F]}
    remedy = "is not supported by this model; its operator can set vllm.tool_call_parser for the pool" + SIMULATED
    assert {"prompt.chat.tools": remedy} == served(request(chat=tools))
    assert {} == served(request(chat=tools), tools=True)
    assert {} == served(request(chat=tools, tool_choice=types.ToolChoice(mode=NONE)))
    history = [types.ChatMessage(role="assistant", tool_calls=[CALL]), types.ChatMessage(role="tool", content="1")]
    assert {} == served(request(history))


def test_a_model_without_a_parser_of_reasoning_knows_no_effort() -> None:
    remedy = "is not supported by this model; its operator can set vllm.reasoning_parser for the pool" + SIMULATED
    asked = request(reasoning=types.ReasoningOptions(effort="low", include=False))
    assert {"reasoning.effort": remedy} == served(asked)
    assert {} == served(asked, reasoning=True)
    assert {} == served(request(reasoning=types.ReasoningOptions(include=False)))
