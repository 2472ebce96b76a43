"""Where commands print: tables to standard output, one line per problem to standard error.

Text of others (keys, names, paths, errors) may hold brackets, which rich takes for markup: it goes through `escape` or
into a `Text`. Nor is `:name:` in it a picture, so no console here has emoji.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from rich.console import Console
from rich.markup import escape

WIDE = 160
"""Columns where nobody looks: a file or a pipe has room, and what is cut there is lost."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which ends the same way whatever was printed: rich would exit with 1, as if it failed."""
        raise


def screen(wide: int = WIDE) -> Console:
    """Open standard output; `wide`: columns where nobody looks."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Console(width=None if known else wide, emoji=False)


def messages() -> Console:
    """Open standard error."""
    return _Console(stderr=True, emoji=False)


def standard_input() -> TextIO:
    """Return standard input to read as UTF-8, whatever the locale says; what is none raises UnicodeDecodeError."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    return sys.stdin


def print_problem(problem: object) -> None:
    """Say what went wrong, as it is: names may hold brackets, and whoever searches a log wants a line to be one."""
    messages().print(f"[red]penstock:[/] {escape(str(problem))}", highlight=False, soft_wrap=True)


def print_wait(text: str) -> None:
    """Say why nothing happens for a while."""
    messages().print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True)
