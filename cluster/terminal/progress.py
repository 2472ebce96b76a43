"""Display of the steps of a start or stop."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

_DONE = {"ready", "stopped"}


class StepDisplay:
    """A `Progress` that shows a line per step, with a spinner until it ends; plain lines for output to no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: dict[str, tuple[str, float]] = {}
        """Step to its text and its begin, in monotonic seconds."""
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=8, transient=True)

    def __enter__(self) -> StepDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, step: str, text: str) -> None:
        """Show the new text of a step."""
        known = self._steps.get(step)
        if text in _DONE:
            began = known[1] if known is not None else time.monotonic()
            self._steps.pop(step, None)
            self._console.print(
                f"[green]✓[/] {escape(step)} {text} [dim]{time.monotonic() - began:.1f} s[/]", highlight=False
            )
            if not self._steps:
                # A running display takes over standard output and ends a line at every flush. That would break an
                # answer that is streamed meanwhile.
                self._live.stop()
        elif known is None:
            self._steps[step] = (text, time.monotonic())
            if self._console.is_terminal:
                self._live.start()
            else:
                self._console.print(f"  {escape(f'{step}: {text}')}", highlight=False)
        else:
            self._steps[step] = (text, known[1])

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for step, (text, began) in self._steps.items():
            table.add_row(Spinner("dots"), f"{escape(f'{step}: {text}')} [dim]{time.monotonic() - began:.0f} s[/]")
        return table
