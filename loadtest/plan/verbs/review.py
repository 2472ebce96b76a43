"""`penstock plan --review`: shows how earlier plans did."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.plan.review import Book


def review(book: Book, *, as_json: bool) -> int:
    """Print the errors of earlier plans by model and accelerator."""
    found = book.review()
    if as_json:
        rows = [
            {**asdict(group), "figures": {name: asdict(each) for name, each in figures.items()}}
            for group, figures in found.items()
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    console = screen()
    if not found:
        console.print("No prediction has been observed yet; nothing is known of the planner's error here.")
    for group, figures in found.items():
        table = Table(title=escape(str(group)), title_justify="left")
        add_columns(table, "figure", "observed", "median error", "bias", "within range", words=("figure",))
        for name, each in figures.items():
            table.add_row(
                name, str(each.count), f"{each.median_error:.1%}", f"{each.bias:+.1%}", f"{each.coverage:.0%}"
            )
        print_table(table, console)
    return 0
