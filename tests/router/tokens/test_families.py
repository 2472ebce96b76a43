"""Constructs of well-known families' templates: every message shows, as the engine's own server would show it.

The templates are our own, and short. Each has what its family is known for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from cluster.errors import InvalidRequestError
from router.tokens import ChatTemplate
from router.tokens.template import Template
from router.validation import ChatPrompt, Message

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
FIXED_ROLES = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) "
    "or (m.role == 'assistant' and not m.tool_calls) %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}{{- '<|im_start|>user\n<tool>' + m.content + '</tool><|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
ANY_ROLE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PARTS_ONLY = (
    "{% for m in messages %}{{ m['role'].upper() }}: "
    "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }} {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
FIRST_PART = (
    "{% for m in messages %}{{ m['role'] | capitalize }}{% if m['content'][0]['type'] == 'image' %}:{% else %}: "
    "{% endif %}{% for line in m['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}"
    "<end>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
TEXT_OR_PARTS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}"
)
MACRO = (
    "{% macro shown(content) %}{% if content is string %}{{ content }}{% else %}{% for c in content %}"
    "{{ c.text if c.type == 'text' else '<media>' }}{% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}<{{ m.role }}>{{ shown(m.content) }}{% endfor %}"
)
MERGED_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for m in loop_messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n' + m['content'] %}"
    "{% else %}{% set content = m['content'] %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
SYSTEM_LAST = (
    "{%- set ns = namespace(system='') %}{%- for m in messages if m.role == 'system' %}{%- set ns.system = m.content %}"
    "{%- endfor %}{%- for m in messages if m.role != 'system' %}{%- if m.role == 'user' %}"
    "{%- if loop.last and ns.system %}[INST]{{ ns.system }}\n\n{{ m.content }}[/INST]{%- else %}[INST]{{ m.content }}"
    "[/INST]{%- endif %}{%- else %}{{ m.content }}{{ eos_token }}{%- endif %}{%- endfor %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m.role %}"
    "{% endif %}<start>{{ role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
)
THOUGHTS = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% elif m.role == 'assistant' %}"
    "<|Assistant|>{{ m.content.split('</think>')[-1].lstrip('\n') }}{% elif m.role == 'system' %}{{ m.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
LAST_QUERY = (
    "{%- set ns = namespace(found=false, last=messages | length - 1) %}{%- for m in messages[::-1] %}"
    "{%- if not ns.found and m.role == 'user' and not m.content.startswith('<tool>') %}{%- set ns.found = true %}"
    "{%- set ns.last = messages | length - 1 - loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{{- '<|' + m.role + '|>' }}{%- if m.role == 'assistant' and '</think>' in m.content and loop.index0 < ns.last %}"
    "{{- m.content.split('</think>')[1] }}{%- else %}{{- m.content }}{%- endif %}{%- endfor %}"
)
OWN_DEVELOPER = (
    "{%- if messages[0].role in ['developer', 'system'] %}<|developer|>{{ messages[0].content }}<|end|>"
    "{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}"
    "{%- for m in rest %}{%- if m.role in ['user', 'assistant'] %}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endif %}"
    "{%- endfor %}"
)
DATED = (
    "{%- if strftime_now is defined %}{%- set date = strftime_now('%Y') %}"
    "{%- else %}{%- set date = '2024' %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] | trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}"
    "<|system|>{{ '20' if date | length == 4 }}{{ system }}{%- for m in messages %}"
    "{%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}"
    "<|{{ m.role }}|>{{ m.content | trim }}{%- elif m.role in ('tool', 'ipython') %}<|ipython|>{{ m.content | tojson }}"
    "{%- endif %}{%- endfor %}"
)
DICTS = "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}"


class Case(NamedTuple):
    family: str
    template: str
    chat: tuple[tuple[str, str], ...]
    expected: str


class Refused(NamedTuple):
    family: str
    template: str
    chat: tuple[tuple[str, str], ...]
    field: str
    words: str


CASES = (
    Case(
        "Qwen 2.5",
        FIXED_ROLES,
        (("user", "Hi"),),
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    ),
    Case(
        "Qwen 2.5, developer",
        FIXED_ROLES,
        (("developer", "In French."), ("user", "Hi")),
        "<|im_start|>system\nIn French.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    ),
    Case(
        "Qwen 2.5, system and developer",
        FIXED_ROLES,
        (("system", "A"), ("user", "Hi"), ("assistant", "Yes"), ("developer", "B"), ("user", "So?")),
        "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
        "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n",
    ),
    Case(
        "Qwen 2.5, system in the middle",
        FIXED_ROLES,
        (("user", "Hi"), ("system", "A")),
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>system\nA<|im_end|>\n"
        "<|im_start|>assistant\n",
    ),
    Case(
        "ChatML",
        ANY_ROLE,
        (("critic", "No."), ("user", "Hi")),
        "<|im_start|>critic\nNo.<|im_end|><|im_start|>user\nHi<|im_end|><|im_start|>assistant\n",
    ),
    Case(
        "ChatML, developer",
        ANY_ROLE,
        (("developer", "A"), ("user", "Hi")),
        "<|im_start|>system\nA<|im_end|><|im_start|>user\nHi<|im_end|><|im_start|>assistant\n",
    ),
    Case("LLaVA 1.6", PARTS_ONLY, (("user", "What is 2+2?"),), "USER: What is 2+2? ASSISTANT:"),
    Case(
        "LLaVA 1.6, turns",
        PARTS_ONLY,
        (("system", "A"), ("user", "B"), ("assistant", "C"), ("user", "D")),
        "SYSTEM: A USER: B ASSISTANT: C USER: D ASSISTANT:",
    ),
    Case(
        "LLaVA 1.6, developers",
        PARTS_ONLY,
        (("developer", "A"), ("developer", "B"), ("user", "C")),
        "SYSTEM: A\n\nB USER: C ASSISTANT:",
    ),
    Case(
        "Idefics",
        FIRST_PART,
        (("user", "Hi"), ("assistant", "Yes"), ("user", "")),
        "User: Hi<end>\nAssistant: Yes<end>\nUser: <end>\nAssistant:",
    ),
    Case("Llama 3.2 Vision", TEXT_OR_PARTS, (("system", "A"), ("user", " B ")), "<|system|>A<|user|> B "),
    Case("Kimi", MACRO, (("system", "A"), ("user", "B")), "<system>A<user>B"),
    Case(
        "Llama 2",
        MERGED_SYSTEM,
        (("system", "A"), ("user", "B "), ("assistant", "C"), ("user", "D")),
        "<s>[INST] <<SYS>>\nA\n<</SYS>>\nB [/INST] C </s><s>[INST] D [/INST]",
    ),
    Case(
        "Mistral",
        SYSTEM_LAST,
        (("system", "A"), ("user", "B"), ("assistant", "C"), ("user", "D")),
        "[INST]B[/INST]C</s>[INST]A\n\nD[/INST]",
    ),
    Case(
        "Gemma 2",
        NO_SYSTEM,
        (("user", "A "), ("assistant", "B"), ("user", "C")),
        "<s><start>user\nA<end>\n<start>model\nB<end>\n<start>user\nC<end>\n",
    ),
    Case(
        "DeepSeek R1",
        THOUGHTS,
        (("system", "S"), ("user", "A"), ("assistant", "<think>x</think>\nB"), ("user", "C")),
        "S<|User|>A<|Assistant|>B<|User|>C<|Assistant|><think>\n",
    ),
    Case(
        "Qwen 3",
        LAST_QUERY,
        (("user", "A"), ("assistant", "<think>x</think>B"), ("user", "C")),
        "<|user|>A<|assistant|>B<|user|>C",
    ),
    Case("gpt-oss", OWN_DEVELOPER, (("developer", "A"), ("user", "B")), "<|developer|>A<|end|><|user|>B<|end|>"),
    Case(
        "Llama 3.1",
        DATED,
        (("system", " S "), ("user", "A"), ("ipython", "{}"), ("tool", "é")),
        '<|system|>20S<|user|>A<|ipython|>"{}"<|ipython|>"é"',
    ),
    Case("all fields", DICTS, (("user", "A"),), "role=user;content=A;"),
)
REFUSED = (
    Refused(
        "Qwen 2.5, unknown role",
        FIXED_ROLES,
        (("user", "A"), ("critic", "B")),
        "prompt.chat.messages[1].role",
        "it shows: 'system', 'user', 'assistant', 'tool'",
    ),
    Refused("LLaVA 1.6, tool", PARTS_ONLY, (("user", "A"), ("tool", "B")), "prompt.chat.messages[1].role", "'tool'"),
    Refused(
        "Mistral, system alone",
        SYSTEM_LAST,
        (("system", "A"), ("user", "B"), ("assistant", "C")),
        "prompt.chat.messages[0]",
        "not at this place",
    ),
    Refused(
        "gpt-oss, developer after system",
        OWN_DEVELOPER,
        (("system", "A"), ("developer", "B"), ("user", "C")),
        "prompt.chat.messages[1]",
        "not at this place",
    ),
    Refused("DeepSeek R1, tool", THOUGHTS, (("user", "A"), ("tool", "B")), "prompt.chat.messages[1].role", "'tool'"),
    Refused("Llama 2, order", MERGED_SYSTEM, (("user", "A"), ("user", "B")), "prompt.chat", "roles must alternate"),
    Refused("Gemma 2, system", NO_SYSTEM, (("system", "A"), ("user", "B")), "prompt.chat", "System role not supported"),
    Refused("Gemma 2, developer", NO_SYSTEM, (("developer", "A"), ("user", "B")), "prompt.chat", "System role not"),
)


def conversation(chat: tuple[tuple[str, str], ...], *, continue_final: bool = False) -> ChatPrompt:
    return ChatPrompt(tuple(Message(role, content) for role, content in chat), continue_final)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_every_message_shows(case: Case) -> None:
    assert case.expected == ChatTemplate(case.template, TOKENS).render(conversation(case.chat))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.family)
def test_what_would_not_show_is_refused_by_name(case: Refused) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(case.template, TOKENS).render(conversation(case.chat))

    [violation] = caught.value.violations
    assert case.field == violation.field
    assert case.words in violation.description


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_the_text_is_that_of_the_engines_server(case: Case) -> None:
    """The functions of vLLM prepare the messages, and transformers renders them."""
    server = pytest.importorskip("vllm.renderers.hf")
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    as_parts = server._detect_content_format(case.template, default="string") == "openai"
    chat: list[Any] = [
        {"role": role, "content": [{"type": "text", "text": content}] if as_parts and role != "tool" else content}
        for role, content in case.chat
    ]
    if "developer" in dict(case.chat) and not server._detect_developer_role_support(case.template):
        chat = server._consolidate_system_messages(server._convert_developer_to_system(chat))
        if as_parts:
            # vLLM leaves merged messages as text, which such a template would drop.
            chat = [
                {**each, "content": [{"type": "text", "text": each["content"]}]}
                if isinstance(each["content"], str)
                else each
                for each in chat
            ]
    [expected], _ = reference.render_jinja_template(
        conversations=[chat], chat_template=case.template, add_generation_prompt=True, **TOKENS
    )

    assert expected == ChatTemplate(case.template, TOKENS).render(conversation(case.chat))


def test_a_conversation_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial costs as much as a rendering of short messages."""
    template = ChatTemplate(PARTS_ONLY)
    rendered = []
    text = Template.text

    def counted(self: Template, turns: Any, variables: Any) -> str:
        rendered.append(turns)
        return text(self, turns, variables)

    monkeypatch.setattr(Template, "text", counted)
    template.render(conversation((("user", "A"),)))
    assert 4 == len(rendered)
    for content in ("B", "C", "D"):
        template.render(conversation((("user", content),)))
    assert 7 == len(rendered)
    template.render(conversation((("user", "A"), ("assistant", "B")), continue_final=True))
    assert 11 == len(rendered)
