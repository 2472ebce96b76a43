"""Lines of logs as people read them."""

from __future__ import annotations

import datetime
import sys
import zlib
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from cluster.cli.logs.entry import LogEntry
from cluster.telemetry.logs import on_one_line

_LEVELS = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red"}
_LABELS = ("cyan", "green", "magenta", "blue", "bright_cyan", "bright_magenta")


def parts_of(entry: LogEntry, today: datetime.date) -> list[tuple[str, str]]:
    """Return the texts of a line with their styles. A line without a time stays as it is."""
    process = [(f"[{entry.process}] ", "dim")] if entry.process else []
    if not entry.timed or entry.at is None:
        return [*process, (entry.text, "")]
    at = datetime.datetime.fromtimestamp(entry.at)
    # Most lines are of today, and need no date.
    clock = f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"
    day = "" if at.date() == today else f"{at:%Y-%m-%d} "
    style = _LEVELS[entry.level]
    parts = [(f"{day}{clock} ", "dim"), (f"{entry.level:<7} ", style), *process, (entry.text, style)]
    for key, value in entry.fields.items():
        parts += [(f" {key}=", "dim"), (_shown(value), "")]
    if entry.exception:
        parts.append(("".join(f"\n    {on_one_line(line)}" for line in entry.exception.splitlines()), ""))
    return parts


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text) if " " in text or not text else on_one_line(text)


class Printer:
    """Output of lines, with the name of their log where there are several."""

    def __init__(self, console: Console, width: int, *, raw: bool) -> None:
        """`width` is that of the longest name; 0 prints no names."""
        self.width = width
        self._console = console
        self._raw = raw

    def show(self, found: Sequence[tuple[str, LogEntry]]) -> None:
        """Print lines, each with the name of its log."""
        today = datetime.datetime.now().astimezone().date()
        for name, entry in found:
            before = f"{name:<{self.width}} | " if self.width else ""
            parts = [(entry.raw, "")] if self._raw else parts_of(entry, today)
            if self._console.is_terminal:
                style = _LABELS[zlib.crc32(name.encode()) % len(_LABELS)]
                self._console.print(Text.assemble((before, style), *parts), soft_wrap=True, highlight=False)
            else:
                # A file may get millions of lines, which rich would take minutes for.
                sys.stdout.write(f"{before}{''.join(text for text, _ in parts)}\n")
        sys.stdout.flush()
