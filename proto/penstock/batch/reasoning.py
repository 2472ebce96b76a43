"""What the body of a chat asks of the model's reasoning. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.values.objects import Fields, shown
from penstock.values.unsupported import Unsupported

_NONE = "none"
THINKING = ("enabled", "disabled", "adaptive")
"""What `thinking.type` may say, in chats and in Anthropic's messages."""
_KNOWN: Mapping[str, Unsupported] = {"max_tokens": Unsupported(instead="max_tokens of the body bounds all output")}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a chat asks of the model's reasoning."""

    effort: str
    """Amount in the words of the chat template; empty for its own default."""
    include: bool
    """Whether it is returned."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template that switch it on or off."""


def switched(thinks: bool) -> dict[str, Any]:
    """Return variables for chat templates of several families; those without reasoning ignore them."""
    return {"enable_thinking": thinks, "thinking": thinks}


def read_reasoning(body: Fields) -> Reasoning:
    """Read `reasoning_effort` and `include_reasoning`, the object `reasoning` that OpenRouter's clients write, and the
    switches of DeepSeek's, GLM's and Qwen's clients, `thinking` and `enable_thinking`.

    Raises:
        BodyError: names the field that is wrong.
    """
    thinks, asked = _switch(body), _reasoning(body)
    if thinks is None:
        return asked
    # Without thinking there is no amount of it, as with `enabled` of `reasoning`.
    return Reasoning(asked.effort if thinks else "", asked.include, switched(thinks))


def _switch(body: Fields) -> bool | None:
    """Return whether the model shall think; None where the body does not say so."""
    plain, value = body.take("enable_thinking"), body.take("thinking")
    if plain is not None and not isinstance(plain, bool):
        raise body.wrong("enable_thinking", f"must be true or false, got {shown(plain)}")
    # As in `_reasoning`.
    if value is None or value == []:
        return plain
    given = body.child("thinking", value)
    kind = given.text("type")
    if kind not in ("", *THINKING):
        raise given.wrong("type", f"must be one of {', '.join(THINKING)}, got {shown(kind)}")
    body.also_ignored(given.leftovers())
    thinks = kind != "disabled" if kind else plain
    if plain not in (None, thinks):
        raise given.wrong("type", f"must say the same as enable_thinking = {shown(plain)}, got {shown(kind)}")
    return thinks


def _reasoning(body: Fields) -> Reasoning:
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
    on = switched(True) if value.get("enabled") and not (effort or other) else {}
    body.also_ignored(given.leftovers(_KNOWN))
    return Reasoning(effort or other, include, on)
