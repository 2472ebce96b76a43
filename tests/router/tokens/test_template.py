"""Templates render as they do where model repositories test them, and cannot do harm."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import InvalidRequestError
from router.tokens import template as template_module
from router.tokens.template import Template

TURNS: list[Any] = [
    {"role": "system", "content": "Be <kind>."},
    {"role": "user", "content": "  Hi & bye \n"},
    {"role": "assistant", "content": "Hello"},
]
TEMPLATES = {
    "loop controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}",
    "generation's own variables": "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "absent": "{{ unk_token }}{% if tools is none and not documents %}none{% endif %}{% if tools %}some{% endif %}",
}


def text(source: str, max_characters: int = 10_000, **variables: Any) -> str:
    return Template(source, max_characters).text(TURNS, variables)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name: str) -> None:
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    [expected], _ = reference.render_jinja_template(conversations=[TURNS], chat_template=TEMPLATES[name])

    assert expected == text(TEMPLATES[name], tools=None, documents=None)


def test_html_is_not_escaped() -> None:
    turns = [{"role": "user", "content": "<a> & 'ü'"}]
    source = "{{ messages[0].content }}{{ messages[0].content | tojson }}"

    assert "<a> & 'ü'\"<a> & 'ü'\"" == Template(source, 1_000).text(turns, {})


def test_the_date_comes_from_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "_now", lambda pattern: f"now:{pattern}")

    assert "now:%Y" == text("{{ strftime_now('%Y') }}")


@pytest.mark.parametrize(
    "source",
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
def test_whatever_goes_wrong_in_a_template_is_the_requests_error(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        text(source)

    assert "prompt.chat" == caught.value.violations[0].field


def test_the_templates_own_complaint_reaches_the_client() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        text("{{ raise_exception('roles must alternate') }}")


def test_a_rendered_text_is_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="longer than 100"):
        text("{% for i in range(99) %}{{ messages[0].content }}{% endfor %}", max_characters=100)


def test_the_names_that_a_template_knows_are_those_it_compares_with() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' or m['role'] in ['tool', \"critic\"] %}{{ m.content }}"
        "{% elif m.role != 'judge' %}{{ 'plain' }}{% endif %}{% endfor %}"
    )

    assert ("critic", "judge", "tool", "user") == Template(source, 1_000).names
