"""Sentences about prompts that do not fit the context.

Agents read them: they shorten a conversation, or ask for fewer tokens, where they find the words of Anthropic's,
OpenAI's and vLLM's servers. Anthropic's errors have no code that could say so.
"""

from __future__ import annotations

CONTEXT = "This model's maximum context length is"
"""Words of every such sentence."""


def prompt_too_long(tokens: int, most: int, context: int, *, about: bool = False) -> str:
    """Say that a prompt is longer than the most that a context takes. `about`: the number of tokens is an estimate."""
    number = f"about {tokens}" if about else str(tokens)
    return f"prompt is too long: {number} tokens > {most} maximum. {CONTEXT} {context} tokens"


def no_room(tokens: int, max_tokens: int, context: int) -> str:
    """Say that a prompt leaves no room for the output that is asked for."""
    return (
        f"must be at most {context - tokens}: input length and `max_tokens` exceed context limit: "
        f"{tokens} + {max_tokens} > {context}. {CONTEXT} {context} tokens"
    )
