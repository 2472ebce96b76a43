"""Bodies of Anthropic's API as requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.batch.body import LEAST_TOP_P
from penstock.v1 import types_pb2 as types
from penstock.values.objects import BodyError
from router.http.anthropic.bodies import AskedMessage, read_messages
from router.http.bodies import name_in

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "weather", "description": "Weather.", "input_schema": {"type": "object"}}


def read(**fields: Any) -> AskedMessage:
    """Read a body with these fields beside the required ones."""
    return read_messages({"model": "demo", "max_tokens": 5, "messages": HI, **fields}, {})


def turns(asked: AskedMessage) -> list[tuple[str, str]]:
    """Return roles and contents."""
    return [(message.role, message.content) for message in asked.generate.prompt.chat.messages]


def test_system_comes_first_and_blocks_are_joined() -> None:
    cached = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}
    asked = read(
        system=[{"type": "text", "text": "Be brief."}, cached],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": "Hello"},
            *HI,
        ],
    )
    assert [("system", "Be brief.\nBe kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Hi")] == turns(asked)
    assert asked.ignored == ()


def test_a_message_of_a_user_without_blocks_is_named() -> None:
    """It would vanish, and with it a turn of the conversation."""
    with pytest.raises(BodyError, match=r"must have at least one block, got \[\]") as caught:
        read(messages=[*HI, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": []}])
    assert caught.value.field == "messages[2].content"


def test_a_block_for_bills_is_no_part_of_the_prompt() -> None:
    """It differs between conversations, which would then share no prefix."""
    bill = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.0df; cc_entrypoint=cli;"}
    asked = read(system=[bill, {"type": "text", "text": "Be brief."}])
    assert [("system", "Be brief."), ("user", "Hi")] == turns(asked)
    assert [("user", "Hi")] == turns(read(system=[bill]))


def test_calls_and_their_results_become_messages_of_assistant_and_tool() -> None:
    asked = read(
        messages=[
            *HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "One moment."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Rain"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    )
    messages = asked.generate.prompt.chat.messages
    assert ["user", "assistant", "tool", "tool", "user"] == [message.role for message in messages]
    assert ("One moment.", "Hm") == (messages[1].content, messages[1].reasoning)
    assert ("t1", "weather", '{"city": "Zürich"}') == (
        messages[1].tool_calls[0].id, messages[1].tool_calls[0].name, messages[1].tool_calls[0].arguments,
    )  # fmt: skip
    assert [("t1", "Rain"), ("t2", "")] == [(each.tool_call_id, each.content) for each in messages[2:4]]
    tool = asked.generate.prompt.chat.tools[0]
    assert ("weather", "Weather.", '{"type": "object"}') == (tool.name, tool.description, tool.parameters)
    choice = asked.generate.tool_choice
    assert (types.TOOL_CHOICE_MODE_REQUIRED, ["weather"]) == (choice.mode, list(choice.names))
    assert not asked.generate.parallel_tool_calls


@pytest.mark.parametrize(("failed", "named"), [(True, ("messages[1].content[0].is_error",)), (False, ()), (None, ())])
def test_that_a_tool_failed_is_told_by_its_text_alone(failed: bool | None, named: tuple[str, ...]) -> None:
    """Templates know no such mark, so it is named as left out."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Error: no city", "is_error": failed}
    assert named == read(messages=[*HI, {"role": "user", "content": [result]}]).ignored


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        (None, types.REQUEST_CLASS_STANDARD),
        ("auto", types.REQUEST_CLASS_STANDARD),
        ("standard_only", types.REQUEST_CLASS_STANDARD),
        ("priority", types.REQUEST_CLASS_INTERACTIVE),
        ("flex", types.REQUEST_CLASS_BATCH),
    ],
)
def test_a_tier_sets_the_class(tier: str | None, expected: types.RequestClass.ValueType) -> None:
    assert expected == read(service_tier=tier).generate.request_class


def test_messages_of_one_role_that_follow_each_other_are_one_turn() -> None:
    """Many templates refuse two turns of one role."""
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain"}
    asked = read(
        messages=[
            *HI,
            {"role": "user", "content": [{"type": "text", "text": "Rain?"}]},
            {"role": "assistant", "content": "I look."},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
            {"role": "user", "content": "So?"},
            {"role": "user", "content": "Soon?"},
        ],
        tools=[TOOL],
    )
    assert [("user", "Hi\nRain?"), ("assistant", "I look."), ("tool", "Rain"), ("user", "So?\nSoon?")] == turns(asked)
    messages = asked.generate.prompt.chat.messages
    assert ["t1"] == [each.id for each in messages[1].tool_calls]
    written = asked.places.written
    assert "messages[0].content" == written("prompt.chat.messages[0].content")
    assert "messages[2].content" == written("prompt.chat.messages[1].content")
    assert "messages[3].content[0].input" == written("prompt.chat.messages[1].tool_calls[0].arguments")
    assert "messages[4].content[0].tool_use_id" == written("prompt.chat.messages[2].tool_call_id")
    assert "messages[5].content" == written("prompt.chat.messages[3].content")


