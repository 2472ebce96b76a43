"""Tools, calls, results, reasoning and documents reach templates as in transformers, and none is lost silently."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.errors import InvalidRequestError
from penstock.models import Tool, ToolCall
from router.tokens import ChatTemplate
from router.validation import ChatPrompt, Message
from tests.router.tokens import tool_templates as templates
from tests.router.tokens.tool_templates import FAMILIES, PLAIN

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A city, as <b>Århus</b>"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"type": "string", "enum": ["c", "f"]},
    },
    "required": ["city"],
}
TOOLS = (
    Tool("get_weather", "Tell the weather.", json.dumps(SCHEMA, ensure_ascii=False)),
    Tool("now", "Tell the time.", '{"type": "object", "properties": {}}'),
)
SYSTEM, ASK = Message("system", "Be brief."), Message("user", "Oslo & Rome?")
ARGUMENTS = '{"city": "Århus", "days": [1, 2], "unit": "c"}'
CALL = ToolCall("abcdefghi", "get_weather", ARGUMENTS)
CALLED = Message("assistant", "", tool_calls=(CALL,))
TWICE = Message("assistant", "", tool_calls=(CALL, ToolCall("jklmnopqr", "now", "")))
RESULT = Message("tool", '{"sky": "grey"}', name="get_weather", tool_call_id="abcdefghi")
OTHER = Message("tool", "noon", name="now", tool_call_id="jklmnopqr")
DONE, AGAIN = Message("assistant", "Grey."), Message("user", "And tomorrow?")
CONVERSATIONS = {
    "tools": (SYSTEM, ASK),
    "tools without a system message": (ASK,),
    "a call": (SYSTEM, ASK, CALLED, RESULT),
    "an answer after a call": (ASK, CALLED, RESULT, DONE, AGAIN),
    "no arguments": (ASK, Message("assistant", "", tool_calls=(ToolCall("abcdefghi", "now", ""),)), RESULT),
    "two calls": (ASK, TWICE, RESULT, OTHER),
    "reasoning": (ASK, Message("assistant", "", tool_calls=(CALL,), reasoning="Hm."), RESULT),
    "earlier reasoning": (ASK, Message("assistant", "Yes.", reasoning="Hm."), AGAIN),
}
ONE_CALL = ("Llama 3.1, 3.2, 3.3", "gpt-oss")
"""Families that take one call a turn."""
AS_TEXT = ("DeepSeek V3, R1", "Functionary")
"""Families that take arguments as text, and content of none beside calls."""


def in_servers_form(message: Message, *, as_text: bool = False) -> dict[str, Any]:
    """Return a message as vLLM's server passes it on, or as its templates want it where they want text."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments or "{}" if as_text else json.loads(call.arguments or "{}"),
                },
            }
            for call in message.tool_calls
        ]
        turn["content"] = None if as_text else message.content
    if message.reasoning:
        turn |= {"reasoning": message.reasoning, "reasoning_content": message.reasoning}
    return turn | {name: value for name in ("tool_call_id", "name") if (value := getattr(message, name))}


def reference(template: str, messages: Sequence[Message], *, as_text: bool = False, **variables: Any) -> str:
    """Render with transformers."""
    library = pytest.importorskip("transformers.utils.chat_template_utils")
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters),
            },
        }
        for tool in TOOLS
    ]
    [text], _ = library.render_jinja_template(
        conversations=[[in_servers_form(message, as_text=as_text) for message in messages]],
        chat_template=template,
        add_generation_prompt=True,
        **{"tools": tools, **TOKENS, **variables},
    )
    return str(text)


def render(template: str, messages: Sequence[Message], tools: Sequence[Tool] = TOOLS, **fields: Any) -> str:
    return ChatTemplate(template, TOKENS).render(ChatPrompt(tuple(messages), tools=tuple(tools), **fields))


def refused(
    template: str, messages: Sequence[Message], tools: Sequence[Tool] = TOOLS, **fields: Any
) -> tuple[str, str]:
    """Return field and description of what is refused."""
    with pytest.raises(InvalidRequestError) as caught:
        render(template, messages, tools, **fields)
    [violation] = caught.value.violations
    return violation.field, violation.description


