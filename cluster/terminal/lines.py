"""Progress of long work in output that is no terminal, such as a pipe or the log of a pipeline."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape

EVERY_S = 5.0


class ProgressLines:
    """A line every few seconds, and none in a terminal, where something moves already."""

    def __init__(self, console: Console, every_s: float = EVERY_S) -> None:
        self._console = console
        self._every_s = every_s
        self._began_at = self._last_at = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print a state, unless the last line is too recent."""
        now = time.monotonic()
        if self._console.is_terminal or now - self._last_at < self._every_s:
            return
        self._last_at = now
        said = f"[dim]{now - self._began_at:.0f} s:[/] {escape(text)}"
        self._console.print(said, highlight=False, soft_wrap=True)
