"""Lines of a log that tell why its process ended. Pure."""

from __future__ import annotations

import re
import signal

MOST = 2_000
"""Most characters of an excerpt."""
_LEVEL = re.compile(r'(?:\{"time": "[^"]*", "level": "|\d\d:\d\d:\d\d )(?P<level>debug|info|warning|error|critical)\b')
"""Begin of a line of `cluster.telemetry.logs`, in either style."""
_NEWS = ("debug", "info")


def last_words(log: str) -> str:
    """Return the end of a log without routine lines: only errors, and lines that are not in our format, such as a
    traceback. Without any of these it is the warnings. Empty for a log of routine lines alone.
    """
    lines = [(_level(line), line) for line in log.splitlines()]
    telling = [line for level, line in lines if level not in (*_NEWS, "warning")]
    chosen = telling if any(map(str.strip, telling)) else [line for level, line in lines if level == "warning"]
    kept: list[str] = []
    room = MOST
    for line in reversed(chosen):
        room -= len(line) + 1
        if room < 0:
            # Keep the end of a single line that is too long.
            kept += [] if kept else [line[-MOST:]]
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _level(line: str) -> str:
    found = _LEVEL.match(line)
    return found["level"] if found else ""


def status_text(status: int | None) -> str:
    """Describe how a process ended, from its `returncode`."""
    if status is None or status >= 0:
        return f"status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
