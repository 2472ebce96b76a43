"""A template's refusal names the variable that it is for, and the conversation only where that is at fault."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError
from router.tokens import ChatTemplate
from router.validation import ChatPrompt, Message

TEMPLATE = ChatTemplate(
    "{% if reasoning_effort and reasoning_effort not in ['low'] %}{{ raise_exception('effort is low') }}{% endif %}"
    "{% if style == 'loud' %}{{ raise_exception('style is calm') }}{% endif %}"
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
SAID = (Message("user", "hi"),)


@pytest.mark.parametrize(
    ("prompt", "field", "problem"),
    [
        (ChatPrompt(SAID, effort="much"), "reasoning.effort", "it: effort is low; got 'much'"),
        (
            ChatPrompt(SAID, template_kwargs='{"reasoning_effort": 3}'),
            "prompt.chat.template_kwargs.reasoning_effort",
            "it: effort is low; got 3",
        ),
        (
            ChatPrompt(SAID, effort="low", template_kwargs='{"other": 1, "style": "loud"}'),
            "prompt.chat.template_kwargs.style",
            "it: style is calm; got 'loud'",
        ),
        (ChatPrompt(SAID, continue_final=True, effort="much"), "reasoning.effort", "it: effort is low; got 'much'"),
        (ChatPrompt((Message("system", "hi"),)), "prompt.chat", "the conversation: no system messages"),
        # Both are wrong: the conversation stays so with any effort.
        (ChatPrompt((Message("system", "hi"),), effort="much"), "prompt.chat", "the conversation: effort is low"),
        (ChatPrompt(SAID, effort="much", template_kwargs='{"style": "loud"}'), "prompt.chat", "the conversation: "),
    ],
)
def test_a_refusal_names_what_it_is_for(prompt: ChatPrompt, field: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        TEMPLATE.render(prompt)
    [violation] = refused.value.violations
    assert field == violation.field
    assert f"the model's chat template refuses {problem}" in violation.description


def test_a_variable_that_the_template_takes_is_no_fault() -> None:
    assert "hi" == TEMPLATE.render(ChatPrompt(SAID, effort="low", template_kwargs='{"style": "calm"}'))
