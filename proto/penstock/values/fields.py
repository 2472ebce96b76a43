"""Building of messages from a caller's values. A value that does not fit raises an error that names field and limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as WireMessage
from google.protobuf.struct_pb2 import Struct, Value

from penstock.wire import duration_to_wire

Wire = TypeVar("Wire", bound=WireMessage)

_UNFIT = (TypeError, ValueError, OverflowError, AttributeError)
"""Errors of protobuf for values that a field can't have. None of them names the field."""
_SHOWN = 60
"""Characters of a value that an error repeats."""
LONGEST_S = 315_576_000_000
"""Longest time that a `google.protobuf.Duration` holds, in seconds: 10,000 years."""
_BOUNDS = {
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
}


class NotUnicodeError(ValueError):
    """Error of text that no message takes, because it has half of a surrogate pair."""

    def __init__(self, path: str, text: str, at: int) -> None:
        self.path = path
        self.text = text
        self.at = at
        """Index of the half in the text."""
        super().__init__(f"{path}: must be Unicode, got half of a surrogate pair, {text[at]!r}, at character {at}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle, which by default would call the class with the message alone."""
        return type(self), (self.path, self.text, self.at), self.__dict__


def build(kind: type[Wire], where: str = "", /, **values: Any) -> Wire:
    """Build a message. A field whose value is None stays unset.

    Args:
        kind: class of the message.
        where: path of the message in its request, with a dot at its end; empty for the request itself.
        values: fields and their values.

    Raises:
        NotUnicodeError: a text has half of a surrogate pair.
        ValueError: a value is out of the field's range.
        TypeError: a value is of another type.
    """
    try:
        return kind(**values)
    except _UNFIT:
        for name, value in values.items():
            _check(kind, where, name, value)
        raise


@contextmanager
def below(path: str) -> Iterator[None]:
    """Put a path in front of the field that an error names."""
    try:
        yield
    except NotUnicodeError as error:
        raise NotUnicodeError(f"{path}.{error.path}", error.text, error.at) from None
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{path}.{error}") from None


def unfit(path: str, expected: str, value: object) -> TypeError:
    """Return the error for a value of a wrong type."""
    return TypeError(f"{path}: must be {expected}, got {shown(value)}")


def check_text(path: str, text: object) -> None:
    """Check a text that is not sent in a message.

    Raises:
        TypeError: it is no text.
        NotUnicodeError: it is not Unicode.
    """
    if not isinstance(text, str):
        raise unfit(path, "text", text)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotUnicodeError(path, text, error.start) from None


def check_seconds(path: str, seconds: object) -> None:
    """Check a length of time that is not sent in a message. It may be infinite.

    Raises:
        TypeError: it is no number.
        ValueError: it is NaN.
    """
    try:
        # A type checker sees what callers without one may give.
        wrong = math.isnan(seconds)  # type: ignore[arg-type]
    except TypeError:
        raise unfit(path, "seconds", seconds) from None
    except OverflowError:
        wrong = True
    if wrong:
        raise ValueError(f"{path}: must be seconds, got {shown(seconds)}")


def duration_field(name: str, seconds: float) -> Duration:
    """Convert a field's seconds. The router checks whether they are in range.

    Raises:
        ValueError: they are not finite, or more than a duration holds; names the field.
        TypeError: they are no number; names the field.
    """
    check_seconds(name, seconds)
    if abs(seconds) > LONGEST_S:
        raise ValueError(f"{name}: must be finite seconds, at most {LONGEST_S:g}, got {shown(seconds)}; None sets none")
    return duration_to_wire(seconds)


def shown(value: object) -> str:
    """Return a value as an error repeats it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _check(kind: type[WireMessage], where: str, name: str, value: Any) -> None:
    if (error := _refusal(kind, name, value)) is None:
        return
    path, expected = f"{where}{name}", _expected(kind.DESCRIPTOR.fields_by_name[name])
    for part, index in _parts(value):
        if (refusal := _refusal(kind, name, part)) is not None:
            error = refusal
            if isinstance(part, dict):
                value = part
            else:
                path, value, expected = f"{path}[{index}]", part[0], expected.removeprefix("a sequence of ")
            break
    if isinstance(error, UnicodeEncodeError):
        raise NotUnicodeError(path, error.object, error.start) from None
    wrong = unfit(path, expected, value)
    raise (ValueError(str(wrong)) if isinstance(error, ValueError | OverflowError) else wrong) from None


def _refusal(kind: type[WireMessage], name: str, value: Any) -> Exception | None:
    try:
        kind(**{name: value})
    except _UNFIT as error:
        return error
    return None


def _parts(value: object) -> Iterator[tuple[dict[Any, Any] | list[Any], int]]:
    """Yield values that have one entry each, and the entry's index."""
    if isinstance(value, Mapping):
        for index, (key, entry) in enumerate(value.items()):
            yield {key: entry}, index
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        for index, entry in enumerate(value):
            yield [entry], index


def _expected(field: Any) -> str:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = (_one(entry.fields_by_name[name]) for name in ("key", "value"))
        return f"a mapping: {key}, to {value}"
    return f"a sequence of {_one(field)}" if field.is_repeated else _one(field)


def _one(field: Any) -> str:
    if (bounds := _BOUNDS.get(field.cpp_type)) is not None:
        return f"a whole number, at least {bounds[0]} and at most {bounds[1]}"
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return "text"
        case FieldDescriptor.TYPE_BYTES:
            return "bytes"
        case FieldDescriptor.TYPE_BOOL:
            return "True or False"
        case FieldDescriptor.TYPE_MESSAGE:
            return str(field.message_type.name)
        case _:
            return "a number"


def content_of(struct: Struct) -> dict[str, Any]:
    """Return the fields of a struct by name, as its own order changes from reading to reading. Whole numbers are
    integers again: a struct has only floats.
    """
    return {name: _plain(struct.fields[name]) for name in sorted(struct.fields)}


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return content_of(value.struct_value)
        case "list_value":
            return [_plain(one) for one in value.list_value.values]
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
    return None
