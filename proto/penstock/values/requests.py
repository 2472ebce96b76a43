"""Prompts and options of a request, and their conversion."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.models import ConstraintKind, RequestClass, StructuralTag, StructuredOutput, TaggedSchema
from penstock.v1 import inference_pb2, types_pb2
from penstock.values.chat import (
    ChatFields,
    ChatOptions,
    chat_to_proto,
    reasoning_to_proto,
    set_options,
    tool_choice_to_proto,
)
from penstock.values.fields import build, duration_field, unfit
from penstock.values.messages.message import Message, message_to_proto
from penstock.values.sampling import Sampling, SamplingFields, sampling_of
from penstock.wire import request_class_to_wire

Prompt = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]] | Sequence[int]
"""Text, a conversation (oldest message first), or token ids. A message may be a dictionary:
{"role": "user", "content": "Hi"}, as OpenAI's API has it. A single message is a conversation."""


@dataclass(frozen=True, slots=True)
class GenerateOptions(ChatOptions):
    """Options of a request beside its prompt and sampling. Those of `ChatOptions` are for conversations only."""

    request_class: RequestClass = RequestClass.STANDARD
    queue_timeout: float | None = None
    """Seconds within which the request must start."""
    idempotency_key: str = ""
    """The caller's own name for the request, unique for its tenant. A repeat of the request under the same key
    attaches to the running one or gets its result; `cancel` takes the key too."""
    lora_adapter: str = ""
    session_id: str = ""
    """Name of a group of requests that share a long prefix; they prefer the same replica."""


class GenerateFields(SamplingFields, ChatFields, total=False):
    """Sampling parameters and options of a conversation as keywords of a call, which an editor completes."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Position at which a stream continues: its newest resume token, and the output tokens received per choice."""

    token: bytes
    received_tokens: tuple[int, ...] = ()


def json_schema(schema: str | Mapping[str, Any], *, best_effort: bool = False) -> StructuredOutput:
    """Constrain output to JSON that a schema describes.

    Args:
        schema: the schema.
        best_effort: whether keywords that the engine's compiler can't enforce are left out, and named in the result's
            `unenforced`, instead of refused.

    Raises:
        ValueError: the schema is no JSON.
    """
    text = _schema_text("json_schema", schema)
    return StructuredOutput(ConstraintKind.JSON_SCHEMA, text, best_effort=best_effort)


def regex(pattern: str) -> StructuredOutput:
    """Constrain output to what a regular expression matches as a whole."""
    return StructuredOutput(ConstraintKind.REGEX, pattern)


def one_of(*values: str) -> StructuredOutput:
    """Constrain output to exactly one of some strings."""
    return StructuredOutput(ConstraintKind.CHOICE, choices=values)


def grammar(text: str) -> StructuredOutput:
    """Constrain output to a context-free grammar in the engine's EBNF dialect."""
    return StructuredOutput(ConstraintKind.GRAMMAR, text)


def structural_tag(
    structures: Sequence[TaggedSchema | Mapping[str, Any]],
    triggers: Sequence[str] | None = None,
    *,
    best_effort: bool = False,
) -> StructuredOutput:
    """Constrain parts of the output, and leave the text around them free.

    Args:
        structures: parts that the output may have, each a `TaggedSchema` or a dictionary with `begin`, `schema` and
            `end`. A schema is a mapping, or text.
        triggers: texts after which the output must go on as one of the structures that begin with it. Default: the
            beginnings of all structures.
        best_effort: as of `json_schema`.

    Raises:
        TypeError: a structure is of another type or lacks a field.
        ValueError: a schema is no JSON.
    """
    parts = tuple(_tagged(f"structures[{index}]", each) for index, each in enumerate(structures))
    begins = tuple(dict.fromkeys(each.begin for each in parts))
    tag = StructuralTag(parts, begins if triggers is None else tuple(triggers))
    return StructuredOutput(ConstraintKind.STRUCTURAL_TAG, tag=tag, best_effort=best_effort)


_TAG_FIELDS = ("begin", "schema", "end")


def _tagged(where: str, part: TaggedSchema | Mapping[str, Any]) -> TaggedSchema:
    if isinstance(part, TaggedSchema):
        return part
    if not isinstance(part, Mapping) or set(part) != set(_TAG_FIELDS):
        raise unfit(where, "a TaggedSchema, or a dictionary with begin, schema and end", part)
    return TaggedSchema(part["begin"], _schema_text(f"{where}.schema", part["schema"]), part["end"])


