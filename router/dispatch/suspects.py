"""Search for the request that kills engines, without harm to those that ran beside it. Pure bookkeeping.

Engines die in a prefill, at a first sample or while a grammar compiles. So the suspects of a death are the requests
that never had any output. They run again one at a time, all others at once. A request is convicted when it was a
suspect in two deaths, at least once as the only one. The same content is then turned away for a while.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

MOST_QUARANTINED = 1_024
"""Contents that are turned away at a time; the oldest go first."""


@dataclass(slots=True)
class _Record:
    deaths: int = 0
    alone: bool = False
    """Whether it was the only suspect of one."""


@dataclass(frozen=True, slots=True)
class Conviction:
    """Why a content is turned away."""

    incident: str
    until: float
    """Monotonic seconds."""


class Suspects:
    """Suspects of one pool, as one router sees them."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._held: deque[str] = deque()
        self._canary = ""
        self._quarantined: OrderedDict[bytes, Conviction] = OrderedDict()

    def death(self, suspects: Iterable[str]) -> str | None:
        """Take those that had no output yet when an engine died. Returns the one that is convicted, if any; the others
        are held until `next_canary` names them.
        """
        names = list(suspects)
        if self._canary in names:
            self._canary = ""
        for name in names:
            record = self._records.setdefault(name, _Record())
            record.deaths += 1
            record.alone = record.alone or len(names) == 1
            if record.deaths >= 2 and record.alone:
                self.clear(name)
                names.remove(name)
                self._held.extend(names)
                return name
        self._held.extend(names)
        return None

    def next_canary(self) -> str | None:
        """Name the suspect that may run now; None while another one does, or when none is held."""
        if self._canary or not self._held:
            return None
        self._canary = self._held.popleft()
        return self._canary

    def clear(self, name: str) -> None:
        """Suspect it no more: it had output, or it is over."""
        self._records.pop(name, None)
        if name in self._held:
            self._held.remove(name)
        if self._canary == name:
            self._canary = ""

    # --- contents -----------------------------------------------------------------------------------------------------

    def quarantine(self, content: bytes, incident: str, until: float) -> None:
        """Turn a content away; `until` is in monotonic seconds. The first incident stays its name."""
        known = self._quarantined.get(content)
        self._quarantined[content] = Conviction(known.incident if known is not None else incident, until)
        if len(self._quarantined) > MOST_QUARANTINED:
            self._quarantined.popitem(last=False)

    @property
    def watchful(self) -> bool:
        """Whether any content is turned away."""
        return bool(self._quarantined)

    def turned_away(self, content: bytes, now: float) -> Conviction | None:
        """Say why a content is turned away; None where it is not."""
        found = self._quarantined.get(content)
        if found is not None and found.until <= now:
            del self._quarantined[content]
            return None
        return found
