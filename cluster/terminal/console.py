"""Consoles of commands: tables go to standard output, one line per problem to standard error.

Foreign text (keys, names, paths, errors) may have brackets, which rich would read as markup: it goes through `escape`
or into a `Text`. It may also have `:name:`, which rich would turn into an emoji, so no console here has emoji.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from rich.console import Console
from rich.markup import escape

from cluster.errors import SettingsError

WIDE = 160
"""Columns of output that is no terminal: a file or a pipe has room, and text that is cut there is lost."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the error to `main`, which ends all commands the same way; rich would exit with 1 as for a failure."""
        raise


def screen(wide: int = WIDE) -> Console:
    """Open standard output; `wide`: columns if it is no terminal."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Console(width=None if known else wide, emoji=False)


def messages() -> Console:
    """Open standard error."""
    return _Console(stderr=True, emoji=False)


def standard_input(errors: str = "strict") -> TextIO:
    """Return standard input, read as UTF-8 in any locale. Other bytes raise UnicodeDecodeError when they are read,
    unless `errors` names another way to treat them, as for `open`.

    Raises:
        SettingsError: it is closed.
    """
    if sys.stdin is None:
        raise SettingsError("standard input is closed, so there is nothing to read")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors=errors)
    return sys.stdin


def print_problem(problem: object) -> None:
    """Print a problem without markup, because names may have brackets, and as one line, which is easy to search for."""
    messages().print(f"[red]penstock:[/] {escape(str(problem))}", highlight=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print what is good to know, as the reason of a wait."""
    messages().print(f"[dim]{escape(text)}[/]", highlight=False, soft_wrap=True)