def _schema_text(where: str, schema: str | Mapping[str, Any]) -> str:
    try:
        return schema if isinstance(schema, str) else json.dumps(schema)
    except RecursionError:
        raise ValueError(f"{where}: is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: must be JSON, as text or as a mapping: {error}") from None


def prompt_to_proto(prompt: Prompt, options: ChatOptions | None = None) -> types_pb2.Prompt:
    """Convert a prompt to the wire.

    Raises:
        TypeError: the prompt is neither text, nor messages only, nor ids only.
        ValueError: an id is out of range, text is not Unicode, a message lacks a field, or a prompt of another kind has
            options of a conversation; names the field.
    """
    wire = _prompt_to_proto(prompt, options or ChatOptions())
    if not wire.HasField("chat") and options is not None and (unfit_options := set_options(options)):
        raise ValueError(f"{unfit_options[0]}: is for conversations only, and the prompt has no messages")
    return wire


def _prompt_to_proto(prompt: Prompt, options: ChatOptions) -> types_pb2.Prompt:
    if isinstance(prompt, str):
        return build(types_pb2.Prompt, "prompt.", text=prompt)
    if isinstance(prompt, bytes | bytearray | memoryview):
        # Bytes are sequences of numbers and would pass for token ids.
        raise TypeError(f"prompt: must be text, not {type(prompt).__name__}: decode it")
    items = [prompt] if isinstance(prompt, Message | Mapping) else _items(prompt)
    turns = [
        message_to_proto(item, f"prompt.chat.messages[{index}]")
        for index, item in enumerate(items)
        if isinstance(item, Message | Mapping)
    ]
    if turns and len(turns) == len(items):
        return types_pb2.Prompt(chat=chat_to_proto(turns, options))
    ids = [item for item in items if isinstance(item, int)]
    if len(ids) != len(items):
        raise unfit("prompt", _KINDS, prompt)
    return types_pb2.Prompt(tokens=build(types_pb2.TokenPrompt, "prompt.tokens.", ids=ids))


_KINDS = "text, messages (each a Message, or a dictionary with role and content), or token ids"


def _items(prompt: Sequence[Any]) -> list[Any]:
    try:
        return list(prompt)
    except TypeError:
        raise unfit("prompt", _KINDS, prompt) from None


def class_field(request_class: RequestClass) -> types_pb2.RequestClass.ValueType:
    """Convert a class to the wire.

    Raises:
        TypeError: the value is no class.
    """
    if not isinstance(request_class, RequestClass):
        raise unfit("request_class", "a RequestClass", request_class)
    return request_class_to_wire(request_class)


def request_to_proto(
    model: str, prompt: Prompt, sampling: Sampling | Mapping[str, Any] | None, options: GenerateOptions | None
) -> inference_pb2.GenerateRequest:
    """Build a request.

    Raises:
        TypeError: the prompt is neither text, nor messages, nor token ids, or a value is of another type.
        ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names the field.
    """
    options = options or GenerateOptions()
    if not isinstance(options, GenerateOptions):
        raise unfit("options", "GenerateOptions", options)
    request = build(
        inference_pb2.GenerateRequest,
        model=model,
        prompt=prompt_to_proto(prompt, options),
        sampling=sampling_of(sampling, {}).to_proto(),
        request_class=class_field(options.request_class),
        idempotency_key=options.idempotency_key,
        lora_adapter=options.lora_adapter,
        session_id=options.session_id,
        tool_choice=tool_choice_to_proto(options),
        parallel_tool_calls=None if options.parallel_tool_calls is True else options.parallel_tool_calls,
        reasoning=reasoning_to_proto(options),
    )
    if options.queue_timeout is not None:
        request.queue_timeout.CopyFrom(duration_field("queue_timeout", options.queue_timeout))
    return request


def count_to_proto(model: str, prompt: Prompt, options: ChatOptions) -> inference_pb2.CountTokensRequest:
    """Build a request for a token count.

    Raises:
        TypeError, ValueError: for the reasons of `request_to_proto`.
    """
    return build(
        inference_pb2.CountTokensRequest,
        model=model,
        prompt=prompt_to_proto(prompt, options),
        tool_choice=tool_choice_to_proto(options),
        reasoning=reasoning_to_proto(options),
    )
