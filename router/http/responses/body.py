"""Bodies of the Responses API. Pure.

A body is translated to that of a chat, and the reader of chats reads it: there is one list of what is supported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.batch.body import MOST_LOGPROBS
from penstock.values.objects import POSITIVE, BodyError, Fields, shown
from router.http.bodies import read_metadata, tier_name
from router.http.responses.items import Item, read_items
from router.http.responses.namespaces import chosen_name, flat_tools

_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (_LOGPROBS,)
_REFUSED = {
    "conversation": "use previous_response_id",
    "prompt": "prompt templates are not kept here",
    "messages": "use input",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "reasoning_effort": "use reasoning.effort",
    "n": "a response is one answer",
    "best_of": "a response is one answer",
    "logprobs": f"use include with {_LOGPROBS} and top_logprobs",
    "context_management": 'use truncation "auto"',
    "functions": "use tools",
    "function_call": "use tool_choice",
}
"""Fields that can't be ignored, and what to do instead."""
_WITHOUT_EFFECT = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "max_tool_calls")
"""Fields that are only repeated in the response."""
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""Parameters of sampling that a response repeats, and what stands for an absent one."""
_FORM = ("type", "name", "description", "schema", "strict")
"""Fields of a JSON Schema that the text follows."""
_FUNCTION = ("type", "name", "description", "parameters", "strict")
"""Fields of a tool."""
_NAMESPACE = ("type", "name", "description", "tools")
"""Fields of a namespace of tools."""


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """One request, with its references not resolved yet."""

    items: Sequence[Item]
    """What is new in the conversation."""
    instructions: str
    previous: str
    """Response that the conversation goes on from; empty for none."""
    stream: bool
    background: bool
    store: bool
    chat: Mapping[str, Any]
    """Body of the chat, without its messages."""
    shown: Mapping[str, Any]
    """Fields of the response that repeat the request."""
    tool_places: Sequence[str]
    """Place in the body of each tool of the chat."""
    ignored: tuple[str, ...] = field(default=())
    """Fields without effect that the reader of chats does not see."""

    @property
    def shortens(self) -> bool:
        """Whether a conversation that is too long for its model loses its oldest turns."""
        return bool(self.shown["truncation"] == "auto")


def read_body(body: Mapping[str, Any]) -> AskedResponse:
    """Read a request.

    Raises:
        BodyError: names the field that can't be served as written.
    """
    fields = Fields("", body, ignore_unknown=True)
    _check_refused(fields)
    model = fields.text("model")
    if not model:
        raise fields.wrong("model", "is required")
    previous, instructions = fields.text("previous_response_id"), fields.text("instructions")
    items = read_items(fields.take("input"), goes_on=bool(previous))
    store, background, stream, ignored = _delivery(fields)
    logprobs, of_include = _included(fields)
    truncation = _truncation(fields)
    (tools, of_tools), choice = _tools(fields), _tool_choice(fields)
    parallel, top = _unless_off(fields, "parallel_tool_calls"), fields.count("top_logprobs", most=MOST_LOGPROBS)
    flat = list(flat_tools(tools))
    effort, reasoning, of_reasoning = _reasoning(fields)
    text_format, verbosity, of_text = _text(fields)
    numbers = {name: fields.number(name) for name in _SAMPLING}
    of_top = ["top_logprobs"] if top and not logprobs else []
    ignored += [*of_include, *of_reasoning, *of_text, *of_tools, *of_top]
    shown_fields = {
        "background": background,
        "instructions": instructions or None,
        "max_output_tokens": fields.count("max_output_tokens", POSITIVE),
        "metadata": read_metadata(fields) or {},
        "model": model,
        "parallel_tool_calls": parallel,
        "previous_response_id": previous or None,
        "reasoning": reasoning,
        "service_tier": tier_name(fields.text("service_tier")) or "default",
        "store": store,
        **{name: off if numbers[name] is None else numbers[name] for name, off in _SAMPLING.items()},
        "text": {"format": text_format, "verbosity": "medium"},
        "tool_choice": choice or "auto",
        "tools": tools,
        "top_logprobs": top or 0,
        "truncation": truncation,
        **{name: fields.take(name) for name in _WITHOUT_EFFECT},
    }
    chat = {
        # Names of vLLM's server, such as top_k, and unknown ones.
        **{name: fields.take(name) for name in body},
        "model": model,
        **numbers,
        "max_tokens": shown_fields["max_output_tokens"],
        "service_tier": None if shown_fields["service_tier"] == "default" else shown_fields["service_tier"],
        "prompt_cache_key": shown_fields["prompt_cache_key"],
        "tools": [_chat_tool(tool) for _, tool in flat] or None,
        "tool_choice": _chat_choice(choice, tools),
        "parallel_tool_calls": parallel,
        "reasoning_effort": effort or None,
        "response_format": _chat_format(text_format),
        "verbosity": verbosity or None,
        "logprobs": logprobs or None,
        "top_logprobs": top if logprobs else None,
    }
    chat = {name: value for name, value in chat.items() if value is not None}
    places = [where for where, _ in flat]
    return AskedResponse(
        items, instructions, previous, stream, background, store, chat, shown_fields, places, tuple(ignored)
    )


def _check_refused(fields: Fields) -> None:
    for name, instead in _REFUSED.items():
        if fields.take(name) is not None:
            raise fields.wrong(name, f"is not supported; {instead}")


def _delivery(fields: Fields) -> tuple[bool, bool, bool, list[str]]:
    """Return whether the response is stored, runs in the background and is streamed, and what has no effect on that."""
    store, background, stream = _unless_off(fields, "store"), fields.flag("background"), fields.flag("stream")
    if background and not store:
        raise fields.wrong("store", "must be true with background, got false")
    if (options := fields.object("stream_options")) is not None and not stream:
        raise fields.wrong("stream_options", "must be absent where stream is not true")
    ignored = [] if options is None else list(_left(options, "stream_options", ("include_obfuscation",)))
    return store, background, stream, ignored


def _truncation(fields: Fields) -> str:
    found = fields.text("truncation") or "disabled"
    if found not in ("auto", "disabled"):
        raise fields.wrong("truncation", f"must be auto or disabled, got {shown(found)}")
    return found


def _unless_off(fields: Fields, name: str) -> bool:
    value = fields.take(name)
    if value is not None and not isinstance(value, bool):
        raise fields.wrong(name, f"must be true or false, got {shown(value)}")
    return value is not False


def _left(fields: Fields, path: str, known: Sequence[str]) -> Sequence[str]:
    return [*(f"{path}.{name}" for name in known if fields.take(name) is not None), *fields.leftovers()]


def _list(fields: Fields, name: str) -> list[Any]:
    value = fields.take(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise fields.wrong(name, f"must be a list, got {shown(value)}")
    return value


def _included(fields: Fields) -> tuple[bool, list[str]]:
    asked = _list(fields, "include")
    ignored = [f"include[{index}]" for index, each in enumerate(asked) if each not in _INCLUDED]
    return _LOGPROBS in asked, ignored


def _reasoning(fields: Fields) -> tuple[str, Mapping[str, Any], list[str]]:
    found = fields.object("reasoning")
    if found is None:
        return "", {"effort": None, "summary": None}, []
    effort = found.text("effort")
    # The reasoning itself is sent, so there is nothing to sum up.
    ignored = _left(found, "reasoning", ("summary", "generate_summary"))
    return effort, {"effort": effort or None, "summary": None}, list(ignored)


# --- text -------------------------------------------------------------------------------------------------------------


def _text(fields: Fields) -> tuple[Mapping[str, Any], str, Sequence[str]]:
    text = fields.object("text")
    if text is None:
        return {"type": "text"}, "", ()
    verbosity, asked = text.text("verbosity"), text.take("format")
    ignored = text.leftovers()
    if asked is None:
        return {"type": "text"}, verbosity, ignored
    if not isinstance(asked, dict) or asked.get("type") not in ("text", "json_object", "json_schema"):
        kind = asked.get("type") if isinstance(asked, dict) else asked
        raise BodyError("text.format.type", f"must be text, json_object or json_schema, got {shown(kind)}")
    known = _FORM if asked["type"] == "json_schema" else ("type",)
    ignored += _beside("text.format", asked, known)
    if asked["type"] != "json_schema":
        return {"type": asked["type"]}, verbosity, ignored
    if not isinstance(asked.get("schema"), dict):
        raise BodyError("text.format.schema", f"must be a JSON Schema, got {shown(asked.get('schema'))}")
    return {name: asked[name] for name in known if asked.get(name) is not None}, verbosity, ignored


def _beside(where: str, asked: Mapping[str, Any], known: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of other fields."""
    return tuple(f"{where}.{name}" for name, value in asked.items() if name not in known and value is not None)


