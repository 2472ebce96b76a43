"""Prompts, sampling parameters and options of a request, and their conversion."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.models import ConstraintKind, RequestClass, StructuredOutput
from penstock.v1 import inference_pb2, types_pb2
from penstock.values.durations import duration_field
from penstock.values.fields import build, unfit
from penstock.wire import request_class_to_wire, structured_to_wire


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `role` is "system", "user", "assistant" or another role of the model's template."""

    role: str
    content: str


Prompt = str | Sequence[Message] | Sequence[int]
"""Text, a conversation (oldest message first), or token ids."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of how tokens are drawn. None takes the default. The router checks ranges and names wrong fields."""

    max_tokens: int | None = None
    """Most output tokens per choice; default: the rest of the context."""
    min_tokens: int | None = None
    temperature: float | None = None
    """0 is greedy; default 1."""
    top_p: float | None = None
    top_k: int | None = None
    """0 and -1 are off."""
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    """Strings that end a choice; the match is not returned. A single string is one stop string, not its letters."""
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of alternatives per token; 0 returns the drawn token's log probability only, None returns none."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    structured: StructuredOutput | None = None
    """Constraint from `json_schema`, `regex`, `one_of` or `grammar`."""
    n: int | None = None
    """Number of independent choices; default 1."""

    def to_proto(self) -> types_pb2.SamplingParams:
        """Convert to the wire.

        Raises:
            ValueError: a number is out of the range of its type on the wire, or text is not Unicode; names the field.
            TypeError: a value is of another type; names the field.
        """
        plain = {name: value for name in _PLAIN_FIELDS if (value := getattr(self, name)) is not None}
        if isinstance(self.stop, str):
            plain["stop"] = (self.stop,)
        if self.top_k == -1:
            # As vLLM writes that it is off.
            plain["top_k"] = 0
        wire = build(types_pb2.SamplingParams, "sampling.", **plain)
        if self.structured is not None:
            wire.structured_output.CopyFrom(_structured(self.structured))
        return wire


def _structured(constraint: StructuredOutput) -> types_pb2.StructuredOutput:
    if not isinstance(constraint, StructuredOutput):
        raise unfit("sampling.structured", "what json_schema, regex, one_of or grammar returns", constraint)
    try:
        return structured_to_wire(constraint)
    except (TypeError, ValueError):
        where = "sampling.structured_output."
        if constraint.kind is ConstraintKind.CHOICE:
            build(types_pb2.ChoiceConstraint, f"{where}choice.", values=constraint.choices)
        else:
            build(types_pb2.StructuredOutput, where, **{constraint.kind.value: constraint.text})
        raise


_PLAIN_FIELDS = tuple(f.name for f in fields(Sampling) if f.name != "structured")


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Options of a request beside its prompt and sampling."""

    request_class: RequestClass = RequestClass.STANDARD
    queue_timeout: float | None = None
    """Seconds within which the request must start."""
    idempotency_key: str = ""
    """The caller's own name for the request, unique for its tenant. A repeat of the request under the same key
    attaches to the running one or gets its result; `cancel` takes the key too."""
    lora_adapter: str = ""
    session_id: str = ""
    """Name of a group of requests that share a long prefix; they prefer the same replica."""
    continue_final_message: bool = False
    """Whether the last message is continued instead of answered. For conversations only."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Position at which a stream continues: its newest resume token, and the output tokens received per choice."""

    token: bytes
    received_tokens: tuple[int, ...] = ()


def json_schema(schema: str | Mapping[str, Any]) -> StructuredOutput:
    """Constrain output to JSON that a schema describes.

    Raises:
        ValueError: the schema is no JSON.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
    except RecursionError:
        raise ValueError("json_schema: is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema: must be JSON, as text or as a mapping: {error}") from None
    return StructuredOutput(ConstraintKind.JSON_SCHEMA, text)


def regex(pattern: str) -> StructuredOutput:
    """Constrain output to what a regular expression matches as a whole."""
    return StructuredOutput(ConstraintKind.REGEX, pattern)


def one_of(*values: str) -> StructuredOutput:
    """Constrain output to exactly one of some strings."""
    return StructuredOutput(ConstraintKind.CHOICE, choices=values)


def grammar(text: str) -> StructuredOutput:
    """Constrain output to a context-free grammar in the engine's EBNF dialect."""
    return StructuredOutput(ConstraintKind.GRAMMAR, text)


def prompt_to_proto(prompt: Prompt, *, continue_final_message: bool = False) -> types_pb2.Prompt:
    """Convert a prompt to the wire.

    Raises:
        TypeError: the prompt is neither text, nor messages only, nor ids only.
        ValueError: an id is out of range, or text is not Unicode; names the field.
    """
    if isinstance(prompt, str):
        return build(types_pb2.Prompt, "prompt.", text=prompt)
    if isinstance(prompt, bytes | bytearray | memoryview):
        # Bytes are sequences of numbers and would pass for token ids.
        raise TypeError(f"prompt: must be text, not {type(prompt).__name__}: decode it")
    messages = [item for item in prompt if isinstance(item, Message)]
    if messages and len(messages) == len(prompt):
        turns = [
            build(types_pb2.ChatMessage, f"prompt.chat.messages[{index}].", role=message.role, content=message.content)
            for index, message in enumerate(messages)
        ]
        chat = types_pb2.ChatPrompt(messages=turns, continue_final_message=continue_final_message)
        return types_pb2.Prompt(chat=chat)
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) != len(prompt):
        raise unfit("prompt", "text, a sequence of Message, or a sequence of token ids", prompt)
    return types_pb2.Prompt(tokens=build(types_pb2.TokenPrompt, "prompt.tokens.", ids=ids))


def class_field(request_class: RequestClass) -> types_pb2.RequestClass.ValueType:
    """Convert a class to the wire.

    Raises:
        TypeError: the value is no class.
    """
    if not isinstance(request_class, RequestClass):
        raise unfit("request_class", "a RequestClass", request_class)
    return request_class_to_wire(request_class)


def request_to_proto(
    model: str, prompt: Prompt, sampling: Sampling | None, options: GenerateOptions | None
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
        prompt=prompt_to_proto(prompt, continue_final_message=options.continue_final_message),
        sampling=(sampling or Sampling()).to_proto(),
        request_class=class_field(options.request_class),
        idempotency_key=options.idempotency_key,
        lora_adapter=options.lora_adapter,
        session_id=options.session_id,
    )
    if options.queue_timeout is not None:
        request.queue_timeout.CopyFrom(duration_field("queue_timeout", options.queue_timeout))
    return request
