"""Prompts to token ids, with tokenizer and chat template of the replica's engine. No message is lost silently."""

from router.tokens.chat import ChatTemplate
from router.tokens.store import TokenizerStore
from router.tokens.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Tokenizer", "TokenizerStore"]
