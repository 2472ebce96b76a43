"""Reader of a file that another process appends to."""

from __future__ import annotations

from pathlib import Path

FIRST_BYTES = 4 << 20
"""Part of a file, at its end, that is read for its last lines."""
MOST_BYTES = 64 << 20
"""Part of a file, at its end, that is searched for lines of a time, a level or a request. It takes some seconds."""


class Tail:
    """Reader of a file that another process appends to. Only whole lines are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._read = 0
        self._file = 0
        """Number of the file on its disk, by which another one at the same path is known."""

    def first(self, most_bytes: int) -> list[str]:
        """Return the lines that are there, in so many bytes at the end of the file. What comes after them is new."""
        found = self.path.stat()
        self._file = found.st_ino
        skipped = max(0, found.st_size - most_bytes)
        self._read = skipped
        lines = self.new()
        # The first line of a part has no beginning.
        return lines[1:] if skipped else lines

    def new(self) -> list[str]:
        """Return the lines that were added since the last call."""
        try:
            with self.path.open("rb") as file:
                found = self.path.stat()
                if found.st_size < self._read or found.st_ino != self._file:
                    # It was emptied, or there is another one: another cluster started in this folder.
                    self._read, self._file = 0, found.st_ino
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            self._read = 0
            return []
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode("utf-8", errors="replace").split("\n")
