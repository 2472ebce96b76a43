"""Bodies of Anthropic's Messages API as requests. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.batch.body import LEAST_TOP_P
from penstock.batch.reasoning import THINKING, switched
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.objects import POSITIVE, BodyError, Fields, shown
from penstock.values.requests import json_schema
from penstock.values.unsupported import Unsupported
from penstock.wire import request_class_to_wire, structured_to_wire
from router.http.anthropic.messages import read_system, read_turns
from router.http.anthropic.place import StreamPlace
from router.http.anthropic.places import MessagePlaces
from router.http.bodies import KEY, LAST_EVENT, SESSION, header_text, tier_class

_HINT = Unsupported(always_neutral=True)
_BODY: Mapping[str, Unsupported] = {
    # Hints for caches and safety, which change no answer.
    "metadata": _HINT,
    "cache_control": _HINT,
    "inference_geo": _HINT,
    "diagnostics": _HINT,
    "context_management": _HINT,
    "speed": Unsupported(("standard",)),
    "container": Unsupported(),
    "mcp_servers": Unsupported(([],)),
}
_TOOL: Mapping[str, Unsupported] = {
    "cache_control": _HINT,
    "eager_input_streaming": _HINT,
    "input_examples": _HINT,
    "defer_loading": Unsupported((False,)),
    "allowed_callers": _HINT,
}
_MODES = {
    "auto": types.TOOL_CHOICE_MODE_AUTO,
    "any": types.TOOL_CHOICE_MODE_REQUIRED,
    "tool": types.TOOL_CHOICE_MODE_REQUIRED,
    "none": types.TOOL_CHOICE_MODE_NONE,
}
_NAMES: Mapping[str, str] = {
    "prompt": "messages",
    "sampling.stop": "stop_sequences",
    "session_id": "X-Session-ID",
    "prompt.chat.template_kwargs.reasoning_effort": "output_config.effort",
    "prompt.chat.template_kwargs*": "thinking.type",
}


@dataclass(frozen=True, slots=True)
class AskedMessage:
    """One request of a client."""

    generate: api.GenerateRequest
    stream: bool
    thinking: bool
    """Whether the reasoning is returned."""
    after: StreamPlace | None
    """Place from which a client that came back wants to go on; None where it begins."""
    ignored: tuple[str, ...]
    """Fields that nobody knows, which were left out."""
    form: str
    """Place of the schema that the answer follows; empty for none."""
    places: MessagePlaces

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the text of the last message."""
        return self.generate.prompt.chat.continue_final_message

    @property
    def names(self) -> Mapping[str, str]:
        """Return paths of our fields, and what the body calls them, as `name_in` reads them."""
        if not self.form:
            return _NAMES
        schema = {"sampling.structured_output.json_schema*": f"{self.form}.schema"}
        return {**_NAMES, **schema, "sampling.structured_output*": self.form}


def read_messages(body: Mapping[str, Any], headers: Mapping[str, str], *, counted: bool = False) -> AskedMessage:
    """Translate a body.

    Args:
        body: as the client wrote it.
        headers: of the request.
        counted: whether only the tokens of the prompt are asked for, so that `max_tokens` may be absent.

    Raises:
        BodyError: names the field that can't be served as written.
    """
    fields = Fields("", body, ignore_unknown=True)
    generate = api.GenerateRequest(model=fields.text("model"))
    if not generate.model:
        raise fields.wrong("model", "is required")
    chat = generate.prompt.chat
    chat.messages.extend(read_system(fields))
    system = bool(chat.messages)
    chat.messages.extend(read_turns(fields))
    # The answer goes on where the client's beginning of it ends.
    chat.continue_final_message = _begun(chat.messages)
    chat.tools.extend(_tools(fields))
    _choose(fields, generate)
    thinking, form = _think(fields, generate)
    _sample(fields, generate.sampling, counted=counted)
    generate.request_class = request_class_to_wire(tier_class(fields, "standard_only"))
    generate.reasoning.include = thinking
    generate.idempotency_key = header_text(headers, KEY)
    generate.session_id = header_text(headers, SESSION)
    stream = fields.flag("stream")
    after = _came_back(headers, stream=stream, keyed=bool(generate.idempotency_key))
    places = MessagePlaces.of(body["messages"], system=system)
    return AskedMessage(generate, stream, thinking, after, fields.leftovers(_BODY), form, places)


def _begun(messages: Sequence[types.ChatMessage]) -> bool:
    last = messages[-1] if messages else types.ChatMessage()
    return last.role == "assistant" and bool(last.content) and not last.tool_calls


def _came_back(headers: Mapping[str, str], *, stream: bool, keyed: bool) -> StreamPlace | None:
    last = headers.get(LAST_EVENT, "")
    if not last:
        return None
    if not stream or not keyed:
        raise BodyError(LAST_EVENT, "goes with a stream and an Idempotency-Key only")
    if (place := StreamPlace.of(last)) is None:
        raise BodyError(LAST_EVENT, f"must be the id of an event of this stream, got {shown(last)}")
    return place


