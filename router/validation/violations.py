"""Everything that is wrong with a request, so that a client learns it at once."""

from __future__ import annotations

import math

from cluster.errors import InvalidRequestError
from penstock.models import FieldViolation

MAX_VIOLATIONS = 16
"""Most violations of one error. A status travels in HTTP trailers of a few kilobytes; a client that has fixed these can
ask again."""
_SHOWN_CHARACTERS = 40


def shown(value: object) -> str:
    """Return a client's value as text: single-precision floats as the client wrote them, long text cut."""
    if isinstance(value, float):
        return f"{value:.7g}"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def utf8_length(text: str) -> int:
    """Return the bytes of a text in UTF-8; free for ASCII, which most long prompts are."""
    return len(text) if text.isascii() else len(text.encode())


class Violations:
    """Bounded list of violations, with the checks that fill it."""

    def __init__(self) -> None:
        self._found: list[FieldViolation] = []
        self._left_out = 0

    def __bool__(self) -> bool:
        """Return whether there is a violation."""
        return bool(self._found)

    def add(self, field: str, description: str) -> None:
        """Add a violation; past MAX_VIOLATIONS only their number is kept."""
        if len(self._found) < MAX_VIOLATIONS:
            self._found.append(FieldViolation(field, description))
        else:
            self._left_out += 1

    def add_any(self, field: str, *problems: str | None) -> None:
        """Add a violation for each problem that is not None."""
        for problem in problems:
            if problem is not None:
                self.add(field, problem)

    @property
    def full(self) -> bool:
        """Whether further violations are only counted."""
        return len(self._found) >= MAX_VIOLATIONS

    def number(
        self, field: str, value: float, low: float, high: float, *, above_low: bool = False, unit: str = ""
    ) -> None:
        """Check a number against [low, high], or (low, high] with `above_low`; NaN and infinity never pass. `unit`
        follows each number in the message.
        """
        inside = low < value <= high if above_low else low <= value <= high
        if not inside or not math.isfinite(value):
            unit = unit and f" {unit}"
            lower = f"above {shown(low)}{unit}" if above_low else f"at least {shown(low)}{unit}"
            beside = value not in (low, high) and shown(value) in (shown(low), shown(high))
            got = repr(value) if beside else shown(value)
            self.add(field, f"must be {lower} and at most {shown(high)}{unit}, got {got}{unit}")

    def count(self, field: str, value: int, low: int, high: int, unit: str = "entries") -> bool:
        """Check the number of entries of a field, and return whether it is allowed."""
        if low <= value <= high:
            return True
        bounds = f"at most {high}" if low == 0 else f"{low} to {high}"
        self.add(field, f"must have {bounds} {unit}, got {value}")
        return False

    def size(self, field: str, text: str, low: int, high: int) -> bool:
        """Check the length of a text in bytes of UTF-8, and return whether it is allowed."""
        return self.count(field, utf8_length(text), low, high, "bytes")

    def raise_any(self) -> None:
        """End the check.

        Raises:
            InvalidRequestError: there are violations.
        """
        if not self._found:
            return
        if self._left_out:
            last = self._found[-1]
            more = f"{last.description} (and {self._left_out} more violations)"
            self._found[-1] = FieldViolation(last.field, more)
        raise InvalidRequestError(self._found)
