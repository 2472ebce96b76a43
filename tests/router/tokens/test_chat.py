"""Conversations render as in transformers; a message is never lost without a sign."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from cluster.errors import InvalidRequestError
from router.tokens import ChatTemplate
from router.validation import ChatPrompt, Message

CHAT = [Message("system", "Be <kind>."), Message("user", "  Hi & bye \n"), Message("assistant", "Hello")]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LLAMA = (
    "{{ bos_token }}\n{%- for m in messages %}\n  {% if m['role'] == 'system' %}[{{ m['content'] | trim }}]\n"
    "  {% else %}\n{{ m.role }}: {{ m.content }}{{ eos_token }}\n  {% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SHOWS_ALL = "{% for m in messages %}{{ m.content }}{% endfor %}"


def said(*messages: tuple[str, str]) -> list[Message]:
    return [Message(role, content) for role, content in messages]


def rendered(template: ChatTemplate, messages: Sequence[Message], *, continue_final: bool = False) -> str:
    return template.render(ChatPrompt(tuple(messages), continue_final))


@pytest.mark.slow
def test_a_conversation_renders_as_in_transformers() -> None:
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [{"role": m.role, "content": m.content} for m in CHAT]
    [expected], _ = reference.render_jinja_template(
        conversations=[messages], chat_template=LLAMA, add_generation_prompt=True, **TOKENS
    )

    assert rendered(ChatTemplate(LLAMA, TOKENS), CHAT) == expected


@pytest.mark.parametrize("content", ["The answer is ", "", "a<<b>>"])
def test_a_continued_message_ends_the_prompt(content: str) -> None:
    """What the template writes after the last message, such as an end-of-turn token, would stop the model."""
    text = rendered(
        ChatTemplate(LLAMA, TOKENS), [Message("user", "x"), Message("assistant", content)], continue_final=True
    )

    assert text.endswith(f"assistant: {content}")


@pytest.mark.slow
@pytest.mark.parametrize("content", ["The answer is ", "The answer is", "  so:\n\n", "a <b> "])
@pytest.mark.parametrize("trim", ["", " | trim", ".rstrip()"])
def test_a_message_is_continued_as_in_transformers(trim: str, content: str) -> None:
    """A template that trims has never shown the model a space at the end."""
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    template = f"{{% for m in messages %}}<{{{{ m.role }}}}>\n\n{{{{ m.content{trim} }}}}</turn>\n{{% endfor %}}"
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    [expected], _ = reference.render_jinja_template(
        conversations=[messages], chat_template=template, continue_final_message=True
    )

    turns = [Message("user", "x"), Message("assistant", content)]
    assert rendered(ChatTemplate(template), turns, continue_final=True) == expected


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_what_a_template_writes_before_an_empty_message_stays(content: str) -> None:
    template = "{% for m in messages %}<{{ m.role }}>\n\n{{ m.content | trim }}</turn>{% endfor %}"

    assert rendered(ChatTemplate(template), [Message("assistant", content)], continue_final=True) == "<assistant>\n\n"


def test_a_message_whose_end_the_template_cuts_cannot_be_continued() -> None:
    """The trial's mark is short and shows; the real content is longer."""
    template = "{% for m in messages %}{{ m.content[:60] }}{% endfor %}"
    with pytest.raises(InvalidRequestError) as caught:
        rendered(ChatTemplate(template), [Message("user", "x" * 100)], continue_final=True)

    assert caught.value.violations[0].field == "prompt.chat.continue_final_message"


def test_a_developer_message_that_moves_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered(ChatTemplate(SHOWS_ALL), said(("user", "a"), ("developer", "b")), continue_final=True)

    assert caught.value.violations[0].field == "prompt.chat.continue_final_message"


def test_rendering_leaves_messages_alone() -> None:
    template, chat = ChatTemplate(SHOWS_ALL), CHAT[-1:]

    assert rendered(template, chat, continue_final=True) == rendered(template, chat) == "Hello"