def _sample(fields: Fields, sampling: types.SamplingParams, *, counted: bool) -> None:
    most = fields.count("max_tokens", POSITIVE)
    if most is not None:
        sampling.max_tokens = most
    elif not counted:
        raise fields.wrong("max_tokens", "is required")
    for name in ("temperature", "top_p"):
        if (value := fields.number(name)) is not None:
            setattr(sampling, name, LEAST_TOP_P if (name, value) == ("top_p", 0) else value)
    if (top_k := fields.count("top_k")) is not None:
        sampling.top_k = top_k
    stop = fields.take("stop_sequences")
    if stop is not None and not (isinstance(stop, list) and all(isinstance(each, str) for each in stop)):
        raise fields.wrong("stop_sequences", f"must be a list of texts, got {shown(stop)}")
    sampling.stop.extend(stop or ())


def _think(fields: Fields, generate: api.GenerateRequest) -> tuple[bool, str]:
    """Read how much the model may think, and the form of its answer. Return whether the reasoning is asked for, and
    the place of the form.
    """
    thinking = fields.object("thinking")
    kind = thinking.text("type") if thinking is not None else "disabled"
    if kind not in THINKING:
        raise fields.wrong("thinking.type", f"must be one of {', '.join(THINKING)}, got {shown(kind)}")
    begun = generate.prompt.chat.continue_final_message
    if kind == "enabled" and begun:
        # What follows a begun answer is no reasoning, and a parser would take it for that.
        raise fields.wrong("thinking.type", "must not be enabled where the last message is the assistant's")
    if thinking is not None:
        # The engine has no budget for reasoning alone: max_tokens bounds all output.
        thinking.count("budget_tokens")
        thinking.text("display")
        fields.also_ignored(thinking.leftovers())
    thinks = kind != "disabled" and not begun
    variables = switched(thinks)
    best_effort, output = fields.flag("structured_output_best_effort"), fields.object("output_config")
    if output is not None and (effort := output.text("effort")):
        variables["reasoning_effort"] = effort
    form = _format(fields, output, generate.sampling, best_effort=best_effort)
    if form and generate.tool_choice.mode == types.TOOL_CHOICE_MODE_REQUIRED:
        # It is the form of a text, and the answer is a call of a tool.
        generate.sampling.ClearField("structured_output")
        fields.also_ignored((form,))
    if output is not None:
        fields.also_ignored(output.leftovers())
    generate.prompt.chat.template_kwargs = json.dumps(variables)
    return thinks, form


def _format(fields: Fields, output: Fields | None, sampling: types.SamplingParams, *, best_effort: bool) -> str:
    wanted, older = output.object("format") if output is not None else None, fields.object("output_format")
    if wanted is not None and older is not None:
        raise fields.wrong("output_format", "must be absent with output_config.format, its newer name")
    wanted = wanted or older
    if wanted is None:
        return ""
    if (kind := wanted.text("type")) != "json_schema":
        raise wanted.wrong("type", f"must be json_schema, got {shown(kind)}")
    schema = wanted.take("schema")
    if not isinstance(schema, dict):
        raise wanted.wrong("schema", f"must be a JSON Schema, got {shown(schema)}")
    try:
        sampling.structured_output.CopyFrom(structured_to_wire(json_schema(schema, best_effort=best_effort)))
    except ValueError as error:
        raise wanted.wrong("schema", str(error).removeprefix("json_schema: ")) from None
    fields.also_ignored(wanted.leftovers())
    return wanted.path


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(fields: Fields) -> Iterator[types.Tool]:
    tools = fields.take("tools")
    if tools is not None and not isinstance(tools, list):
        raise fields.wrong("tools", f"must be a list, got {shown(tools)}")
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise fields.wrong(where, f"must be an object, got {shown(tool)}")
        found = fields.child(where, tool)
        if (kind := found.text("type")) not in ("", "custom"):
            raise found.wrong("type", f"must be custom, a tool that the caller runs, got {shown(kind)}")
        schema = found.take("input_schema")
        if not isinstance(schema, dict):
            raise found.wrong("input_schema", f"must be a JSON Schema, got {shown(schema)}")
        yield types.Tool(
            name=found.text("name"),
            description=found.text("description"),
            parameters=json.dumps(schema, ensure_ascii=False),
            strict=found.flag("strict"),
        )
        fields.also_ignored(found.leftovers(_TOOL))


def _choose(fields: Fields, generate: api.GenerateRequest) -> None:
    choice = fields.object("tool_choice")
    if choice is None:
        return
    kind = choice.text("type")
    if kind not in _MODES:
        raise choice.wrong("type", f"must be one of {', '.join(_MODES)}, got {shown(kind)}")
    generate.tool_choice.mode = _MODES[kind]
    name = choice.text("name")
    if kind == "tool":
        if not name:
            raise choice.wrong("name", "is required with the type tool")
        generate.tool_choice.names.append(name)
    if choice.flag("disable_parallel_tool_use"):
        generate.parallel_tool_calls = False
    fields.also_ignored(choice.leftovers())