# --- as in transformers -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_that_of_transformers(family: str, conversation: str) -> None:
    template, messages = FAMILIES[family], CONVERSATIONS[conversation]
    if family in ONE_CALL and conversation == "two calls":
        assert refused(template, messages)
        return
    assert reference(template, messages, as_text=family in AS_TEXT) == render(template, messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "variables"),
    [
        ("Qwen 3", {"enable_thinking": False}),
        ("DeepSeek V3.1", {"thinking": True}),
        ("Granite 3, 4", {"thinking": True}),
        ("GLM 4.5", {"enable_thinking": False}),
        ("SmolLM 3", {"enable_thinking": False, "xml_tools": ["f(x)"]}),
        ("Hunyuan", {"enable_thinking": False}),
        ("gpt-oss", {"reasoning_effort": "low"}),
        ("Llama 3.1, 3.2, 3.3", {"date_string": "1 May 2026"}),
    ],
)
def test_variables_reach_the_template(family: str, variables: dict[str, Any]) -> None:
    tools = () if "xml_tools" in variables else TOOLS
    expected = reference(FAMILIES[family], (ASK,), **variables, **({} if tools else {"tools": None}))
    assert expected == render(FAMILIES[family], (ASK,), tools, template_kwargs=json.dumps(variables))
    assert family == "Llama 3.1, 3.2, 3.3" or expected != render(FAMILIES[family], (ASK,), tools)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Command R, Command A", "Granite 3, 4", "Jamba"])
def test_documents_reach_the_template(family: str) -> None:
    documents = [{"title": "Oslo", "text": "It rains."}, {"title": "Rome", "text": "It does not."}]
    expected = reference(FAMILIES[family], (ASK,), documents=documents)
    assert expected == render(FAMILIES[family], (ASK,), documents=tuple(map(json.dumps, documents)))


def test_what_is_not_given_is_null_as_in_vllms_server() -> None:
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    bare = [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]
    strict = [{"type": "function", "function": {**bare[0]["function"], "strict": True}}]  # type: ignore[dict-item]
    assert json.dumps(bare) + "hi" == render(template, (Message("user", "hi"),), (Tool("f"),))
    assert json.dumps(strict) + "hi" == render(template, (Message("user", "hi"),), (Tool("f", strict=True),))


@pytest.mark.slow
def test_a_tool_is_what_vllms_server_makes_of_a_body() -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    body = {"type": "function", "function": {"name": "f", "description": "Do.", "parameters": SCHEMA, "strict": True}}
    for given, tool in (
        (body, Tool("f", "Do.", json.dumps(SCHEMA), strict=True)),
        ({"type": "function", "function": {"name": "f"}}, Tool("f")),
    ):
        made = protocol.ChatCompletionToolsParam.model_validate(given).model_dump()
        assert json.dumps([made], ensure_ascii=False) + "hi" == render(template, (Message("user", "hi"),), (tool,))


# --- nothing is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "messages", "tools", "field"),
    [
        (PLAIN, (ASK,), TOOLS, "prompt.chat.tools[0]"),
        (PLAIN, (ASK, CALLED, RESULT), (), "prompt.chat.messages[1].tool_calls[0]"),
        (FAMILIES["gpt-oss"], (ASK, TWICE, RESULT), TOOLS, "prompt.chat.messages[1].tool_calls[1]"),
        ("{{ tools[0] | tojson }}" + PLAIN, (ASK,), TOOLS, "prompt.chat.tools[1]"),
        (
            "{% for m in messages if m.role != 'tool' %}{{ m.content }}{% for c in m.tool_calls or [] %}"
            "{{ c.function | tojson }}{% endfor %}{% endfor %}",
            (ASK, CALLED, RESULT),
            (),
            "prompt.chat.messages[2].role",
        ),
        (
            # The names of calls, without their arguments.
            "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
            "{% endfor %}",
            (ASK, CALLED, RESULT),
            (),
            "prompt.chat.messages[1].tool_calls[0]",
        ),
    ],
)
def test_what_the_template_would_drop_is_refused_by_name(
    template: str, messages: tuple[Message, ...], tools: tuple[Tool, ...], field: str
) -> None:
    found, problem = refused(template, messages, tools)
    assert field == found
    assert "the model's chat template" in problem


