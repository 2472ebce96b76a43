"""Table and picture of costs, for `penstock usage --costs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster.terminal.tables import add_columns, print_table
from penstock.values.admin.costs import difference_of

if TYPE_CHECKING:
    from penstock.client import CostLine, CostReport, GpuTime

_KINDS = ("requests", "running", "idle", "standby", "starting", "draining", "lost")
_COLOURS = ("green", "cyan", "bright_black", "blue", "yellow", "magenta", "red")
_SIGNS = "#=.:+~x"
"""One for each kind, so that the picture can be read without colours."""
_BAR = 50
"""Characters of the picture."""
_SUSPECT = 0.01
"""Difference from which a line is marked."""


def print_costs(report: CostReport, console: Console) -> None:
    """Print a line per hour and pool, with totals below, and the parts of all time together as a bar."""
    if not report.lines:
        console.print("no replica has accounted for any time in these days")
        return
    print_table(table_of(report.lines), console, keys=2)
    console.print(picture_of(report.lines))


def table_of(lines: Sequence[CostLine]) -> Table:
    """Make the table. `sum` adds up the kinds, `paid` is the replicas' time, both in GPU-seconds."""
    table = Table(show_footer=True)
    names = ("hour", "pool", *_KINDS, "sum", "paid", "difference", "cost", "charged")
    add_columns(table, *names, words=("pool",), left=("hour",))
    for line in lines:
        table.add_row(f"{line.hour:%Y-%m-%d %H:%M}", line.pool, *_cells([line]))
    footers: tuple[Text, ...] = (Text("total"), Text(), *_cells(lines))
    for column, footer in zip(table.columns, footers, strict=True):
        column.footer = footer
    return table


def picture_of(lines: Sequence[CostLine]) -> Text:
    """Draw the part of each kind, and name it with its part and its cost."""
    parts = [_sum(lines, kind, lambda time: time.gpu_seconds) for kind in _KINDS]
    costs = [_sum(lines, kind, lambda time: time.cost) for kind in _KINDS]
    whole = sum(max(0.0, part) for part in parts) or 1.0
    bar, legend, edge, drawn = Text(), Text(), 0.0, 0
    for kind, colour, sign, part, cost in zip(_KINDS, _COLOURS, _SIGNS, parts, costs, strict=True):
        edge += max(0.0, part)
        width = round(_BAR * edge / whole) - drawn
        drawn += width
        bar.append(sign * width, style=colour)
        legend.append(f"\n{sign} ", style=colour).append(
            f"{kind:9}{_zero(part / whole, 3):7.1%}  {_zero(cost, 4):,.4f}"
        )
    return bar.append_text(legend)


def _cells(lines: Sequence[CostLine]) -> list[Text]:
    parts = [_sum(lines, kind, lambda time: time.gpu_seconds) for kind in _KINDS]
    found, paid = sum(parts), _sum(lines, "total", lambda time: time.gpu_seconds)
    difference = difference_of(found, paid)
    money = (_sum(lines, "total", lambda time: time.cost), sum(line.charged for line in lines))
    seconds = [Text(f"{_zero(value, 1):,.1f}") for value in (*parts, found, paid)]
    marked = Text(f"{difference:+.2%}", style="red" if abs(difference) >= _SUSPECT else "")
    return [*seconds, marked, *(Text(f"{value:,.4f}") for value in money)]


def _zero(value: float, digits: int) -> float:
    """Round a number. What rounds to zero has no sign."""
    return round(value, digits) + 0.0


def _sum(lines: Sequence[CostLine], kind: str, of: Callable[[GpuTime], float]) -> float:
    return sum(of(getattr(line, kind)) for line in lines)
