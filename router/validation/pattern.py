"""The size of regular expressions and grammars, measured before an engine compiles them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.settings import LimitSettings

_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_COUNT_DIGITS = 9
LARGEST = 10**12
"""Largest size that is counted: above every limit, and far below numbers that take time to multiply."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Size of a pattern."""

    size: int
    """Characters with counted repetitions written out; those in classes count too."""
    depth: int
    """Deepest nesting of groups."""


def extent(pattern: str, *, quoted: bool) -> Extent:
    """Measure a pattern. Text that is no pattern gives some numbers, never an error.

    Args:
        pattern: a regular expression or grammar.
        quoted: whether literals stand in double quotes, as in grammars.
    """
    sizes = [0]
    last = 0
    """Size of the item that a following repetition applies to; the newest size already includes it."""
    depth = position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "(":
            sizes.append(0)
            depth = max(depth, len(sizes) - 1)
            continue
        if char == ")" and len(sizes) > 1:
            last = max(1, sizes.pop())
        elif char == "{" and (counted := _COUNTED.match(pattern, position - 1)):
            times = max(1, _number(counted[1]), _number(counted[2]))
            repeated = min(LARGEST, last * times)
            sizes[-1] += repeated - last
            last = repeated
            position = counted.end()
            continue
        elif char in "*+?|" or (quoted and char.isspace()):
            continue
        else:
            end = _item_end(pattern, position - 1, quoted=quoted)
            # Repetitions write out the characters of a class, too.
            last = max(1, end - position - 1) if char == "[" or (quoted and char == '"') else 1
            position = end
        sizes[-1] += last
    return Extent(min(LARGEST, sum(sizes)), depth)


def extent_problem(pattern: str, limits: LimitSettings, *, quoted: bool = False) -> str | None:
    """Return why a pattern is too large to compile; None when it is not."""
    measured = extent(pattern, quoted=quoted)
    if measured.depth > limits.max_group_depth:
        return f"must have groups nested at most {limits.max_group_depth} deep, got {measured.depth}"
    if measured.size > limits.max_repetitions:
        got = measured.size if measured.size < LARGEST else f"{LARGEST} or more"
        return f"must have at most {limits.max_repetitions} items with repetitions written out, got {got}"
    return None


def _item_end(pattern: str, start: int, *, quoted: bool) -> int:
    """Return where the character, escape, class or literal that starts here ends."""
    char = pattern[start]
    if char == "\\":
        return min(start + 2, len(pattern))
    closing = "]" if char == "[" else '"' if quoted and char == '"' else ""
    if not closing:
        return start + 1
    position = start + 1
    if char == "[" and not quoted and pattern[position : position + 2].lstrip("^")[:1] == "]":
        # This is an empty class in one dialect and the start of a class with a bracket in another. It counts as empty,
        # so that the text after it counts too.
        return pattern.index("]", position) + 1
    while position < len(pattern) and pattern[position] != closing:
        position += 2 if pattern[position] == "\\" else 1
    return min(position + 1, len(pattern))


def _number(digits: str | None) -> int:
    if not digits:
        return 0
    return int(digits) if len(digits) <= _COUNT_DIGITS else LARGEST


def escape_problem(pattern: str) -> str | None:
    """Return that a pattern ends inside an escape, which compilers take for something else; None if it does not."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        return "must be a regular expression: it ends inside an escape"
    return None
