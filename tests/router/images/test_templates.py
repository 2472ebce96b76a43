"""Images are shown by templates of all kinds: with parts, with text, and with marks of their own."""

from __future__ import annotations

import pytest

from cluster.errors import InvalidRequestError
from router.tokens.chat import ChatTemplate
from router.tokens.roles import ImagePlace
from router.validation import ChatPrompt, Image, Message

PLACE = ImagePlace("<start><pad><end>", "<pad>")
PARTS = """
{%- for message in messages %}[{{ message.role }}]
  {%- for part in message.content %}
    {%- if part.type == 'image' %}<start><pad><end>{% else %}{{ part.text }}{% endif %}
  {%- endfor %}
{%- endfor %}"""
"""Content as a list alone."""
BOTH = """
{%- for message in messages %}[{{ message.role }}]
  {%- if message.content is string %}{{ message.content }}{% else %}
    {%- for part in message.content %}
      {%- if part.type == 'image' %}<start><pad><end>{% else %}{{ part.text }}{% endif %}
    {%- endfor %}
  {%- endif %}
{%- endfor %}"""
TEXT = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
"""Content as text alone: a list would be written as it is."""
BLIND = BOTH.replace("<start><pad><end>", "")
"""Images of lists are dropped without a sign."""


def image() -> Image:
    return Image(b"x", 10, 10)


def chat(*parts: str | Image, role: str = "user") -> ChatPrompt:
    text = "\n".join(part for part in parts if isinstance(part, str))
    return ChatPrompt((Message(role, text, parts),))


@pytest.mark.parametrize("template", [PARTS, BOTH])
def test_a_template_that_knows_images_writes_its_own_mark(template: str) -> None:
    assert "[user]What is <start><pad><end>here?" == ChatTemplate(template).render(
        chat("What is ", image(), "here?"), PLACE
    )


@pytest.mark.parametrize("template", [TEXT, BLIND])
def test_any_other_template_gets_the_models_mark_as_text(template: str) -> None:
    assert "[user]What is\n<start><pad><end>\nhere?" == ChatTemplate(template).render(
        chat("What is", image(), "here?"), PLACE
    )


@pytest.mark.parametrize("template", [PARTS, BOTH, TEXT, BLIND])
def test_a_message_may_be_an_image_alone(template: str) -> None:
    assert "[user]<start><pad><end>" == ChatTemplate(template).render(chat(image()), PLACE)


@pytest.mark.parametrize("template", [PARTS, BOTH, TEXT, BLIND])
def test_every_image_of_every_turn_is_shown(template: str) -> None:
    turns = (*chat(image(), "One", image()).messages, Message("assistant", "Two"), *chat("Three", image()).messages)
    text = ChatTemplate(template).render(ChatPrompt(turns), PLACE)
    assert 3 == text.count("<pad>")
    assert text.index("One") < text.index("Two") < text.index("Three")


def test_a_template_without_a_place_for_the_message_is_refused_by_its_field() -> None:
    template = "{% for message in messages %}{% if message.role == 'user' %}{% for part in message.content %}"
    template += "{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    with pytest.raises(InvalidRequestError) as refused:
        ChatTemplate(template).render(chat("One", image()), PLACE)
    assert "prompt.chat.messages[0]" == refused.value.violations[0].field


def test_a_text_with_the_mark_of_images_is_refused_beside_images() -> None:
    turns = (Message("user", "What is <pad>?"), *chat("Here", image()).messages)
    with pytest.raises(InvalidRequestError) as refused:
        ChatTemplate(TEXT).render(ChatPrompt(turns), PLACE)
    assert "prompt.chat.messages[0]" == refused.value.violations[0].field
    assert "must not have the text '<pad>' beside images" in refused.value.violations[0].description


LAST = """
{%- for message in messages if message.role != 'system' %}[{{ message.role }}]
  {%- if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{{ message.content }}
{%- endfor %}"""
"""The system message goes to the end, as Mistral's does."""
FIRST = """
{%- for message in messages %}
  {%- if message.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif -%}
  [{{ message.role }}]{{ message.content }}
{%- endfor %}"""
"""A system message is the first one."""


def test_images_that_would_change_places_are_refused() -> None:
    """All look the same to a template: the model would see one in the place of the other."""
    rules, said = chat("Rules", image(), role="system").messages, chat("Here", image()).messages
    more = Message("assistant", "Yes"), Message("user", "Go on")
    for template, turns, wrong in (
        (LAST, (*rules, *said, *more), 0),
        (FIRST, (*said, *rules), 1),
        (FIRST, (*said, Message("developer", rules[0].content, rules[0].parts)), 1),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            ChatTemplate(template).render(ChatPrompt(turns), PLACE)
        assert refused.value.violations[0].field.startswith(f"prompt.chat.messages[{wrong}]")


def test_messages_without_images_may_change_places() -> None:
    rules, said = Message("system", "Rules"), chat("Here", image()).messages
    more = Message("assistant", "Yes"), Message("user", "Go on")
    assert "[user]Here\n<start><pad><end>[assistant]Yes[user]RulesGo on" == ChatTemplate(LAST).render(
        ChatPrompt((rules, *said, *more)), PLACE
    )
    for role in ("system", "developer"):
        late = Message(role, "Rules")
        text = ChatTemplate(FIRST).render(ChatPrompt((*said, late)), PLACE)
        assert "[system]Rules[user]Here\n<start><pad><end>" == text
    first = chat("Rules", image(), role="developer").messages
    assert 2 == ChatTemplate(FIRST).render(ChatPrompt((*first, *said)), PLACE).count("<pad>")


def test_without_images_the_text_is_as_ever() -> None:
    prompt = ChatPrompt((Message("user", "What is <pad>?"),))
    assert "[user]What is <pad>?" == ChatTemplate(TEXT).render(prompt)
