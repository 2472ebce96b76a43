"""How counts are said."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 replica", "2 replicas", "1,024 tokens".

    Args:
        count: how many.
        one: what it is, of one; a verb may follow the noun.
        many: the same of several; default: with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
