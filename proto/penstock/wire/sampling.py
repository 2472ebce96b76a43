"""Conversion of sampling parameters and of engines' features."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache

from penstock.models import (
    Capabilities,
    ConstraintKind,
    SamplingParams,
    StructuralTag,
    StructuredOutput,
    TaggedSchema,
    Unenforced,
)
from penstock.v1 import inference_pb2, types_pb2

_SCALARS = (
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "logprobs",
    "prompt_logprobs",
)
"""Fields that have the same name on both sides and presence on the wire."""
_DEFAULTS = {field.name: field.default for field in fields(SamplingParams) if field.name in _SCALARS}
RECENT = 256
"""Number of different parameters that are cached: an application uses the same ones with every request."""
RECENT_BYTES = 512
"""Bytes; larger parameters are not cached."""
_CAPABILITIES = tuple(field.name for field in fields(Capabilities))


def sampling_to_wire(params: SamplingParams) -> types_pb2.SamplingParams:
    """Convert parameters; fields at their default stay unset, except max_tokens."""
    if not params.small:
        return _written(params)
    wire = types_pb2.SamplingParams()
    wire.CopyFrom(_written_recently(params))
    return wire


def _written(params: SamplingParams) -> types_pb2.SamplingParams:
    wire = types_pb2.SamplingParams(
        max_tokens=params.max_tokens,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        logit_bias=params.logit_bias,
    )
    for name, default in _DEFAULTS.items():
        value = getattr(params, name)
        if value != default:
            setattr(wire, name, value)
    if params.structured is not None:
        wire.structured_output.CopyFrom(structured_to_wire(params.structured))
    return wire


_written_recently = lru_cache(maxsize=RECENT)(_written)


def sampling_from_wire(wire: types_pb2.SamplingParams, *, max_tokens: int) -> SamplingParams:
    """Convert parameters of one choice; `n` is ignored.

    Args:
        wire: the received message; its floats have single precision.
        max_tokens: value of an unset max_tokens.
    """
    if wire.ByteSize() > RECENT_BYTES:
        return _read(wire, max_tokens)
    return _read_recently(wire.SerializeToString(deterministic=True), max_tokens)


def _read(wire: types_pb2.SamplingParams, max_tokens: int) -> SamplingParams:
    scalars = {name: getattr(wire, name) for name in _SCALARS if wire.HasField(name)}  # type: ignore[arg-type]
    return SamplingParams(
        max_tokens=wire.max_tokens if wire.HasField("max_tokens") else max_tokens,
        stop=tuple(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids),
        ignore_eos=wire.ignore_eos,
        logit_bias=dict(wire.logit_bias),
        structured=structured_from_wire(wire.structured_output) if wire.HasField("structured_output") else None,
        **scalars,
    )


@lru_cache(maxsize=RECENT)
def _read_recently(data: bytes, max_tokens: int) -> SamplingParams:
    return _read(types_pb2.SamplingParams.FromString(data), max_tokens)


def clear_defaults(wire: types_pb2.SamplingParams) -> None:
    """Clear fields whose value is their default."""
    for name, default in _DEFAULTS.items():
        if default is not None and wire.HasField(name) and getattr(wire, name) == default:  # type: ignore[arg-type]
            wire.ClearField(name)  # type: ignore[arg-type]
    if wire.HasField("n") and wire.n == 1:
        wire.ClearField("n")


def structured_to_wire(structured: StructuredOutput) -> types_pb2.StructuredOutput:
    match structured.kind:
        case ConstraintKind.JSON_SCHEMA:
            return types_pb2.StructuredOutput(json_schema=structured.text, best_effort=structured.best_effort)
        case ConstraintKind.REGEX:
            return types_pb2.StructuredOutput(regex=structured.text)
        case ConstraintKind.GRAMMAR:
            return types_pb2.StructuredOutput(grammar=structured.text)
        case ConstraintKind.CHOICE:
            return types_pb2.StructuredOutput(choice=types_pb2.ChoiceConstraint(values=structured.choices))
        case ConstraintKind.STRUCTURAL_TAG:
            tag = structured.tag or StructuralTag((), ())
            parts = [
                types_pb2.TaggedSchema(begin=each.begin, json_schema=each.schema, end=each.end)
                for each in tag.structures
            ]
            return types_pb2.StructuredOutput(
                structural_tag=types_pb2.StructuralTag(structures=parts, triggers=tag.triggers),
                best_effort=structured.best_effort,
            )


def structured_from_wire(wire: types_pb2.StructuredOutput) -> StructuredOutput | None:
    """Convert a constraint; None when the message has none."""
    kind = wire.WhichOneof("constraint")
    if kind is None:
        return None
    if kind == "choice":
        return StructuredOutput(ConstraintKind.CHOICE, choices=tuple(wire.choice.values))
    if kind == "structural_tag":
        parts = tuple(TaggedSchema(each.begin, each.json_schema, each.end) for each in wire.structural_tag.structures)
        tag = StructuralTag(parts, tuple(wire.structural_tag.triggers))
        return StructuredOutput(ConstraintKind.STRUCTURAL_TAG, tag=tag, best_effort=wire.best_effort)
    return StructuredOutput(ConstraintKind(kind), text=getattr(wire, kind), best_effort=wire.best_effort)


def unenforced_to_wire(unenforced: Unenforced) -> types_pb2.UnenforcedKeyword:
    return types_pb2.UnenforcedKeyword(place=unenforced.place, keyword=unenforced.keyword, reason=unenforced.reason)


def unenforced_from_wire(wire: types_pb2.UnenforcedKeyword) -> Unenforced:
    return Unenforced(wire.place, wire.keyword, wire.reason)


def capabilities_to_wire(capabilities: Capabilities, *, chat: bool) -> inference_pb2.Capabilities:
    """Convert capabilities; `chat`: whether the model has a chat template, which only the tokenizer knows."""
    return inference_pb2.Capabilities(chat=chat, **{name: getattr(capabilities, name) for name in _CAPABILITIES})


def capabilities_from_wire(wire: inference_pb2.Capabilities) -> Capabilities:
    """Convert capabilities without `chat`, which is no property of the engine."""
    return Capabilities(**{name: getattr(wire, name) for name in _CAPABILITIES})