def test_a_begun_answer_has_no_thinking() -> None:
    messages = [*HI, {"role": "assistant", "content": "It is"}]
    with pytest.raises(BodyError, match="must not be enabled where the last message is the assistant's") as caught:
        read(messages=messages, thinking={"type": "enabled", "budget_tokens": 2048})
    assert caught.value.field == "thinking.type"
    assert read(messages=messages, thinking={"type": "disabled"}).continues
    asked = read(messages=messages, thinking={"type": "adaptive"})
    assert (False, False) == (asked.thinking, asked.generate.reasoning.include)
    assert {"enable_thinking": False, "thinking": False} == json.loads(asked.generate.prompt.chat.template_kwargs)


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive"}, True),
    ],
)
def test_thinking_is_a_variable_of_the_template_and_shown_where_asked_for(thinking: Any, thinks: bool) -> None:
    asked = read(thinking=thinking, output_config={"effort": "low"})
    variables = json.loads(asked.generate.prompt.chat.template_kwargs)
    assert {"enable_thinking": thinks, "thinking": thinks, "reasoning_effort": "low"} == variables
    assert (thinks, thinks) == (asked.thinking, asked.generate.reasoning.include)


def test_sampling_and_the_form_of_the_answer_are_read() -> None:
    schema = {"type": "object", "properties": {}}
    asked = read(
        temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["END"], stream=True, metadata={"user_id": "u"},
        output_config={"format": {"type": "json_schema", "schema": schema}}, new_field=1,
    )  # fmt: skip
    sampling = asked.generate.sampling
    assert (5, 0.5, 3, ["END"]) == (sampling.max_tokens, sampling.temperature, sampling.top_k, list(sampling.stop))
    assert schema == json.loads(sampling.structured_output.json_schema)
    assert (True, ("new_field",)) == (asked.stream, asked.ignored)


def test_a_top_p_of_zero_is_the_most_likely_token() -> None:
    assert LEAST_TOP_P == pytest.approx(read(top_p=0).generate.sampling.top_p)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": 1}]}]},
            "messages[0].content[0].input",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
            "messages[0].content[0].content[0].source",
        ),
        ({"system": 7}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"temperature": "warm"}, "temperature"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"service_tier": "gold"}, "service_tier"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BodyError) as raised:
        read(**fields)
    assert field == raised.value.field


def test_counting_needs_no_max_tokens() -> None:
    asked = read_messages({"model": "demo", "messages": HI}, {}, counted=True)
    assert not asked.generate.sampling.HasField("max_tokens")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("It is", True),
        ([{"type": "text", "text": "It is"}], True),
        ("", False),
        ([{"type": "tool_use", "id": "a", "name": "weather", "input": {}}], False),
        ([{"type": "thinking", "thinking": "Hm", "signature": "s"}], False),
    ],
)
def test_an_answer_goes_on_where_the_clients_beginning_of_it_ends(content: Any, expected: bool) -> None:
    assert (
        expected
        is read(messages=[*HI, {"role": "assistant", "content": content}]).generate.prompt.chat.continue_final_message
    )
    assert not read().generate.prompt.chat.continue_final_message
    assert not read(
        messages=[{"role": "assistant", "content": "It is"}, *HI]
    ).generate.prompt.chat.continue_final_message


SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


def test_the_older_name_of_a_form_holds_the_output_too() -> None:
    older, newer = read(output_format=SCHEMA), read(output_config={"format": SCHEMA})
    assert newer.generate.sampling.structured_output == older.generate.sampling.structured_output
    assert older.generate.sampling.HasField("structured_output")
    assert ((), ()) == (older.ignored, newer.ignored)
    with pytest.raises(BodyError, match="output_format: must be absent with"):
        read(output_format=SCHEMA, output_config={"format": SCHEMA})


@pytest.mark.parametrize(
    ("fields", "field", "expected"),
    [
        ({}, "prompt", "messages"),
        ({}, "sampling.stop[1]", "stop_sequences[1]"),
        ({"output_format": SCHEMA}, "sampling.structured_output", "output_format"),
        ({"output_format": SCHEMA}, "sampling.structured_output.json_schema", "output_format.schema"),
        (
            {"output_config": {"format": SCHEMA}},
            "sampling.structured_output.json_schema",
            "output_config.format.schema",
        ),
    ],
)
def test_our_fields_have_the_names_of_the_body(fields: dict[str, Any], field: str, expected: str) -> None:
    assert expected == name_in(read(**fields).names, field)
