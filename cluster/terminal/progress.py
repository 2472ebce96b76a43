"""Display of the steps of a start or stop. It is never silent for long: people take silence for a hang."""

from __future__ import annotations

import errno
import threading
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

_DONE = {"ready", "stopped"}
REMIND_S = 10.0
"""Seconds after which a line of output to no terminal is repeated while its step goes on."""


class StepDisplay:
    """A `Progress` that shows a line per step, with a spinner until it ends. Output to no terminal gets a plain line
    per text, and again while a step goes on.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: dict[str, tuple[str, float]] = {}
        """Step to its text and its begin, in monotonic seconds."""
        self._said: dict[str, float] = {}
        """Step to the time of its newest plain line, in monotonic seconds."""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reminder: threading.Thread | None = None
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=8, transient=True)

    def __enter__(self) -> StepDisplay:
        if not self._console.is_terminal:
            self._reminder = threading.Thread(target=self._remind, name="step-reminder", daemon=True)
            self._reminder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self._ended.set()
        if self._reminder is not None:
            self._reminder.join()

    def __call__(self, step: str, text: str) -> None:
        """Show the new text of a step."""
        with self._lock:
            self._show(step, text)

    def _show(self, step: str, text: str) -> None:
        known = self._steps.get(step)
        if text in _DONE:
            began = known[1] if known is not None else time.monotonic()
            self._steps.pop(step, None)
            self._print(f"[green]✓[/] {escape(step)} {text} [dim]{time.monotonic() - began:.1f} s[/]")
            if not self._steps:
                # A running display takes over standard output and ends a line at every flush. That would break an
                # answer that is streamed meanwhile.
                self._live.stop()
            return
        self._steps[step] = (text, time.monotonic() if known is None else known[1])
        if not self._console.is_terminal:
            if known is None or known[0] != text:
                self._say(step)
        elif known is None:
            self._live.start()

    def _say(self, step: str) -> None:
        text, began = self._steps[step]
        self._said[step] = time.monotonic()
        waited = time.monotonic() - began
        after = f" [dim]{waited:.0f} s[/]" if waited >= 1.0 else ""
        self._print(f"  {escape(f'{step}: {text}')}{after}")

    def _print(self, line: str) -> None:
        try:
            self._console.print(line, highlight=False)
        except OSError as error:
            # The terminal is gone. The signal that says so is on its way, and a drain must not end with this error.
            if error.errno != errno.EIO:
                raise

    def _remind(self) -> None:
        while not self._ended.wait(REMIND_S / 10):
            with self._lock:
                for step in self._steps:
                    if time.monotonic() - self._said[step] >= REMIND_S:
                        self._say(step)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for step, (text, began) in list(self._steps.items()):
            table.add_row(Spinner("dots"), f"{escape(f'{step}: {text}')} [dim]{time.monotonic() - began:.0f} s[/]")
        return table
