"""The start of a Ray cluster, as the name of its session tells it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_NAME = re.compile(r"session_(\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2})_")


def session_start(name: str) -> float:
    """Return when a session began, in seconds since the epoch by the head's clock; 0 for a name that does not tell."""
    found = _NAME.match(name)
    if found is None:
        return 0.0
    try:
        return datetime.strptime(found[1], "%Y-%m-%d_%H-%M-%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
