"""A rough prompt length, for a model whose tokenizer is not known."""

from __future__ import annotations

from router.validation import Prompt
from router.validation.values import ChatPrompt, TextPrompt
from router.validation.violations import utf8_length

BYTES_PER_TOKEN = 4
"""Bytes per token of English text; other languages and code have fewer."""


def likely_tokens(prompt: Prompt) -> int:
    """Estimate the tokens of a prompt from its length in bytes of UTF-8; at least 1 for text and chats."""
    match prompt:
        case TextPrompt(text):
            size = len(text.encode())
        case ChatPrompt():
            size = sum(map(utf8_length, prompt.texts()))
        case _:
            return len(prompt.ids)
    return max(1, size // BYTES_PER_TOKEN)
