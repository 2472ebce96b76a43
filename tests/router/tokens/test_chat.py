"""Templates render as they do where model repositories test them, and cannot do harm."""

import json

import pytest

from cluster.errors import InvalidRequestError
from router.tokens import ChatTemplate
from router.tokens import chat as chat_module
from router.validation import Message

CHAT = [Message("system", "Be <kind>."), Message("user", "  Hi & bye \n"), Message("assistant", "Hello")]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "llama": (
        "{{ bos_token }}\n{%- for m in messages %}\n  {% if m['role'] == 'system' %}[{{ m['content'] | trim }}]\n"
        "  {% else %}\n{{ m.role }}: {{ m.content }}{{ eos_token }}\n  {% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    ),
    "loop controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "absent": "{{ unk_token }}{% if tools is none and not documents %}none{% endif %}{% if tools %}some{% endif %}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name):
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [{"role": m.role, "content": m.content} for m in CHAT]
    [expected], _ = reference.render_jinja_template(
        conversations=[messages], chat_template=TEMPLATES[name], add_generation_prompt=True, **TOKENS
    )

    assert ChatTemplate(TEMPLATES[name], TOKENS).render(CHAT) == expected


def test_html_is_not_escaped():
    assert (
        ChatTemplate("{{ messages[0].content }}{{ messages[0].content | tojson }}").render(
            [Message("user", "<a> & 'ü'")]
        )
        == "<a> & 'ü'\"<a> & 'ü'\""
    )


def test_the_date_comes_from_the_clock(monkeypatch):
    monkeypatch.setattr(chat_module, "_now", lambda pattern: f"now:{pattern}")

    assert ChatTemplate("{{ strftime_now('%Y') }}").render(CHAT) == "now:%Y"


@pytest.mark.parametrize("content", ["The answer is ", "", "a<<b>>"])
def test_a_continued_message_ends_the_prompt(content):
    """What the template writes after the last message, such as an end-of-turn token, would stop the model."""
    text = ChatTemplate(TEMPLATES["llama"], TOKENS).render(
        [Message("user", "x"), Message("assistant", content)], continue_final=True
    )

    assert text.endswith(f"assistant: {content}")


@pytest.mark.slow
@pytest.mark.parametrize("content", ["The answer is ", "The answer is", "  so:\n\n", "a <b> "])
@pytest.mark.parametrize("trim", ["", " | trim", ".rstrip()"])
def test_a_message_is_continued_as_in_transformers(trim, content):
    """A template that trims has never shown the model a space at the end."""
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    template = f"{{% for m in messages %}}<{{{{ m.role }}}}>\n\n{{{{ m.content{trim} }}}}</turn>\n{{% endfor %}}"
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    [expected], _ = reference.render_jinja_template(
        conversations=[messages], chat_template=template, continue_final_message=True
    )

    turns = [Message("user", "x"), Message("assistant", content)]
    assert ChatTemplate(template).render(turns, continue_final=True) == expected


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_what_a_template_writes_before_an_empty_message_stays(content):
    template = "{% for m in messages %}<{{ m.role }}>\n\n{{ m.content | trim }}</turn>{% endfor %}"

    assert ChatTemplate(template).render([Message("assistant", content)], continue_final=True) == "<assistant>\n\n"


def test_a_message_that_the_template_hides_cannot_be_continued():
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate("{{ messages[0].content }}").render(CHAT, continue_final=True)

    assert caught.value.violations[0].field == "prompt.chat.continue_final_message"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content.x.y }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{% for i in range(1000000) %}x{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ strftime_now() }}",
    ],
)
def test_whatever_goes_wrong_in_a_template_is_the_requests_error(template):
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(template).render(CHAT)

    assert caught.value.violations[0].field == "prompt.chat"


def test_the_templates_own_complaint_reaches_the_client():
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(CHAT)


def test_a_rendered_text_is_bounded():
    with pytest.raises(InvalidRequestError, match="longer than 100"):
        ChatTemplate("{% for i in range(99) %}{{ messages[0].content }}{% endfor %}", max_characters=100).render(CHAT)


def test_rendering_leaves_messages_alone():
    template = ChatTemplate("{{ messages[-1].content }}")

    assert template.render(CHAT, continue_final=True) == template.render(CHAT) == "Hello"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"bos_token": "<s>"}}, None),
        ({"tokenizer_config.json": {"chat_template": "one"}}, "one"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "two"},
                        {"name": "default", "template": "three"},
                    ]
                }
            },
            "three",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "two"}]}}, None),
        ({"tokenizer_config.json": {"chat_template": "one"}, "chat_template.jinja": "four"}, "four"),
        ({"tokenizer_config.json": {"bos_token": {"content": "<b>"}}, "chat_template.jinja": "{{bos_token}}"}, "<b>"),
    ],
)
def test_the_template_is_found_where_models_keep_it(files, expected):
    encoded = {name: (value if isinstance(value, str) else json.dumps(value)).encode() for name, value in files.items()}
    template = ChatTemplate.from_files(encoded)

    assert (template.render(CHAT) if template else None) == expected
