"""Tools, reasoning and what else a conversation has: in any form a caller gives, the router gets one request."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest

from penstock import (
    ChatFields,
    ChatOptions,
    GenerateOptions,
    JobItem,
    Message,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
    tool,
)
from penstock.client.calls import Asked, count_tokens
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import types_pb2
from penstock.values.messages.message import read_message
from penstock.values.objects import Fields

HI = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "Où ?"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tell it.", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def asked(prompt: Any = HI, options: Any = None, **keywords: Any) -> pb.GenerateRequest:
    return Asked("demo", prompt, None, options, keywords).request()


def sent(message: Any) -> types_pb2.ChatMessage:
    return asked(message).prompt.chat.messages[0]


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Message("assistant", tool_calls=[ToolCall("c1", "weather", '{"city": "Oslo"}')], reasoning="Hm."),
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "Hm."},
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "Hm."},
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning": "Hm.", "reasoning_content": "Hm."},
        # What streams and the helpers of OpenAI's client leave in a message.
        {
            "role": "assistant",
            "content": None,
            "parsed": None,
            "refusal": None,
            "tool_calls": [
                {**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": {}}},  # type: ignore[dict-item]
            ],
            "reasoning": "Hm.",
        },
        # As transformers has arguments.
        {
            "role": "assistant",
            "content": [],
            "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
            "reasoning": "Hm.",
        },
    ],
)
def test_a_call_in_any_form_is_the_same_message(message: Any) -> None:
    call = types_pb2.ToolCall(id="c1", name="weather", arguments='{"city": "Oslo"}')
    assert sent(message) == types_pb2.ChatMessage(role="assistant", tool_calls=[call], reasoning="Hm.")


def test_a_result_names_its_call() -> None:
    result = {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "Rain."}
    for message in (result, Message("tool", "Rain.", tool_call_id="c1", name="weather")):
        assert sent(message) == types_pb2.ChatMessage(role="tool", content="Rain.", tool_call_id="c1", name="weather")


@pytest.mark.parametrize("arguments", [None, ""])
def test_a_call_may_have_no_arguments(arguments: str | None) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    (found,) = sent({"role": "assistant", "tool_calls": [call]}).tool_calls
    assert ("now", "") == (found.name, found.arguments)


MALFORMED = (
    '{"city": "Os',
    "{'city': 'Oslo'}",
    "[1]",
    '{"a": NaN}',
    '{"a": 1e999}',
    '{"a": "\\ud800"}',
    '{"a":' * 9_000,
)


@pytest.mark.parametrize("text", MALFORMED)
def test_arguments_that_a_model_wrote_wrongly_do_not_end_its_conversation(text: str) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": text}}]}
    fields = Fields("messages[1]", message, ignore_unknown=True)
    assert (ToolCall("", "weather", ""),) == read_message(fields).tool_calls
    assert ("messages[1].tool_calls[0].function.arguments",) == fields.leftovers()


@pytest.mark.parametrize("text", MALFORMED)
def test_they_are_sent_as_they_are_where_nothing_may_be_left_out(text: str) -> None:
    (call,) = sent(
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": text}}]}
    ).tool_calls
    assert text == call.arguments


@pytest.mark.parametrize("role", ["assistant", "tool"])
@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_an_answer_and_a_result_may_have_no_text(role: str, content: dict[str, None]) -> None:
    assert types_pb2.ChatMessage(role=role) == sent({"role": role, **content})


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user", "content": None}, "content: is required"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
         'content[0].image_url.url: must be a data URL, got "x"; Penstock fetches nothing'),
        ({"role": "user", "content": ["a", {"type": "input_audio", "input_audio": {}}]},
         'content[1]: must be text or an image, got a part of type "input_audio"'),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, 'content[0]: must be text or an image, got'),
        ({"role": "user", "content": [{"type": "text"}]}, 'content[0]: must be {"type": "text", "text": ...}, got {"t'),
        ({**HI, "tool_calls": {}}, "tool_calls: must be a list, got {}"),
        ({**HI, "tool_calls": [{**CALL, "type": "custom"}]}, 'tool_calls[0].type: must be "function", got "custom"'),
        ({**HI, "tool_calls": [{"id": "1", "type": "function"}]}, "tool_calls[0].function: is required"),
        ({**HI, "tool_calls": [{"function": {"arguments": "{}"}}]}, "tool_calls[0].function.name: is required"),
        ({**HI, "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
         "tool_calls[0].function.arguments: must be the text of a JSON object, got 5"),
        ({**HI, "tool_calls": [{**CALL, "extra": 1}]}, "tool_calls[0].extra: is not supported"),
        ({**HI, "reasoning": "a", "reasoning_content": "b"}, "reasoning_content: must equal reasoning where both are"),
        ({**HI, "name": 5}, "name: must be text, got 5"),
        (Message("assistant", tool_calls=[CALL]), "tool_calls[0]: must be a ToolCall, got {"),  # type: ignore[list-item]
        (Message("user", ("a", 5)), "parts[1].text: must be text, got 5"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_with_its_place(message: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        asked([HI, message])
    assert str(error.value).startswith(f"prompt.chat.messages[1].{told}")


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        WEATHER,
        {**WEATHER, "function": {**WEATHER["function"], "strict": False}},  # type: ignore[dict-item]
        {"function": WEATHER["function"]},
        tool("weather", "Tell it.", SCHEMA),
        Tool("weather", "Tell it.", json.dumps(SCHEMA, ensure_ascii=False)),
    ],
)
def test_a_tool_in_any_form_is_the_same(given: Any) -> None:
    expected = types_pb2.Tool(name="weather", description="Tell it.", parameters=json.dumps(SCHEMA, ensure_ascii=False))
    for request in (asked(tools=[given]), asked(options=GenerateOptions(tools=(given,)))):
        assert [expected] == list(request.prompt.chat.tools)


def test_a_tool_may_have_a_name_alone_and_be_strict() -> None:
    bare, strict = asked(
        tools=[{"type": "function", "function": {"name": "now"}}, tool("f", strict=True)]
    ).prompt.chat.tools
    assert (types_pb2.Tool(name="now"), types_pb2.Tool(name="f", strict=True)) == (bare, strict)


@pytest.mark.parametrize(
    ("given", "mode", "names"),
    [
        ("auto", "AUTO", []),
        ("none", "NONE", []),
        ("required", "REQUIRED", []),
        (ToolChoice(ToolMode.REQUIRED, ("weather",)), "REQUIRED", ["weather"]),
        ({"type": "function", "function": {"name": "weather"}}, "REQUIRED", ["weather"]),
        ({"function": {"name": "weather"}}, "REQUIRED", ["weather"]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER, WEATHER]}},
            "AUTO",
            ["weather"],
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
            },
            "REQUIRED",
            ["weather"],
        ),
    ],
)
def test_a_choice_in_any_form(given: Any, mode: str, names: list[str]) -> None:
    if isinstance(given, dict) and "allowed_tools" in given:
        given["allowed_tools"]["tools"] = [{"type": "function", "function": {"name": "weather"}}]
    choice = asked(tools=[WEATHER], tool_choice=given).tool_choice
    assert (f"TOOL_CHOICE_MODE_{mode}", names) == (types_pb2.ToolChoiceMode.Name(choice.mode), list(choice.names))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function: is required"),
        ({"tools": [{"type": "web_search"}]}, 'tools[0].type: must be "function", got "web_search"'),
        ({"tools": [{"function": {"description": "x"}}]}, "tools[0].function.name: is required"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]},
         "tools[0].function.parameters: must be a JSON Schema, got []"),
        ({"tools": [{"function": {"name": "f", "parameters": {"a": {1}}}}]},
         "tools[0].function.parameters: must be JSON: Object of type set is not JSON serializable"),
        ({"tools": [{"function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict: must be true or false"),
        ({"tools": [WEATHER, {"function": {"name": "f", "parametres": {}}}]},
         "tools[1].function.parametres: is not supported; did you mean parameters?"),
        ({"tools": ["weather"]}, 'tools[0]: must be an object, got "weather"'),
        ({"tools": "weather"}, 'tools: must be a list, got "weather"'),
        ({"tool_choice": "any"}, 'tool_choice: must be one of auto, none, required, got "any"'),
        ({"tool_choice": 5}, "tool_choice: must be one of auto, none, required, or an object, got 5"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function: is required"),
        ({"tool_choice": {"type": "custom"}}, 'tool_choice.type: must be "function", got "custom"'),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools: is required"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
         "tool_choice.allowed_tools.tools: must be a list of at least one tool"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls: must be True or False, got 'no'"),
        ({"documents": ["x"]}, 'documents[0]: must be a mapping, got "x"'),
        ({"chat_template_kwargs": "x"}, 'chat_template_kwargs: must be a mapping, got "x"'),
        ({"chat_template_kwargs": {"a": object}}, "chat_template_kwargs: must be JSON: "),
        ({"include_reasoning": "no"}, "reasoning.include: must be True or False, got 'no'"),
        ({"reasoning_effort": 5}, "reasoning.effort: must be text, got 5"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        asked(**options)
    assert str(error.value).startswith(told)


# --- everything else --------------------------------------------------------------------------------------------------


def test_options_of_a_conversation_find_their_places() -> None:
    request = asked(
        tools=[WEATHER],
        parallel_tool_calls=False,
        documents=[{"title": "A"}],
        chat_template_kwargs={"enable_thinking": False},
        include_reasoning=False,
        reasoning_effort="low",
        continue_final_message=True,
        max_tokens=3,
    )
    chat = request.prompt.chat
    assert ['{"title": "A"}'] == list(chat.documents)
    assert ('{"enable_thinking": false}', True) == (chat.template_kwargs, chat.continue_final_message)
    assert (True, False) == (request.HasField("parallel_tool_calls"), request.parallel_tool_calls)
    assert types_pb2.ReasoningOptions(include=False, effort="low") == request.reasoning
    assert 3 == request.sampling.max_tokens


def test_defaults_are_not_sent() -> None:
    plain = asked(
        tools=(),
        tool_choice=None,
        parallel_tool_calls=True,
        documents=[],
        chat_template_kwargs={},
        include_reasoning=True,
    )
    assert asked() == plain
    assert not any(plain.HasField(name) for name in ("tool_choice", "parallel_tool_calls", "reasoning"))


def test_keywords_win_over_options() -> None:
    request = asked(options=GenerateOptions(reasoning_effort="low", session_id="s"), reasoning_effort="high")
    assert ("high", "s") == (request.reasoning.effort, request.session_id)


def test_keywords_are_the_fields_of_the_options() -> None:
    assert get_type_hints(ChatOptions) == get_type_hints(ChatFields)
    assert frozenset() == ChatFields.__required_keys__


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tool", "did you mean tools?"),
        ("template_kwargs", "give chat_template_kwargs"),
        ("functions", "give tools"),
        ("reasoning_efort", "did you mean reasoning_effort?"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as told:
        asked(**{name: 1})
    assert f"there is no parameter {name!r}; {hint}" in str(told.value)


@pytest.mark.parametrize("prompt", ["text", [1, 2]])
@pytest.mark.parametrize(
    "options", [{"tools": [WEATHER]}, {"continue_final_message": True}, {"reasoning_effort": "low"}]
)
def test_only_conversations_have_them(prompt: Any, options: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=f"^{next(iter(options))}: is for conversations only, and the prompt has no me"
    ):
        asked(prompt, **options)


def test_an_item_of_a_job_takes_what_a_call_takes() -> None:
    item = JobItem("a", HI, tools=[WEATHER], tool_choice="required", reasoning_effort="low").to_proto()
    expected = asked(tools=[WEATHER], tool_choice="required", reasoning_effort="low")
    expected.ClearField("model")
    expected.ClearField("request_class")
    assert expected == item.request


def test_a_count_takes_what_changes_the_prompt() -> None:
    request = count_tokens("demo", HI, {"tools": [WEATHER], "tool_choice": "none", "reasoning_effort": "low"}).request
    same = asked(tools=[WEATHER], tool_choice="none", reasoning_effort="low")
    assert (same.prompt, same.tool_choice, same.reasoning) == (request.prompt, request.tool_choice, request.reasoning)
    with pytest.raises(TypeError, match="there is no option 'max_tokens'; options are tools, tool_choice, "):
        count_tokens("demo", HI, {"max_tokens": 3})
