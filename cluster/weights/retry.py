"""How long a download waits before it tries again. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of HTTP after which a later try may succeed."""
_SPREAD = 0.25
"""Part of a wait by which it is made longer at random: pods that were refused at once must not come back at once."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Bounds on tries."""

    first_s: float = 1.0
    """First wait in seconds; each further one is twice as long."""
    most_s: float = 120.0
    """Longest wait, unless the server asks for a longer one."""
    most_asked_s: float = 3600.0
    """Longest wait that a server may ask for."""
    give_up_s: float = 6 * 3600.0
    """Time without a single new byte, in seconds, after which it is no use."""


def asked_wait(headers: Mapping[str, str], now: datetime.datetime) -> float | None:
    """Return the seconds that a server asks a client to wait; None where it asks for none that can be read."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    if text.isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return max(0.0, (when - now).total_seconds())


def wait_before(tries: int, asked_s: float | None, rules: RetryRules, spread: float) -> float:
    """Return the seconds to wait after a number of tries without progress.

    Args:
        tries: tries in a row that brought nothing, at least 1.
        asked_s: what the server asked for.
        rules: the bounds.
        spread: a random number from 0 to 1.
    """
    own = min(rules.most_s, rules.first_s * 2 ** min(tries - 1, 30))
    wait = own if asked_s is None else max(rules.first_s, min(asked_s, rules.most_asked_s))
    return wait * (1 + _SPREAD * spread)
