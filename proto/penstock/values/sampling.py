"""Sampling parameters, as a value and as keywords of a call."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from penstock.models import ConstraintKind, StructuredOutput
from penstock.v1 import types_pb2
from penstock.values.fields import build, unfit
from penstock.wire import structured_to_wire


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
    """Constraint from `json_schema`, `regex`, `one_of`, `grammar` or `structural_tag`."""
    n: int | None = None
    """Number of independent choices; default 1."""
    prompt_logprobs: int | None = None
    """Number of alternatives per prompt token; 0 returns the prompt's own log probabilities only, None returns none."""

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
        raise unfit(
            "sampling.structured", "what json_schema, regex, one_of, grammar or structural_tag returns", constraint
        )
    try:
        return structured_to_wire(constraint)
    except (TypeError, ValueError):
        where = "sampling.structured_output."
        if constraint.kind is ConstraintKind.CHOICE:
            build(types_pb2.ChoiceConstraint, f"{where}choice.", values=constraint.choices)
        elif constraint.tag is not None:
            for index, each in enumerate(constraint.tag.structures):
                place = f"{where}structural_tag.structures[{index}]."
                build(types_pb2.TaggedSchema, place, begin=each.begin, json_schema=each.schema, end=each.end)
            build(types_pb2.StructuralTag, f"{where}structural_tag.", triggers=constraint.tag.triggers)
        else:
            build(types_pb2.StructuredOutput, where, **{constraint.kind.value: constraint.text})
        raise


class SamplingFields(TypedDict, total=False):
    """The fields of `Sampling` as keywords of a call, which an editor completes."""

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    logit_bias: Mapping[int, float]
    structured: StructuredOutput | None
    n: int | None
    prompt_logprobs: int | None


_PLAIN_FIELDS = tuple(f.name for f in fields(Sampling) if f.name != "structured")
_NAMES = tuple(f.name for f in fields(Sampling))


def sampling_of(
    given: Sampling | Mapping[str, Any] | None, keywords: Mapping[str, Any], others: Mapping[str, str] | None = None
) -> Sampling:
    """Return sampling parameters, however a caller gives them; keywords win.

    Args:
        given: the parameters, a dictionary of them, or None.
        keywords: parameters by name.
        others: other arguments of the call to what an error says of each; default: none.

    Raises:
        TypeError: `given` is of another type, or there is no parameter of a name; names the nearest one.
    """
    if given is None:
        given = Sampling()
    elif isinstance(given, Mapping):
        _check_names(given, "sampling: ", {})
        given = Sampling(**given)
    elif not isinstance(given, Sampling):
        raise unfit("sampling", "Sampling or a dictionary of its fields", given)
    if not keywords:
        return given
    _check_names(keywords, "", others or {})
    return replace(given, **keywords)


def _check_names(keywords: Mapping[str, Any], place: str, others: Mapping[str, str]) -> None:
    for name in keywords:
        if name in _NAMES:
            continue
        known = (*_NAMES, *others)
        near = difflib.get_close_matches(str(name), known, 1)
        if not near:
            hint = f"sampling parameters are {', '.join(_NAMES)}"
        elif near[0] == name:
            hint = f"give {others[name]}"
        else:
            hint = f"did you mean {others.get(near[0], near[0])}?"
        raise TypeError(f"{place}there is no parameter {name!r}; {hint}")
