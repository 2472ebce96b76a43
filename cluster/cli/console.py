"""Where commands print: tables to standard output, one line per problem to standard error."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.markup import escape

WIDE = 160
"""Columns where nobody looks: a file or a pipe has room, and what is cut there is lost."""


def screen() -> Console:
    """Open standard output."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else WIDE)


def print_problem(problem: object) -> None:
    """Say what went wrong, as it is: names may hold brackets, and whoever searches a log wants a line to be one."""
    Console(stderr=True).print(f"[red]penstock:[/] {escape(str(problem))}", highlight=False, soft_wrap=True)


def print_wait(text: str) -> None:
    """Say why nothing happens for a while."""
    Console(stderr=True).print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True)
