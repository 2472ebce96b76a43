"""Where the next page of a router's records in all cells begins."""

from __future__ import annotations

_PAGE = b"cell "


def page(cell: int, inner: bytes) -> bytes:
    """Return where the next page of holdings begins."""
    return b"%b%d:%b" % (_PAGE, cell, inner)


def read_page(after: bytes) -> tuple[int, bytes]:
    """Return the cell of a page, and where it begins there."""
    if not after.startswith(_PAGE):
        # The pool had one cell when the first page was read.
        return 0, after
    number, _, inner = after.removeprefix(_PAGE).partition(b":")
    return int(number), inner
