"""Logs: one line per event, a dotted name and fields. Prompts and outputs never appear in logs."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

PACKAGES = ("cluster", "router", "deployments", "loadtest")
"""Packages whose logs are configured here."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per line."""

    def __init__(self, **fixed: str) -> None:
        super().__init__()
        self._fixed = fixed

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **self._fixed,
            **extra_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Formatter of a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={on_one_line(value)}" for key, value in extra_fields(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def on_one_line(value: object) -> str:
    """Return a field as people read it. A client may have chosen its text: line ends would look like lines of our own,
    and control characters would steer the reader's terminal.
    """
    text = str(value)
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields given in `extra`. Names with an underscore are left out: Ray adds one to every record."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD and not key.startswith("_")}


def configure_logging(level: str, style: str, stream: TextIO | None = None, **fixed: str) -> None:
    """Send all logs of our packages to one stream, and what libraries warn of where nothing else takes it.

    Args:
        level: debug, info, warning or error.
        style: json or text.
        stream: default: stderr.
        fixed: fields added to every JSON line, such as the router's id.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(**fixed) if style == "json" else TextFormatter())
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    libraries = logging.StreamHandler(handler.stream)
    libraries.setFormatter(handler.formatter)
    libraries.setLevel(logging.WARNING)
    logging.lastResort = libraries
