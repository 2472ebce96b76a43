"""Types of values for flags. A value out of range is refused before the command starts."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

MOST_TIME = 315_576_000_000
"""Longest time that a message can hold, 10,000 years, in seconds. It also bounds numbers of other units."""

MOST_RATE = 1_000_000
"""Highest rate of a load, requests per second."""


def word(text: str) -> str:
    """Read a text that must not be empty; an unset shell variable gives an empty one."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must not be empty, got {text!r}")
    return text


def folder(text: str) -> str:
    """Read the path of a folder, which need not exist yet."""
    path = Path(os.path.expanduser(word(text)))
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a folder, got {text!r}, which is none")
    return text


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type of whole numbers from `least` to `most`, both inclusive; None is no upper bound."""

    def read(text: str) -> int:
        value = int(_bounded(int, text, least))
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be a whole number of at most {most}, got {text!r}")
        return value

    return read


def above_zero(text: str) -> float:
    """Read a finite number above 0."""
    return _bounded(float, text, 0.0, above=True)


def from_zero(text: str) -> float:
    """Read a finite number of at least 0."""
    return _bounded(float, text, 0.0)


def up_to(most: int) -> Callable[[str], float]:
    """Return a type of numbers from 0 to `most`."""
    return lambda text: _not_above(from_zero(text), most, text)


def above_zero_to(most: int) -> Callable[[str], float]:
    """Return a type of numbers above 0 and at most `most`."""
    return lambda text: _not_above(above_zero(text), most, text)


def time_of(text: str) -> float:
    """Read a length of time above 0, in any unit, at most MOST_TIME."""
    return _not_above(above_zero(text), MOST_TIME, text)


def time_from_zero(text: str) -> float:
    """Read a length of time from 0, in any unit, at most MOST_TIME."""
    return _not_above(from_zero(text), MOST_TIME, text)


def span(text: str) -> tuple[int, int]:
    """Read a range of whole numbers from 1, such as 1-100."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"must be two whole numbers from 1 such as 1-100, got {text!r}")
    return int(first), int(last)


def _bounded(kind: type[int] | type[float], text: str, least: float, *, above: bool = False) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least or (above and value == least):
        noun = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(
            f"must be {noun} {'above' if above else 'of at least'} {least:g}, got {text!r}"
        )
    return value


def _not_above(value: float, most: float, text: str) -> float:
    if value > most:
        raise argparse.ArgumentTypeError(f"must be a number of at most {most}, got {text!r}")
    return value
