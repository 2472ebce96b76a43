"""Prompts to token ids, exactly as the model's own tokenizer and chat template make them."""

from router.tokens.chat import ChatTemplate
from router.tokens.store import TokenizerStore
from router.tokens.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Tokenizer", "TokenizerStore"]
