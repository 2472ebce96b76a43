"""Turns prompts into token ids exactly as the model's own tokenizer and chat template do."""

from router.tokens.chat import ChatTemplate
from router.tokens.store import TokenizerStore
from router.tokens.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Tokenizer", "TokenizerStore"]
