"""Splitter of a stream of bytes into lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.errors import InvalidRequestError

_BLANK = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineSplitter:
    """Lines of a file, which together are the file byte for byte. Blank lines belong to the line before them."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: longest line, with the blank ones that belong to it."""
        self._max_bytes = max_bytes
        self._held = bytearray()
        """The line that may go on, or that blank lines may follow."""
        self._begun = False
        """Whether a line that is not blank is held."""
        self._rest = bytearray()
        """Beginning of a line whose end has not come yet."""
        self._number = 0
        """Number of the line that is held, from 1."""
        self._ended = 0
        """Lines whose end has come."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take the next bytes. Yield each line that is complete, with its number.

        Raises:
            InvalidRequestError: a line is too long.
        """
        start = 0
        while end := data.find(b"\n", start) + 1:
            piece = data[start:end]
            start = end
            if self._rest:
                self._rest += piece
                piece = bytes(self._rest)
                self._rest.clear()
            yield from self._line(piece)
        self._rest += data[start:]
        self._bound(len(self._rest), self._ended + 1)

    def end(self) -> Iterator[tuple[int, bytes]]:
        """Yield the last line. A file of blank lines is one line.

        Raises:
            InvalidRequestError: the line is too long.
        """
        if self._rest:
            yield from self._line(bytes(self._rest))
        if self._held:
            yield max(1, self._number), bytes(self._held)

    def _line(self, line: bytes) -> Iterator[tuple[int, bytes]]:
        self._ended += 1
        self._bound(len(line), self._ended)
        text = line.removeprefix(_BYTE_ORDER_MARK) if self._ended == 1 else line
        if text.strip(_BLANK):
            if self._begun:
                yield self._number, bytes(self._held)
                self._held.clear()
            self._begun = True
            self._number = self._ended
        self._held += line
        self._bound(len(self._held), self._ended)

    def _bound(self, size: int, number: int) -> None:
        if size > self._max_bytes:
            raise InvalidRequestError.of(
                "file",
                f"must have at most {self._max_bytes:,} bytes a line (jobs.max_item_bytes), line {number} has more",
            )
