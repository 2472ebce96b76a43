"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that a word was likely meant to be; None where no name is close."""
    # Imported late: most commands end without an error.
    from difflib import get_close_matches

    found = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question to append to an error, such as "; did you mean model?"; empty where no known name is close."""
    near = nearest(word, known)
    return "" if near is None else f"; did you mean {near}?"
