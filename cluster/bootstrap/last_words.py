"""What a log says of why its process ended. Pure."""

from __future__ import annotations

import re
import signal

MOST = 2_000
"""Characters."""
_LEVEL = re.compile(r'(?:\{"time": "[^"]*", "level": "|\d\d:\d\d:\d\d )(?P<level>debug|info|warning|error|critical)\b')
"""As `cluster.telemetry.logs` begins a line, in either style."""
_NEWS = ("debug", "info")


def last_words(log: str) -> str:
    """Return the end of a log without the news of a process that was well: its errors, and what is no line of ours,
    such as a traceback; where there is neither, its warnings. Empty where all was well.
    """
    lines = [(_level(line), line) for line in log.splitlines()]
    telling = [line for level, line in lines if level not in (*_NEWS, "warning")]
    chosen = telling if any(map(str.strip, telling)) else [line for level, line in lines if level == "warning"]
    kept: list[str] = []
    room = MOST
    for line in reversed(chosen):
        room -= len(line) + 1
        if room < 0:
            # One line alone may be too long; its end says more than nothing.
            kept += [] if kept else [line[-MOST:]]
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _level(line: str) -> str:
    found = _LEVEL.match(line)
    return found["level"] if found else ""


def status_text(status: int | None) -> str:
    """Say how a process ended, from what `returncode` says."""
    if status is None or status >= 0:
        return f"status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
