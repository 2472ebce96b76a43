"""Finds the variable of a client for which a chat template refuses a conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from cluster.errors import InvalidRequestError
from router.tokens.template import FIELD, REFUSES
from router.validation import ChatPrompt
from router.validation.violations import shown

EFFORT_FIELD = "reasoning.effort"
_MOST_TRIED = 8
"""Every trial renders the conversation."""


def blamed(
    error: InvalidRequestError, prompt: ChatPrompt, known: Collection[str], render: Callable[[ChatPrompt], object]
) -> InvalidRequestError:
    """Return the error with the field of the variable without which the template takes the conversation; the error as
    it is where that is none.

    Args:
        error: of the template.
        prompt: what it refuses.
        known: names of the variables that the template looks at.
        render: renders a conversation, or raises what it is refused for.
    """
    [violation, *others] = error.violations
    if others or violation.field != FIELD or not _without_all(prompt, render):
        return error
    for field, value, rest in _less(prompt, known):
        if _renders(rest, render):
            problem = violation.description.replace(f"{REFUSES} the conversation", f"{REFUSES} it", 1)
            return InvalidRequestError.of(field, f"{problem}; got {shown(value)}")
    return error


def _without_all(prompt: ChatPrompt, render: Callable[[ChatPrompt], object]) -> bool:
    given = bool(prompt.effort or prompt.template_kwargs)
    return given and _renders(replace(prompt, effort="", template_kwargs=""), render)


def _less(prompt: ChatPrompt, known: Collection[str]) -> Iterator[tuple[str, Any, ChatPrompt]]:
    """Yield the field of each variable, its value, and the conversation without it."""
    if prompt.effort:
        yield EFFORT_FIELD, prompt.effort, replace(prompt, effort="")
    variables: dict[str, Any] = json.loads(prompt.template_kwargs or "{}")
    for name in [each for each in variables if each in known][:_MOST_TRIED]:
        rest = {other: value for other, value in variables.items() if other != name}
        yield f"{FIELD}.template_kwargs.{name}", variables[name], replace(prompt, template_kwargs=json.dumps(rest))


def _renders(prompt: ChatPrompt, render: Callable[[ChatPrompt], object]) -> bool:
    try:
        render(prompt)
    except InvalidRequestError:
        return False
    return True
