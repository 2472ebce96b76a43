"""Which lines are shown. Pure."""

from __future__ import annotations

import argparse
import datetime
import re
from dataclasses import dataclass

from cluster.cli.logs.entry import LEVELS, LogEntry

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Choice:
    """Conditions that a line must fulfil; empty ones let everything through."""

    level: str = LEVELS[0]
    """Least level."""
    request: str = ""
    """Text of a request's id."""
    process: str = ""
    """Part of the name of a process."""
    since: float | None = None
    """Earliest time, seconds since the Unix epoch."""

    def takes(self, entry: LogEntry) -> bool:
        """Return whether to show an entry. Whether further lines of an entry have the request's id does not matter
        here: `Chosen` shows them with their first line.
        """
        if LEVELS.index(entry.level) < LEVELS.index(self.level) or self.process not in entry.process:
            return False
        if self.since is not None and (entry.at is None or entry.at < self.since):
            return False
        return self.request in entry.raw


class Chosen:
    """The lines of one log that are shown. A line without a time is shown with the line that it belongs to."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._taken: dict[str, bool] = {}
        """Whether the newest line with a time was taken, by process."""

    def takes(self, entry: LogEntry) -> bool:
        """Return whether to show the next entry."""
        if entry.more:
            return self._taken.get(entry.process, False)
        found = self._choice.takes(entry)
        self._taken[entry.process] = found
        return found


def when(text: str, now: datetime.datetime | None = None) -> float:
    """Read a point in time: how long ago, such as 10m, 2h or 1d, or a time of day or a date with or without a time.

    A time without a zone is local time. Returns seconds since the Unix epoch.
    """
    now = now or datetime.datetime.now().astimezone()
    if match := _AGO.fullmatch(text.strip()):
        return now.timestamp() - float(match[1]) * _UNITS[match[2]]
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text.strip()):
            clock = datetime.time.fromisoformat(text.strip().zfill(5))
            found = datetime.datetime.combine(now.date(), clock, now.tzinfo)
            # Of a time of day that is still to come, the last one is meant.
            return (found if found <= now else found - datetime.timedelta(days=1)).timestamp()
        found = datetime.datetime.fromisoformat(text.strip())
        return (found if found.tzinfo is not None else found.astimezone()).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be how long ago such as 10m, 2h or 1d, or a time such as 09:30 or 2026-01-31T09:30, got {text!r}"
        ) from None
