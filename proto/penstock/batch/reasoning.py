"""What the body of a chat asks of the model's reasoning. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.values.objects import Fields, shown
from penstock.values.unsupported import Unsupported

_NONE = "none"
_ON: Mapping[str, Any] = {"enable_thinking": True, "thinking": True}
"""Names of several families' templates; those without reasoning ignore them."""
_KNOWN: Mapping[str, Unsupported] = {"max_tokens": Unsupported(instead="max_tokens of the body bounds all output")}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a chat asks of the model's reasoning."""

    effort: str
    """Amount in the words of the chat template; empty for its own default."""
    include: bool
    """Whether it is returned."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template that switch it on."""


def read_reasoning(body: Fields) -> Reasoning:
    """Read `reasoning_effort` and `include_reasoning`, and the object `reasoning` that OpenRouter's clients write.

    Raises:
        BodyError: names the field that is wrong.
    """
    effort, include = body.text("reasoning_effort"), body.flag("include_reasoning", default=True)
    value = body.take("reasoning")
    # Some languages have one empty value for lists and objects, and write it as a list.
    if value is None or value == []:
        return Reasoning(effort, include)
    given = body.child("reasoning", value)
    other, enabled = given.text("effort"), given.flag("enabled", default=True)
    other = other if enabled else _NONE
    if effort and other and effort != other:
        raise given.wrong(
            "effort", f"must equal reasoning_effort = {shown(effort)} where both are given, got {shown(other)}"
        )
    include = include and not given.flag("exclude")
    on = _ON if value.get("enabled") and not (effort or other) else {}
    body.also_ignored(given.leftovers(_KNOWN))
    return Reasoning(effort or other, include, on)
