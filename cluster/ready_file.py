"""File in which a started process says where it listens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError

READY_FLAG = "--ready-file"


def check_ready_file(path: Path | None) -> None:
    """Check before a start, which may take minutes, that the file can be written after it.

    Raises:
        SettingsError: it can't; names the flag and the path.
    """
    if path is None:
        return
    _write(path, "")
    _partial(path).unlink(missing_ok=True)


def write_ready_file(path: Path | None, fields: Mapping[str, Any]) -> None:
    """Write the fields as JSON, where a file is asked for. Readers see the whole file or none.

    Raises:
        SettingsError: it can't be written; names the flag and the path.
    """
    if path is None:
        return
    _write(path, json.dumps(fields))
    try:
        _partial(path).replace(path)
    except OSError as error:
        raise _refused(path, error) from error


def _write(path: Path, text: str) -> None:
    try:
        # The new file would replace a device; with `/dev/null`, for all processes of the machine.
        if path.exists() and not path.is_file():
            raise SettingsError(f"{READY_FLAG}: {path} must be a regular file")
        _partial(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"{READY_FLAG}: {path} cannot be written: {error.strerror}")


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