def test_documents_that_the_template_would_drop_are_refused() -> None:
    assert "prompt.chat.documents[0]" == refused(PLAIN, (ASK,), (), documents=('{"text": "a"}',))[0]


def test_the_text_beside_a_call_and_earlier_reasoning_may_be_left_out() -> None:
    """Models of such families never have text beside a call, and forget what they thought on purpose."""
    called = Message("assistant", "I look.", tool_calls=(CALL,), reasoning="Hm.")
    text = render(FAMILIES["Llama 3.1, 3.2, 3.3"], (ASK, called, RESULT))
    assert "I look." not in text
    assert "get_weather" in text.split("<|assistant|>")[1]


def test_arguments_that_would_be_written_as_pythons_own_are_given_as_text() -> None:
    assert f">>>get_weather\n{ARGUMENTS}" in render(FAMILIES["Functionary"], (ASK, CALLED, RESULT))


def test_ids_are_cut_where_the_template_wants_nine_characters() -> None:
    long = "call_0123456789abcdef"
    messages = (
        ASK,
        Message("assistant", "", tool_calls=(ToolCall(long, "now", "{}"),)),
        Message("tool", "1", tool_call_id=long),
    )
    text = render(FAMILIES["Mistral v3, Nemo, v7"], messages)
    assert 2 == text.count('"789abcdef"') == text.count("789abcdef")
    assert long in render(FAMILIES["Kimi K2"], messages)


def test_parts_go_to_templates_that_know_them() -> None:
    parts = (Message("user", "a\nb", ("a", "b")),)
    assert "<|user|>ab" in render(FAMILIES["Llama 4"], parts, ())
    assert "<|user|>a\nb" in render(FAMILIES["Hermes, Qwen 2.5"], parts, ())
    result = Message("tool", "a\nb", ("a", "b"))
    assert "a\nb" in render(FAMILIES["Llama 4"], (ASK, CALLED, result), ())


def test_a_last_message_of_parts_is_continued() -> None:
    last = Message("assistant", "a\nb ", ("a", "b "))
    for family in ("Llama 4", "Hermes, Qwen 2.5"):
        assert render(FAMILIES[family], (ASK, last), (), continue_final=True).endswith("b ")


# --- reasoning --------------------------------------------------------------------------------------------------------


def test_an_effort_reaches_a_template_that_knows_it() -> None:
    assert "Reasoning: low" in render(FAMILIES["gpt-oss"], (ASK,), effort="low")


@pytest.mark.parametrize(
    ("family", "switched_off"),
    [("Qwen 3", "<think>\n\n</think>\n\n"), ("DeepSeek V3.1", "</think>"), ("GLM 4.5", "/nothink")],
)
def test_no_effort_switches_thinking_off(family: str, switched_off: str) -> None:
    assert switched_off in render(FAMILIES[family], (ASK,), effort="none")
    field, problem = refused(FAMILIES[family], (ASK,), effort="high")
    assert "reasoning.effort" == field
    assert problem.startswith("must be 'none' or absent: the model's chat template only switches reasoning on and off")


def test_an_effort_that_the_template_does_not_know_is_refused() -> None:
    for effort in ("none", "low"):
        found = refused(FAMILIES["Hermes, Qwen 2.5"], (ASK,), effort=effort)
        assert (
            "reasoning.effort",
            f"must be absent: the model's chat template does not know it, got {effort!r}",
        ) == found


# --- templates with names ---------------------------------------------------------------------------------------------


def test_a_template_for_tools_is_used_where_there_are_any() -> None:
    named = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": templates.COMMAND}]
    files = {"tokenizer_config.json": json.dumps({"chat_template": named}).encode()}
    template = ChatTemplate.from_files(files)
    assert template is not None
    assert "<|user|>Oslo & Rome?<|assistant|>" == template.render(ChatPrompt((ASK,)))
    assert '"name": "get_weather"' in template.render(ChatPrompt((ASK,), tools=TOOLS))
