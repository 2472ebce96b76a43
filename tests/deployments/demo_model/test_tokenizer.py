"""The tokenizer in the repository is loss-free, and both of its readers agree about special tokens."""

import jinja2
import pytest
from tokenizers import Tokenizer

from deployments.demo_model import MODEL_DIR
from deployments.demo_model.tokenizer import BEGIN, CHAT_TEMPLATE, END, SPECIAL_TOKENS, VOCAB_SIZE

BEGIN_ID = SPECIAL_TOKENS.index(BEGIN)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def auto_tokenizer():
    # Takes seconds, so not when tests are collected.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.mark.parametrize(
    "text",
    [
        "What is the KV cache?",
        "  two  spaces,\ttabs\n\nand line breaks \n",
        "naïve café, Größe, Ελληνικά, 日本語, العربية",
        "😀 👩‍👩‍👧‍👦 🇩🇪",
        "\x00\x7f\u200b\ufeff",
        "",
    ],
)
def test_any_text_survives_a_round_trip(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_part_of_a_character_decodes_to_the_replacement_character_until_it_is_complete(tokenizer):
    ids = tokenizer.encode("😀", add_special_tokens=False).ids
    assert len(ids) > 1
    assert "\ufffd" in tokenizer.decode(ids[:-1])
    assert tokenizer.decode(ids) == "😀"


def test_special_tokens_have_the_first_ids_and_never_come_from_pieces(tokenizer):
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert tokenizer.encode(END, add_special_tokens=False).ids == [SPECIAL_TOKENS.index(END)]


@pytest.mark.slow
def test_a_plain_prompt_begins_with_exactly_one_begin_token(tokenizer, auto_tokenizer):
    ids = tokenizer.encode("Hello").ids
    assert ids.count(BEGIN_ID) == 1
    assert ids[0] == BEGIN_ID
    assert auto_tokenizer("Hello")["input_ids"] == ids


@pytest.mark.slow
def test_the_chat_template_renders_every_role(auto_tokenizer):
    messages = [
        {"role": "system", "content": "Be brief. "},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye"},
    ]
    rendered = auto_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|begin|><|system|>Be brief.<|end|><|user|>Hello<|end|><|assistant|>Hi.<|end|><|user|>Bye<|end|><|assistant|>"
    )


def test_the_chat_template_needs_nothing_but_jinja():
    template = jinja2.Environment(autoescape=False).from_string(  # noqa: S701 - a prompt is not HTML
        (MODEL_DIR / "chat_template.jinja").read_text(encoding="utf-8")
    )
    messages = [{"role": "user", "content": "Hello"}]
    rendered = template.render(messages=messages, bos_token=BEGIN, eos_token=END, add_generation_prompt=False)
    assert rendered == "<|begin|><|user|>Hello<|end|>"


@pytest.mark.slow
def test_the_chat_template_refuses_unknown_roles(auto_tokenizer):
    with pytest.raises(jinja2.TemplateError, match="robot"):
        auto_tokenizer.apply_chat_template([{"role": "robot", "content": "x"}], tokenize=False)


def test_the_chat_template_shows_tools_calls_and_results(auto_tokenizer):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    shown = auto_tokenizer.apply_chat_template(messages, tools=[tool], tokenize=False, add_generation_prompt=True)
    assert shown == (
        '<|begin|><|system|>Be brief. <tools>[{"name": "add", "parameters": {"type": "object"}}]</tools><|end|>'
        '<|user|>1 + 1?<|end|><|assistant|><tool_call>{"name": "add", "arguments": {"x":1}}</tool_call><|end|>'
        "<|user|><tool_response>2</tool_response><|end|><|assistant|>"
    )


@pytest.mark.slow
def test_a_rendered_chat_holds_one_begin_token_when_encoded_without_special_tokens(tokenizer, auto_tokenizer):
    messages = [{"role": "user", "content": "Hello"}]
    rendered = auto_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(rendered, add_special_tokens=False).ids
    assert ids.count(BEGIN_ID) == 1
    assert auto_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids


def test_the_shipped_template_is_the_one_in_the_code():
    assert (MODEL_DIR / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE
