"""Which cell has an entry."""

from __future__ import annotations

from collections.abc import Iterable


class EntryCells:
    """Cells of a router's entries. What is missing here is asked for in all cells, so nothing depends on it but cost.

    Entries that nobody ends here would stay, so whole looks at the store's records (`begin`, `finish`) bound it.
    """

    def __init__(self) -> None:
        self._new: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def get(self, request_id: str) -> int | None:
        """Return the cell of an entry; None where it is not known."""
        cell = self._new.get(request_id)
        return self._old.get(request_id) if cell is None else cell

    def put(self, request_id: str, cell: int) -> None:
        """Note the cell of an entry."""
        self._new[request_id] = cell

    def drop(self, request_id: str) -> None:
        """Forget an entry."""
        self._new.pop(request_id, None)
        self._old.pop(request_id, None)

    def begin(self) -> None:
        """Begin a look at all records. What is noted from now on outlives its end."""
        self._old.update(self._new)
        self._new = {}

    def finish(self, found: Iterable[tuple[str, int]]) -> None:
        """End a look: entries that were there before it and are not on record are forgotten."""
        self._old = dict(found)
