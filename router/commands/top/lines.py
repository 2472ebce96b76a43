"""Lines of a picture: texts with a meaning, which the terminal turns into colours. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size

GAP = 2
"""Characters between two columns."""
Row = TypeVar("Row")


class Look(enum.Enum):
    """Meaning of a text. No meaning is in the colour alone: a terminal may have none."""

    PLAIN = ""
    DIM = "dim"
    BOLD = "bold"
    HEAD = "bold underline"
    GOOD = "green"
    WARN = "yellow"
    BAD = "bold red"


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a line."""

    text: str
    look: Look = Look.PLAIN


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table."""

    title: str
    cell: Callable[[Row], Span]
    rank: int = 0
    """Columns of the highest rank are left out first where the screen is narrow; 0 always stays."""
    left: bool = False
    """Whether the column is left-aligned, as for words."""
    most: int = 0
    """Most characters; longer words are cut. 0 is no bound."""


def span(text: object, look: Look = Look.PLAIN) -> Span:
    """Return a part of a line. Control characters in names of others can't move the cursor."""
    return Span("".join(each if each.isprintable() else "?" for each in str(text)), look)


def line(*parts: Span | str) -> Line:
    """Return a line of parts; a plain text has no meaning."""
    return tuple(span(part) if isinstance(part, str) else part for part in parts)


def width_of(made: Line) -> int:
    """Return the number of terminal cells that a line takes."""
    return sum(cell_len(part.text) for part in made)


def fitted(made: Line, width: int) -> Line:
    """Return a line that is cut where it is wider than `width` cells; the last cell then shows that it was cut."""
    if width_of(made) <= width:
        return made
    kept: list[Span] = []
    room = max(0, width - 1)
    for part in made:
        size = cell_len(part.text)
        if size > room:
            kept.append(Span(set_cell_size(part.text, room) + "~", part.look))
            break
        kept.append(part)
        room -= size
    return tuple(kept)


def apart(left: Line, right: Line, width: int) -> Line:
    """Return a line with one part at each end. The left part is cut where both have no room."""
    room = max(0, width - width_of(right) - 1)
    left = fitted(left, room)
    return (*left, Span(" " * (room + 1 - width_of(left))), *right)


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None) -> list[Line]:
    """Return the header and one line per row. Columns that have no room are left out; None is room for all."""
    cells = {id(column): [_cut(column, column.cell(row)) for row in rows] for column in columns}
    sizes = {
        id(column): max([cell_len(column.title), *(cell_len(each.text) for each in cells[id(column)])])
        for column in columns
    }
    shown = list(columns)
    if width is not None:
        while sum(sizes[id(each)] + GAP for each in shown) - GAP > width:
            # Of columns with the same rank the last one goes first.
            worst = max(reversed(shown), key=lambda each: each.rank)
            if worst.rank == 0:
                break
            shown.remove(worst)
    made = [_joined([Span(each.title, Look.HEAD) for each in shown], shown, sizes)]
    made += [_joined([cells[id(each)][index] for each in shown], shown, sizes) for index in range(len(rows))]
    return made if width is None else [fitted(each, width) for each in made]


def _cut(column: Column[Row], cell: Span) -> Span:
    if not column.most or cell_len(cell.text) <= column.most:
        return cell
    return Span(set_cell_size(cell.text, column.most - 1) + "~", cell.look)


def _joined(cells: Sequence[Span], columns: Sequence[Column[Row]], sizes: dict[int, int]) -> Line:
    parts: list[Span] = []
    for index, (cell, column) in enumerate(zip(cells, columns, strict=True)):
        pad = " " * (sizes[id(column)] - cell_len(cell.text))
        gap = " " * GAP if index else ""
        # The padding has no meaning: a terminal would underline or colour it too.
        parts += (Span(gap), cell, Span(pad)) if column.left else (Span(gap + pad), cell)
    return tuple(part for part in parts if part.text)
