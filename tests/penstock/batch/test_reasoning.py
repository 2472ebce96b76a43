"""What a chat asks of the model's reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.batch.body import Body, read_body
from penstock.values.objects import BodyError, Fields


def read(body: dict[str, Any]) -> Body:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    return read_body(Fields("", chat, ignore_unknown=True), chat=True)


ON = {"enable_thinking": True, "thinking": True}


@pytest.mark.parametrize(
    ("body", "effort", "included", "variables"),
    [
        ({}, "", True, None),
        ({"reasoning": None}, "", True, None),
        ({"reasoning": {}}, "", True, None),
        ({"reasoning": []}, "", True, None),
        ({"reasoning": {"effort": "high"}}, "high", True, None),
        ({"reasoning": {"effort": "high", "enabled": True}}, "high", True, None),
        ({"reasoning": {"effort": "high", "enabled": False}}, "none", True, None),
        ({"reasoning": {"enabled": False}}, "none", True, None),
        ({"reasoning": {"enabled": True}}, "", True, ON),
        ({"reasoning": {"enabled": True}, "chat_template_kwargs": {"thinking": 2}}, "", True, {**ON, "thinking": 2}),
        ({"reasoning": {"effort": "low", "exclude": True}}, "low", False, None),
        ({"reasoning": {"exclude": False}, "include_reasoning": False}, "", False, None),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "low"}, "low", True, None),
        ({"reasoning": {"exclude": True}, "reasoning_effort": "low"}, "low", False, None),
    ],
)
def test_reasoning_is_asked_for_by_an_object_too(
    body: dict[str, Any], effort: str, included: bool, variables: dict[str, Any] | None
) -> None:
    """OpenRouter's clients, and routers of Claude Code, write it."""
    options = read(body).options
    assert (effort, included, variables) == (
        options.reasoning_effort,
        options.include_reasoning,
        options.chat_template_kwargs,
    )


OFF = {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize(
    ("body", "effort", "variables"),
    [
        ({"thinking": {"type": "enabled"}}, "", ON),
        ({"thinking": {"type": "adaptive"}}, "", ON),
        ({"thinking": {"type": "disabled"}}, "", OFF),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "high"}, "high", ON),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "high"}, "", OFF),
        ({"thinking": {}}, "", None),
        ({"thinking": []}, "", None),
        ({"thinking": None, "enable_thinking": None}, "", None),
        ({"enable_thinking": True}, "", ON),
        ({"enable_thinking": False}, "", OFF),
        ({"enable_thinking": False, "thinking": {"type": "disabled"}}, "", OFF),
        ({"enable_thinking": False, "thinking": {}}, "", OFF),
        ({"enable_thinking": False, "reasoning": {"effort": "low"}}, "", OFF),
        ({"enable_thinking": False, "chat_template_kwargs": {"thinking": 2}}, "", {**OFF, "thinking": 2}),
    ],
)
def test_reasoning_is_switched_as_other_servers_have_it(
    body: dict[str, Any], effort: str, variables: dict[str, Any] | None
) -> None:
    """Clients of DeepSeek, GLM and Kimi write `thinking`, those of Qwen `enable_thinking`."""
    options = read(body).options
    assert (effort, True, variables) == (
        options.reasoning_effort,
        options.include_reasoning,
        options.chat_template_kwargs,
    )


def test_a_hint_in_it_is_left_out() -> None:
    assert ("thinking.clear_thinking",) == read({"thinking": {"type": "enabled", "clear_thinking": True}}).ignored
    assert ("reasoning.summary",) == read({"reasoning": {"effort": "low", "summary": "auto"}}).ignored


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort",
         'must equal reasoning_effort = "high" where both are given, got "low"'),
        ({"reasoning": {"effort": 5}}, "reasoning.effort", "must be text, got 5"),
        ({"reasoning": {"enabled": "yes"}}, "reasoning.enabled", 'must be true or false, got "yes"'),
        ({"reasoning": {"max_tokens": 9}}, "reasoning.max_tokens",
         "is not supported, and can't be ignored because it changes answers; max_tokens of the body bounds all output"),
        ({"thinking": {"type": "maybe"}}, "thinking.type", 'must be one of enabled, disabled, adaptive, got "maybe"'),
        ({"thinking": True}, "thinking", "must be an object, got true"),
        ({"thinking": {"type": "enabled"}, "enable_thinking": False}, "thinking.type",
         'must say the same as enable_thinking = false, got "enabled"'),
        ({"enable_thinking": "no"}, "enable_thinking", 'must be true or false, got "no"'),
    ],
)  # fmt: skip
def test_what_can_t_be_served_is_named(body: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(BodyError) as error:
        read(body)
    assert (field, problem) == (error.value.field, error.value.problem)