@pytest.mark.parametrize(
    ("template", "chat", "field", "text"),
    [
        # By role, as GLM and Yi do with a role that they don't know.
        (
            "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}{{ m.content }}{% endif %}"
            "{% endfor %}",
            said(("user", "a"), ("critic", "b")),
            "prompt.chat.messages[1].role",
            "'critic'; it shows: 'system', 'user', 'assistant'",
        ),
        # By position: only a first message can be the critic's.
        (
            "{% if messages[0].role == 'critic' %}{{ messages[0].content }}{% endif %}"
            "{% for m in messages %}{% if m.role != 'critic' %}{{ m.content }}{% endif %}{% endfor %}",
            said(("critic", "a"), ("user", "b"), ("critic", "c"), ("user", "d")),
            "prompt.chat.messages[2]",
            "shows messages of role 'critic', but not at this place",
        ),
        # The second of two.
        (
            "{% set s = messages | selectattr('role', 'equalto', 'critic') | list %}{{ s[0].content if s }}"
            "{% for m in messages %}{% if m.role != 'critic' %}{{ m.content }}{% endif %}{% endfor %}",
            said(("critic", "a"), ("critic", "c"), ("user", "d")),
            "prompt.chat.messages[1]",
            "not at this place",
        ),
        # The last message alone.
        ("{{ messages[-1].content }}", said(("user", "a"), ("user", "b")), "prompt.chat.messages[0]", "not at this"),
        # Nothing at all.
        ("Hello", said(("user", "a")), "prompt.chat.messages[0].role", "it shows: no messages at all"),
        # A part that is printed as the list that it is counts as not shown.
        (
            "{% for m in messages %}{{ m.content if m.content is not string else '' }}{% endfor %}",
            said(("user", "a")),
            "prompt.chat.messages[0].role",
            "does not show messages of role 'user'",
        ),
    ],
)
def test_a_message_that_would_be_lost_is_refused_by_name(
    template: str, chat: list[Message], field: str, text: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered(ChatTemplate(template), chat)

    [violation] = caught.value.violations
    assert field == violation.field
    assert text in violation.description


FIRST = "{% if messages[0].role == 'system' %}{{ messages[0].content }}|{% endif %}"
LATE = said(("system", "a"), ("user", "b"), ("system", "c"), ("user", "d"))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # Shown at their places.
        ("{% for m in messages %}{{ m.content }}|{% endfor %}", "a|b|c|d|"),
        # Dropped, as by Mistral's.
        (FIRST + "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}", "a\n\nc|b|d|"),
        # Refused, as by Qwen 3.5's.
        (
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
            "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{{ m.content }}|{% endfor %}",
            "a\n\nc|b|d|",
        ),
        # The last one alone.
        (
            "{% set s = messages | selectattr('role', 'equalto', 'system') | list %}{{ s[-1].content }}|"
            "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}",
            "a\n\nc|b|d|",
        ),
    ],
)
def test_later_system_messages_go_to_the_beginning_where_the_template_needs_it(template: str, text: str) -> None:
    assert text == rendered(ChatTemplate(template), LATE)


def test_what_is_refused_wherever_system_messages_are_is_told_as_it_was_sent() -> None:
    template = ChatTemplate("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(InvalidRequestError) as caught:
        rendered(template, said(("user", "a"), ("system", "b")))

    assert ["prompt.chat.messages[1].role"] == [each.field for each in caught.value.violations]


def test_a_system_message_that_moves_cannot_be_continued() -> None:
    template = ChatTemplate(FIRST + "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}")
    with pytest.raises(InvalidRequestError, match="not at this place"):
        rendered(template, said(("user", "a"), ("system", "b")), continue_final=True)


@pytest.mark.parametrize("content", ["", " \n"])
def test_a_message_without_text_has_nothing_to_lose(content: str) -> None:
    template = "{% for m in messages if m.content | trim %}<{{ m.role }}>{{ m.content }}{% endfor %}"

    assert "<user>a<user>b" == rendered(
        ChatTemplate(template), said(("user", "a"), ("assistant", content), ("user", "b"))
    )


def test_a_message_without_text_can_hide_another_one() -> None:
    """Conversations whose messages are empty at different places are tried apart."""
    template = ChatTemplate("{% if messages[0].content %}{% for m in messages %}{{ m.content }}{% endfor %}{% endif %}")

    assert "ab" == rendered(template, said(("system", "a"), ("user", "b")))
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]"):
        rendered(template, said(("system", ""), ("user", "b")))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"bos_token": "<s>"}}, None),
        ({"tokenizer_config.json": {"chat_template": f"one{SHOWS_ALL}"}}, "one"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "two"},
                        {"name": "default", "template": f"three{SHOWS_ALL}"},
                    ]
                }
            },
            "three",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "two"}]}}, None),
        ({"tokenizer_config.json": {"chat_template": "one"}, "chat_template.jinja": f"four{SHOWS_ALL}"}, "four"),
        (
            {
                "tokenizer_config.json": {
                    "bos_token": {"content": "<b>"},
                    "pad_token": None,
                    "add_bos_token": True,
                    "image_token": "<i>",
                    "extra_special_tokens": {"call_token": "<c>"},
                },
                "chat_template.jinja": "{{bos_token}}{{pad_token}}{{image_token}}{{call_token}}" + SHOWS_ALL,
            },
            "<b><i><c>",
        ),
    ],
)
def test_the_template_is_found_where_models_keep_it(files: dict[str, object], expected: str | None) -> None:
    encoded = {name: (value if isinstance(value, str) else json.dumps(value)).encode() for name, value in files.items()}
    template = ChatTemplate.from_files(encoded)

    assert (rendered(template, [Message("user", "")]) if template else None) == expected
