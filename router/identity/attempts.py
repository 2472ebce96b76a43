"""Limit of wrong keys and tokens from one address.

Secrets can't be guessed by trying anyway, since keys have 256 random bits. The limit bounds what a wrong client costs,
and shows in metrics who tries. One bad client must not lock out others behind the same proxy. So credentials that were
right lately pass in any case.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from cluster.clock import Clock

MAX_ADDRESSES = 10_000
"""Most addresses that are remembered; the one that failed longest ago makes room."""
MAX_RIGHT = 10_000
"""Most credentials that are remembered as right."""
RIGHT_S = 3_600.0
"""Seconds for which a credential counts as right lately."""
_MINUTE_S = 60.0
_IPV6_SUBSCRIBER = 64
"""Length of the prefix that one subscriber has. It may use every address in it."""


class Attempts:
    """Failed attempts by address, and credentials that were right. An address has a bucket of `limit` attempts that
    fills up again within a minute.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        """`limit`: failed attempts per minute; 0 for any number."""
        self.limit = limit
        self.blocked = 0
        """Number of credentials that were not looked at."""
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """Moment at which an address' bucket is full again, in the order of the last failures."""
        self._right: OrderedDict[int, float] = OrderedDict()

    @property
    def quiet(self) -> bool:
        """Whether no address has failed lately, so that nobody has to wait."""
        now = self._clock.monotonic()
        while self._full_at:
            oldest, full_at = next(iter(self._full_at.items()))
            if full_at > now:
                return False
            del self._full_at[oldest]
        return True

    def wait_s(self, address: str, credential: str) -> float:
        """Return the seconds until a credential from this address is looked at; 0 for now."""
        now = self._clock.monotonic()
        full_at = self._full_at.get(_subscriber(address), now)
        wait_s = full_at - now - _MINUTE_S + _MINUTE_S / self.limit
        if wait_s <= 0 or now - self._right.get(hash(credential), float("-inf")) < RIGHT_S:
            return 0.0
        self.blocked += 1
        return wait_s

    def failed(self, address: str, credential: str) -> None:
        """Note a wrong credential. An empty address, that of a caller on this machine without one, is not limited."""
        self._right.pop(hash(credential), None)
        if not address or not self.limit:
            return
        name, now = _subscriber(address), self._clock.monotonic()
        self._full_at[name] = max(self._full_at.get(name, now), now) + _MINUTE_S / self.limit
        self._full_at.move_to_end(name)
        if len(self._full_at) > MAX_ADDRESSES:
            self._full_at.popitem(last=False)

    def succeeded(self, credential: str) -> None:
        """Note a right credential. Only a hash with the process' own random key stays in memory."""
        key = hash(credential)
        self._right[key] = self._clock.monotonic()
        self._right.move_to_end(key)
        if len(self._right) > MAX_RIGHT:
            self._right.popitem(last=False)


def _subscriber(address: str) -> str:
    """Return the name under which an address is counted."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, _IPV6_SUBSCRIBER), strict=False))
