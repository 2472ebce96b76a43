"""One line of a log: its time, level and process, whichever program wrote it. Pure."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
_WORDS = {
    "debug": "debug", "trace": "debug", "info": "info", "notice": "info", "warn": "warning", "warning": "warning",
    "error": "error", "critical": "error", "fatal": "error",
}  # fmt: skip
_REDIS_SIGNS = {".": "debug", "-": "info", "*": "info", "#": "warning"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"\((?P<name>[\w:.\[\]-]+)(?: pid=(?P<pid>\d+))?(?:, ip=[\d.]+)?\) ?")
"""Prefix that Ray puts before a line of another process, and vLLM before one of its engine core."""
_REDIS = re.compile(
    r"\d+:[XCSM] (?P<time>\d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2}\.\d{3}) (?P<sign>[.\-*#]) (?P<text>.*)", re.DOTALL
)
_RAY = re.compile(
    r"(?P<level>[A-Z]+) (?P<time>\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d{3})(?: (?P<name>\S+) \d+ --)? (?P<text>.*)",
    re.DOTALL,
)
_VLLM = re.compile(r"(?P<level>[A-Z]+) (?P<time>\d{2}-\d{2} \d{2}:\d{2}:\d{2}) (?P<text>.*)", re.DOTALL)
_TEXT = re.compile(r"(?P<time>\d{2}:\d{2}:\d{2}) (?P<level>debug|info|warning|error|critical) +(?P<text>.*)", re.DOTALL)
_HIDDEN = ("time", "level", "event", "logger", "exception")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line, or a further line of an event that has several."""

    raw: str
    """The line as it is in the file."""
    text: str
    """What it says, without time and level."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of an event."""
    at: float | None = None
    """Time in seconds since the Unix epoch; None where the line has none, and none came before it."""
    level: str = "info"
    process: str = ""
    """Process inside a log of several, such as "demo-a1b2" or "ServeController pid=123"; empty for the log's own."""
    timed: bool = False
    """Whether the line itself has the time."""
    more: bool = False
    """Whether it belongs to the line before it, of the same process."""
    exception: str = ""


class Reader:
    """Reader of one log. It remembers what lines without a time belong to, and which process is which replica."""

    def __init__(self, today: datetime.date) -> None:
        """`today` completes times that have no date."""
        self._today = today
        self._last: dict[str, LogEntry] = {}
        """Newest entry with a time, by process."""
        self._newest: float | None = None
        """Time of the newest line with one."""
        self._replicas: dict[str, str] = {}
        """Process of Ray to the replica in it."""

    def read(self, raw: str) -> LogEntry:
        """Return the entry of a line."""
        line = _COLOUR.sub("", raw)
        label, line = _without_prefix(line)
        found = self._parsed(raw, line)
        if found.at is None:
            before = self._last.get(label)
            at, level = (before.at, before.level) if before is not None else (self._newest, "info")
            process = self._replicas.get(label, label)
            return replace(found, at=at, level=level, process=process, more=before is not None)
        if found.text == "replica.ready" and label:
            self._replicas[label] = str(found.fields.get("replica", label))
        found = replace(found, process=self._replicas.get(label, label), timed=True)
        self._last[label], self._newest = found, found.at
        return found

    def _parsed(self, raw: str, line: str) -> LogEntry:
        if line.startswith("{") and (found := _event(raw, line)) is not None:
            return found
        if match := _REDIS.fullmatch(line):
            at = datetime.datetime.strptime(match["time"], "%d %b %Y %H:%M:%S.%f").astimezone().timestamp()
            return LogEntry(raw, match["text"], at=at, level=_REDIS_SIGNS[match["sign"]])
        if match := _RAY.fullmatch(line):
            at = datetime.datetime.strptime(match["time"], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
            return self._plain(raw, match["text"], at, match["level"])
        if match := _VLLM.fullmatch(line):
            text = f"{self._today.year}-{match['time']}"
            at = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S").astimezone().timestamp()
            return self._plain(raw, match["text"], at, match["level"])
        if match := _TEXT.fullmatch(line):
            clock = datetime.time.fromisoformat(match["time"])
            at = datetime.datetime.combine(self._today, clock).astimezone().timestamp()
            return self._plain(raw, match["text"], at, match["level"])
        return LogEntry(raw, line)

    @staticmethod
    def _plain(raw: str, text: str, at: float, level: str) -> LogEntry:
        return LogEntry(raw, text, at=at, level=_WORDS.get(level.lower(), "info"))


def _without_prefix(line: str) -> tuple[str, str]:
    """Return the process that a prefix names, and the line without it. The innermost prefix names the process."""
    label = ""
    while match := _PROCESS.match(line):
        name = match["name"].split(":")[0]
        label = f"{name} pid={match['pid']}" if match["pid"] else name
        line = line[match.end() :]
    return label, line


def _event(raw: str, line: str) -> LogEntry | None:
    try:
        found = json.loads(line)
        at = datetime.datetime.fromisoformat(found["time"]).timestamp()
        event, level = str(found["event"]), str(found["level"])
    except (ValueError, KeyError, TypeError):
        return None
    fields = {key: value for key, value in found.items() if key not in _HIDDEN}
    return LogEntry(
        raw, event, fields, at, _WORDS.get(level.lower(), "info"), exception=str(found.get("exception", ""))
    )  # fmt: skip
