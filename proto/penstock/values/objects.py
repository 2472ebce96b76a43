"""Fields of an object that a caller wrote, as those of OpenAI's requests, and the error for a wrong one."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.values.unsupported import UNKNOWN, Unsupported

UINT32 = (0, (1 << 32) - 1)
POSITIVE = (1, UINT32[1])
UINT64 = (0, (1 << 64) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
_NONE: Mapping[str, Unsupported] = {}
_SHOWN = 60
"""Characters of a value that an error repeats."""


class BodyError(ValueError):
    """Error of an object that can't be a request; names the field."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        """Path of the field in the body; empty for the whole body."""
        self.problem = problem
        super().__init__(f"{field}: {problem}" if field else problem)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle, which by default would call the class with the message alone."""
        return type(self), (self.field, self.problem), self.__dict__


class _NumberError(ValueError):
    """Error of a number that can't be read."""


class Fields:
    """Object in a body. Its fields are taken one after another, and unknown ones remain; null is the same as absent."""

    def __init__(self, path: str, fields: Mapping[str, Any], ignore_unknown: bool) -> None:
        self.path = path
        """Path of the object in the body; empty for the body itself."""
        self._left = dict(fields)
        self._ignore_unknown = ignore_unknown
        self._ignored: list[str] = []
        self.taken: dict[str, None] = {}
        """Names that were asked for, in order."""

    def wrong(self, field: str, problem: str) -> BodyError:
        """Return the error for a field; an empty name is the object itself."""
        return BodyError(self._name(field), problem)

    def _name(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path and field else field or self.path

    def take(self, name: str) -> Any:
        """Return a field and mark it as known."""
        self.taken[name] = None
        return self._left.pop(name, None)

    def rest(self) -> dict[str, Any]:
        """Return all fields that are left, and mark them as known."""
        left, self._left = self._left, {}
        self.taken.update(dict.fromkeys(left))
        return left

    def text(self, name: str) -> str:
        """Return a text; empty when absent."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, f"must be text, got {shown(value)}")
        return value or ""

    def required(self, name: str) -> str:
        """Return a text that must not be empty."""
        text = self.text(name)
        if not text:
            raise self.wrong(name, "is required")
        return text

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a flag; the default when absent."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, got {shown(value)}")
        return default if value is None else value

    def number(self, name: str) -> float | None:
        """Return a number; None when absent."""
        value = self.take(name)
        if value is not None and not is_number(value):
            raise self.wrong(name, f"must be a number, got {shown(value)}")
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise self.wrong(name, f"must be a number below 1.8e308, got {shown(value)}") from None

    def count(self, name: str, bounds: tuple[int, int] = UINT32, most: int | None = None) -> int | None:
        """Return a whole number within bounds, both inclusive; None when absent.

        Args:
            name: of the field.
            bounds: what the wire can carry.
            most: the largest value of the API, which the service checks. An error about a number that the wire can't
                carry names it.
        """
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            # JSON has one kind of number, and some languages write all of them as 3.0.
            value = int(value)
        if not is_int(value):
            raise self.wrong(name, f"must be a whole number, got {shown(value)}")
        if most is not None and value > bounds[1]:
            bounds = bounds[0], most
        within(self, name, value, bounds)
        return int(value)

    def list(self, name: str) -> Sequence[Any]:
        """Return a list; empty when absent."""
        value = self.take(name)
        if value is None:
            return ()
        if not is_list(value):
            raise self.wrong(name, f"must be a list, got {shown(value)}")
        return value  # type: ignore[no-any-return]  # it is a sequence

    def object(self, name: str) -> Fields | None:
        """Return an object's fields; None when absent."""
        value = self.take(name)
        return None if value is None else self.child(name, value)

    def child(self, name: str, value: Any) -> Fields:
        """Return the fields of an object below this one."""
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"must be an object, got {shown(value)}")
        return Fields(self._name(name), value, self._ignore_unknown)

    def json(self, name: str, value: Any) -> str:
        """Return a field's value as the text of JSON."""
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except RecursionError:
            raise self.wrong(name, "is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise self.wrong(name, f"must be JSON: {error}") from None

    def also_ignored(self, paths: Iterable[str]) -> None:
        """Add the paths of ignored fields of an object below this one."""
        self._ignored.extend(paths)

    def ignores(self, name: str) -> bool:
        """Add a taken field to the ignored ones where unknown fields are; return whether they are."""
        if self._ignore_unknown:
            self._ignored.append(self._name(name))
        return self._ignore_unknown

    def leftovers(self, known: Mapping[str, Unsupported] = _NONE) -> tuple[str, ...]:
        """Return the paths of ignored fields. Call it after all supported fields are taken.

        Args:
            known: unsupported fields about which more is known.

        Raises:
            BodyError: a field is left and may not be ignored.
        """
        left = [name for name, value in self._left.items() if not known.get(name, UNKNOWN).accepts(value)]
        for name in left:
            field = known.get(name, UNKNOWN)
            problem = "is not supported"
            if field.neutral:
                neutral = " or ".join(json.dumps(value) for value in field.neutral)
                problem = f"must be {neutral} or absent, got {shown(self._left[name])}"
            instead = f"; {field.instead}" if field.instead else ""
            if not self._ignore_unknown:
                raise self.wrong(name, f"{problem}{instead}" if name in known else f"{problem}{self._near(name)}")
            if field.changes_answers:
                raise self.wrong(name, f"{problem}, and can't be ignored because it changes answers{instead}")
        return (*self._ignored, *(self._name(name) for name in left))

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(str(name), self.taken, 1)
        return f"; did you mean {near[0]}?" if near else ""


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value. Python's own reader also takes NaN and infinite numbers, which no answer may repeat.

    Raises:
        json.JSONDecodeError: it is no JSON.
        ValueError: it has a number that can't be read. The text says so of the whole, as "has a number ...".
    """
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (json.JSONDecodeError, UnicodeDecodeError, _NumberError):
        raise
    except ValueError:
        # Python refuses to parse whole numbers of more than some thousand digits.
        raise _NumberError("has a number with too many digits") from None


def _no_number(name: str) -> None:
    raise _NumberError(f"has {name}, which is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _NumberError(f"has the number {text[:_SHOWN]}, which is too large")
    return value


def parse_object(text: str) -> dict[str, Any] | None:
    """Return a JSON object that an answer can repeat; None where the text is none."""
    try:
        value = parse_json(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def within(fields: Fields, name: str, value: int, bounds: tuple[int, int]) -> None:
    """Check a number against bounds, both inclusive.

    The error has the bound that is broken alone. The other may be that of the wire, where the service has a narrower
    one, which the caller would meet next.

    Raises:
        BodyError: the number is outside.
    """
    if value < bounds[0]:
        raise fields.wrong(name, f"must be at least {bounds[0]}, got {shown(value)}")
    if value > bounds[1]:
        raise fields.wrong(name, f"must be at most {bounds[1]}, got {shown(value)}")


def is_int(value: object) -> bool:
    """Return whether a JSON value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: object) -> bool:
    """Return whether a value is a list of values; text is none."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def shown(value: object) -> str:
    """Return a value as JSON for an error, cut to 60 characters. Half of a surrogate pair is written as its escape."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "a value that is nested too deeply"
    except (TypeError, ValueError):
        text = repr(value)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
