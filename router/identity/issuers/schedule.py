"""When an issuer is asked for its keys: regularly, and once for each key that a token names and nobody knows."""

from __future__ import annotations

from collections import OrderedDict

from cluster.settings import IssuerSettings

MAX_UNKNOWN = 1_024
"""Most unknown names of keys that are remembered."""


class FetchSchedule:
    """Times of requests to an issuer, in seconds of a monotonic clock.

    A stranger can send tokens with any number of made-up keys. So a request for them waits for `min_refresh_s`, one
    request serves all of them, and a name that was not among the issuer's keys then causes no other one.
    """

    def __init__(self, settings: IssuerSettings) -> None:
        self._settings = settings
        self._began_at: float | None = None
        """Begin of the last request."""
        self._succeeded_at: float | None = None
        """Begin of the last request that brought keys."""
        self._unknown: OrderedDict[str, float] = OrderedDict()
        """When a name was first asked for."""
        self._wanted = False

    def began(self, now: float) -> None:
        """Note the begin of a request."""
        self._began_at = now
        self._wanted = False

    def succeeded(self) -> None:
        """Note that the last request brought keys."""
        self._succeeded_at = self._began_at

    def ask_for(self, key_id: str, now: float) -> float | None:
        """Ask for a key that is not known. Return the seconds after which it may be; None where the issuer has no such
        key.
        """
        first = self._unknown.setdefault(key_id, now)
        self._unknown.move_to_end(key_id)
        if len(self._unknown) > MAX_UNKNOWN:
            self._unknown.popitem(last=False)
        if self._succeeded_at is not None and self._succeeded_at >= first:
            return None
        self._wanted = True
        return self.due_in(now)

    def due_in(self, now: float) -> float:
        """Return the seconds until the next request should begin; 0 for now."""
        if self._began_at is None:
            return 0.0
        failing = self._succeeded_at != self._began_at
        pause = self._settings.min_refresh_s if self._wanted or failing else self._settings.refresh_s
        return max(0.0, self._began_at + pause - now)

    def age(self, now: float) -> float | None:
        """Return the age of the keys in seconds; None without keys."""
        return None if self._succeeded_at is None else now - self._succeeded_at
