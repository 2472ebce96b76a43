"""The terminal: its other screen, keys one by one, changes of its size, and stops and continues by job control."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.text import Text

from router.commands.top.keys import names_of
from router.commands.top.lines import Line

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen without a cursor, and back."""


class Terminal:
    """A screen that is drawn as a whole. `wake` may be called from any thread."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Not closed before the process ends: a thread may still wake the display when it is over.
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[int | list[bytes | int]] | None = None
        self._over = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows now."""
        # Not the console's own size, which follows the variable COLUMNS and then no change.
        found = os.get_terminal_size(sys.stdout.fileno())
        return max(1, found.columns), max(1, found.lines)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Use the other screen, and give everything back at the end."""
        handlers = {
            signal.SIGWINCH: lambda _number, _frame: self.wake(),
            signal.SIGTSTP: self._stopped,
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._enter()
        try:
            yield
        finally:
            self._leave()
            for number, handler in before.items():
                signal.signal(number, handler)

    def wake(self) -> None:
        """End the wait for keys."""
        try:
            os.write(self._waker, b"\0")
        except (BlockingIOError, OSError):
            # Enough wakes are in the pipe already, or the display is over.
            return

    def keys(self, seconds: float) -> list[str]:
        """Return the keys that were pressed. Wait for one, for a wake, or for as long as given."""
        sources = [self._wakes] if self._keys is None else [self._wakes, self._keys]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._over:
            return ["q"]
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if self._keys is None or self._keys not in ready:
            return []
        data = os.read(self._keys, 1024)
        # The terminal is gone.
        return names_of(data) if data else ["q"]

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw the lines from the top, each over what was there."""
        made = Text(no_wrap=True, end="")
        for index, parts in enumerate(lines):
            if index:
                made.append("\n")
            for part in parts:
                made.append(part.text, part.look.value)
        with self._console.capture() as capture:
            self._console.print(made, end="", soft_wrap=True, highlight=False, markup=False)
        # Each line clears what is left of the old one, and the last one what is below. Nothing is cleared before it is
        # written, which would flicker.
        text = capture.get().replace("\n", "\x1b[K\r\n")
        self._write(f"\x1b[H{text}\x1b[K\x1b[J")

    def _enter(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._write(_ENTER)

    def _leave(self) -> None:
        self._write(_LEAVE)
        if self._keys is not None and self._before is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._over = True
        self.wake()

    def _stopped(self, _number: int, _frame: FrameType | None) -> None:
        """Give the terminal to the shell, stop, and take it again when the shell lets this process go on."""
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()
        self.wake()

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()
