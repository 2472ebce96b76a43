"""Counts with their nouns in messages."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 replica", "2 replicas", "1,024 tokens".

    Args:
        count: the number.
        one: noun for one; a verb may follow the noun.
        many: noun for several; default: `one` with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
