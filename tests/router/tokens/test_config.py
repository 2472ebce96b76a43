"""The configuration of a tokenizer, as clients see it."""

from __future__ import annotations

import json

import pytest

from router.tokens.config import config_text


def test_tokens_are_texts_and_the_template_goes_along() -> None:
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": {"content": "<s>", "lstrip": False, "__type": "AddedToken"},
        "added_tokens_decoder": {"1": {"content": "<s>"}},
        "extra": [{"content": "<x>"}, 3],
    }
    files = {"tokenizer_config.json": json.dumps(config).encode(), "chat_template.jinja": b"{{ messages }}"}
    assert {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "added_tokens_decoder": {"1": "<s>"},
        "extra": ["<x>", 3],
        "chat_template": "{{ messages }}",
    } == json.loads(config_text(files))


@pytest.mark.parametrize("config", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_a_broken_file_is_left_out(config: bytes) -> None:
    assert {"tokenizer_class": "PreTrainedTokenizerFast"} == json.loads(config_text({"tokenizer_config.json": config}))
