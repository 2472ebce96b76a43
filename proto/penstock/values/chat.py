"""Options of a conversation: tools, documents, reasoning and what else its chat template gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from penstock.models import Tool, ToolChoice
from penstock.v1 import types_pb2
from penstock.values.fields import build
from penstock.values.objects import Fields, shown
from penstock.values.tools import read_tool_choice, read_tools
from penstock.wire import tool_choice_to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of a conversation. Prompts of text or token ids have none of them."""

    tools: Sequence[Tool | Mapping[str, Any]] = ()
    """Functions that the model may call: what `tool` returns, or OpenAI's dictionaries."""
    tool_choice: ToolChoice | str | Mapping[str, Any] | None = None
    """"auto", "none", "required", a ToolChoice, or an object of OpenAI's API. Default: the model decides."""
    parallel_tool_calls: bool = True
    """Whether one answer may call several tools. Where it is false, only the first call is returned."""
    documents: Sequence[Mapping[str, Any]] = ()
    """Documents that the chat template shows."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Variables for the chat template, such as {"enable_thinking": False}."""
    include_reasoning: bool = True
    """Whether the reasoning is returned. It is charged in any case."""
    reasoning_effort: str = ""
    """Amount of reasoning in the words of the model's chat template, such as "low"; default: the template's own."""
    continue_final_message: bool = False
    """Whether the last message is continued instead of answered."""


class ChatFields(TypedDict, total=False):
    """The fields of `ChatOptions` as keywords of a call, which an editor completes."""

    tools: Sequence[Tool | Mapping[str, Any]]
    tool_choice: ToolChoice | str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    documents: Sequence[Mapping[str, Any]]
    chat_template_kwargs: Mapping[str, Any] | None
    include_reasoning: bool
    reasoning_effort: str
    continue_final_message: bool


CHAT_NAMES = tuple(field.name for field in fields(ChatOptions))
_DEFAULT = ChatOptions()


def chat_fields(options: ChatOptions) -> dict[str, Any]:
    """Return the options as keywords."""
    return {name: getattr(options, name) for name in CHAT_NAMES}


def set_options(options: ChatOptions) -> tuple[str, ...]:
    """Return the names of options that are not at their default."""
    return tuple(name for name in CHAT_NAMES if getattr(options, name) not in (getattr(_DEFAULT, name), [], {}))


def chat_to_proto(messages: Sequence[types_pb2.ChatMessage], options: ChatOptions) -> types_pb2.ChatPrompt:
    """Build a conversation.

    Raises:
        TypeError: an option is of another type; names it.
        ValueError: an option is wrong; names it.
    """
    given = _given(options)
    variables = given.take("chat_template_kwargs")
    return build(
        types_pb2.ChatPrompt,
        "prompt.chat.",
        messages=messages,
        continue_final_message=options.continue_final_message,
        tools=[_tool_to_proto(tool, f"prompt.chat.tools[{index}].") for index, tool in enumerate(read_tools(given))],
        documents=[
            _json_object(given, f"documents[{index}]", each) for index, each in enumerate(given.list("documents"))
        ],
        template_kwargs=_json_object(given, "chat_template_kwargs", variables) if variables else None,
    )


def tool_choice_to_proto(options: ChatOptions) -> types_pb2.ToolChoice | None:
    """Return the choice of tools; None for the default.

    Raises:
        TypeError: a name is no text.
        ValueError: it is no choice of tools.
    """
    choice = read_tool_choice(_given(options))
    if choice is None:
        return None
    build(types_pb2.ToolChoice, "tool_choice.", names=choice.names)
    return tool_choice_to_wire(choice)


def reasoning_to_proto(options: ChatOptions) -> types_pb2.ReasoningOptions | None:
    """Return the options of the reasoning; None for the defaults.

    Raises:
        TypeError: an option is of another type; names it.
        ValueError: an option is not Unicode.
    """
    include = None if options.include_reasoning is True else options.include_reasoning
    if include is None and not options.reasoning_effort:
        return None
    return build(types_pb2.ReasoningOptions, "reasoning.", include=include, effort=options.reasoning_effort)


def _given(options: ChatOptions) -> Fields:
    return Fields("", chat_fields(options), ignore_unknown=False)


def _tool_to_proto(tool: Tool, where: str) -> types_pb2.Tool:
    return build(
        types_pb2.Tool,
        where,
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )


def _json_object(given: Fields, name: str, value: object) -> str:
    if not isinstance(value, Mapping):
        raise given.wrong(name, f"must be a mapping, got {shown(value)}")
    return given.json(name, dict(value))