def _chat_format(asked: Mapping[str, Any]) -> Mapping[str, Any] | None:
    match asked["type"]:
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case _:
            return {"type": "json_schema", "json_schema": {n: v for n, v in asked.items() if n != "type"}}


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(fields: Fields) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the tools, and the paths of what is left out."""
    placed = [(f"tools[{index}]", tool) for index, tool in enumerate(_list(fields, "tools"))]
    tools = [
        _namespace(where, tool) if isinstance(tool, dict) and tool.get("type") == "namespace" else _tool(where, tool)
        for where, tool in placed
    ]
    return tools, [path for where, tool in placed for path in _left_of_tool(where, tool)]


def _left_of_tool(where: str, tool: Mapping[str, Any]) -> Sequence[str]:
    if tool["type"] != "namespace":
        return _beside(where, tool, _FUNCTION)
    # A model is shown tools, and nothing that is about several of them.
    about = (f"{where}.description",) if tool.get("description") else ()
    inner = [path for n, each in enumerate(tool["tools"]) for path in _beside(f"{where}.tools[{n}]", each, _FUNCTION)]
    return [*about, *_beside(where, tool, _NAMESPACE), *inner]


def _namespace(where: str, space: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(space.get("tools"), list) or not space["tools"]:
        raise BodyError(f"{where}.tools", f"must be a list of at least one tool, got {shown(space.get('tools'))}")
    tools = [_tool(f"{where}.tools[{number}]", tool) for number, tool in enumerate(space["tools"])]
    return {**{name: space[name] for name in _NAMESPACE if name in space}, "name": _name(where, space), "tools": tools}


def _tool(where: str, tool: object) -> Mapping[str, Any]:
    if not isinstance(tool, dict):
        raise BodyError(where, f"must be an object, got {shown(tool)}")
    if tool.get("type") != "function":
        raise BodyError(
            f"{where}.type",
            f'must be "function" or a "namespace" of functions: Penstock runs no tools itself, and arguments are JSON; '
            f"got {shown(tool.get('type'))}",
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        inside = "; only a chat has it within function" if "function" in tool else ""
        raise BodyError(f"{where}.name", f"must be text, got {shown(tool.get('name'))}{inside}")
    return {"parameters": None, "strict": None, **{name: tool[name] for name in _FUNCTION if name in tool}}


def _chat_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _tool_choice(fields: Fields) -> Any:
    choice = fields.take("tool_choice")
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    if not isinstance(choice, dict):
        raise BodyError("tool_choice", f"must be auto, none, required or an object, got {shown(choice)}")
    match choice.get("type"):
        case "function":
            return {"type": "function", "name": _name("tool_choice", choice)}
        case "allowed_tools":
            mode, tools = choice.get("mode"), choice.get("tools")
            if mode not in ("auto", "required"):
                raise BodyError("tool_choice.mode", f"must be auto or required, got {shown(mode)}")
            if not isinstance(tools, list) or not tools:
                raise BodyError("tool_choice.tools", f"must be a list of at least one tool, got {shown(tools)}")
            names = [_allowed(f"tool_choice.tools[{index}]", tool) for index, tool in enumerate(tools)]
            return {"type": "allowed_tools", "mode": mode, "tools": names}
        case other:
            raise BodyError("tool_choice.type", f"must be function or allowed_tools, got {shown(other)}")


def _allowed(where: str, tool: object) -> Mapping[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise BodyError(where, f'must be {{"type": "function", "name": ...}}, got {shown(tool)}')
    return {"type": "function", "name": _name(where, tool)}


def _name(where: str, named: Mapping[str, Any]) -> str:
    name = named.get("name")
    if not isinstance(name, str) or not name:
        raise BodyError(f"{where}.name", f"must be text, got {shown(name)}")
    return name


def _chat_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice["type"] == "function":
        return {"type": "function", "function": {"name": chosen_name(choice["name"], tools)}}
    names = [chosen_name(tool["name"], tools) for tool in choice["tools"]]
    allowed = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": allowed}}
