"""Tables that lose nothing on a narrow screen: text is folded, numbers never are, and a table that is still too wide
continues below itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

LEAST_WORDS = 12
"""Least width of a text column in characters; a table that needs narrower ones is split instead."""
_EDGES = 3
"""Characters of border and padding per column; the table has one more."""


def add_columns(table: Table, *names: str, words: Collection[str] = (), left: Collection[str] = ()) -> None:
    """Add columns, of numbers unless named otherwise.

    Args:
        table: table that gets the columns.
        names: headings of the columns.
        words: columns of text, which is folded.
        left: left-aligned columns that are never folded, such as times.
    """
    for name in names:
        if name in words:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="left" if name in left else "right", no_wrap=True)


def print_table(table: Table, console: Console, keys: int = 1, nothing: str = "") -> None:
    """Print a table, in several parts where the console is too narrow for its numbers.

    Args:
        table: table with plain cells, in columns as `add_columns` makes them.
        console: console to print to.
        keys: number of first columns that are repeated in every part.
        nothing: what is printed instead of a table without rows; empty prints its heading.
    """
    if nothing and not table.row_count:
        console.print(nothing)
        return
    for part in split(table, console, keys):
        console.print(part)


def split(table: Table, console: Console, keys: int = 1) -> list[Table]:
    """Return the parts of a table that fit a console. The arguments are those of `print_table`."""
    columns, width = table.columns, console.width
    if _taken(columns, console) <= width:
        return [table]
    first = columns[:keys]
    # Columns without any content are left out.
    rest = [column for column in columns[keys:] if any(str(cell) for cell in column.cells)]
    groups: list[list[Column]] = [[]]
    for column in rest:
        if groups[-1] and _taken([*first, *groups[-1], column], console) > width:
            groups.append([])
        groups[-1].append(column)
    parts = [_part(table, [*first, *group]) for group in groups]
    for part in parts[1:]:
        part.title = None
    for part in parts:
        if _taken(part.columns, console) > width:
            # There is no room even for a single column: a folded number is better than a cut one.
            for column in part.columns:
                column.no_wrap, column.overflow = False, "fold"
    return parts


def _part(table: Table, columns: Sequence[Column]) -> Table:
    made = Table(title=table.title, title_justify=table.title_justify, box=table.box, show_footer=table.show_footer,
                 show_edge=table.show_edge, pad_edge=table.pad_edge)  # fmt: skip
    for each in columns:
        made.add_column(each.header, each.footer, justify=each.justify, no_wrap=each.no_wrap, overflow=each.overflow)
    for cells in zip(*(each.cells for each in columns), strict=True):
        made.add_row(*cells)
    return made


def _taken(columns: Sequence[Column], console: Console) -> int:
    """Return the least width that columns need, in characters."""
    return 1 + sum(_EDGES + _least(each, console) for each in columns)


def _least(column: Column, console: Console) -> int:
    widest = max(_width(cell, console) for cell in (column.header, column.footer, *column.cells))
    return widest if column.no_wrap else min(widest, LEAST_WORDS)


def _width(cell: object, console: Console) -> int:
    text = cell if isinstance(cell, Text) else console.render_str(str(cell))
    return max((cell_len(line) for line in text.plain.splitlines()), default=0)


def number(value: float, digits: int = 2) -> str:
    """Return a number without an exponent: four decimals, or so many digits of one below 0.01. A request on a small
    model costs less than 0.0001.
    """
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0 or abs(value) >= 0.01:
        return f"{value:,.4f}"
    return f"{value:.{digits - 1 - math.floor(math.log10(abs(value)))}f}"
