"""Descriptions of files and batches that are stored beside them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LineError:
    """Reason why a batch can't begin."""

    line: int | None
    """Number of the line, from 1; None for the whole file."""
    code: str
    message: str
    param: str | None
    """Path of the wrong field in the line."""


@dataclass(frozen=True, slots=True)
class FileNote:
    """Description of an uploaded file."""

    filename: str
    size: int
    """Bytes."""
    model: str
    """Model of all lines; empty if no line names one."""
    urls: Mapping[str, int]
    """Endpoints that lines name, and the first line of each."""
    errors: tuple[LineError, ...]

    def pack(self) -> bytes:
        """Return the stored form."""
        return _packed(self)

    @classmethod
    def read(cls, data: bytes) -> FileNote:
        """Undo `pack`."""
        found = _read(data)
        return cls(**{**found, "errors": _errors(found)})


@dataclass(frozen=True, slots=True)
class BatchNote:
    """Description of a batch."""

    endpoint: str
    completion_window: str
    """As the client wrote it."""
    metadata: Mapping[str, str] | None
    errors: tuple[LineError, ...]
    """Reasons why it could not begin."""

    def pack(self) -> bytes:
        """Return the stored form."""
        return _packed(self)

    @classmethod
    def read(cls, data: bytes) -> BatchNote:
        """Undo `pack`."""
        found = _read(data)
        return cls(**{**found, "errors": _errors(found)})


def _packed(note: FileNote | BatchNote) -> bytes:
    return json.dumps(asdict(note), ensure_ascii=False).encode()


def _read(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


def _errors(found: Mapping[str, Any]) -> tuple[LineError, ...]:
    return tuple(LineError(**error) for error in found["errors"])
