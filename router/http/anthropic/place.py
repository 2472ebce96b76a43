"""Place in a stream of messages, which the ids of its events name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.values.objects import UINT32

_LETTERS = {"t": "text", "r": "thinking", "u": "tool_use", "": ""}
_KINDS = {kind: letter for letter, kind in _LETTERS.items()}
_ID = re.compile(r"(\d{1,10})-(?:(\d{1,10})([tru]?))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Place behind an event."""

    tokens: int
    """Output tokens whose text the client has."""
    index: int = -1
    """Number of the newest block; -1 before the first."""
    open: str = ""
    """Type of the block that is open; empty for none."""

    def event_id(self) -> str:
        """Return the id of the event before this place."""
        return f"{self.tokens}-{self.index if self.index >= 0 else ''}{_KINDS[self.open]}"

    @classmethod
    def of(cls, event_id: str) -> StreamPlace | None:
        """Read the id of an event; None where it is none."""
        if (found := _ID.fullmatch(event_id)) is None:
            return None
        return cls(min(int(found[1]), UINT32[1]), int(found[2] or -1), _LETTERS[found[3] or ""])
