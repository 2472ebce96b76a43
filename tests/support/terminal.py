"""Commands on a terminal of their own, as a person starts them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.support.waiting import until_sync

_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    # Also where the tests themselves run under `nohup`.
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
)
PENSTOCK = (sys.executable, "-m", "cluster.cli.main")


class Terminal:
    """A command that has a pseudo-terminal as its controlling terminal, and what it printed."""

    def __init__(self, *words: str, environ: dict[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        # Not preexec_fn: gRPC's fork handlers crash a child of a process with open calls.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", **(environ or {})},
        )
        os.close(theirs)
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._ours)

    @property
    def pid(self) -> int:
        """Process id of the command."""
        return self._process.pid

    @property
    def said(self) -> str:
        """Everything that was printed so far, what was typed included."""
        return bytes(self._said).decode(errors="replace")

    def type(self, text: str) -> None:
        """Press keys; character 3 is Ctrl-C, 4 is Ctrl-D."""
        os.write(self._ours, text.encode())

    def until(self, text: str, *, after: int = 0, seconds: float = 60.0) -> int:
        """Wait until a text is there, beyond an offset of what was printed. Return the offset of its end."""
        until_sync(lambda: text in self.said[after:] or self._process.poll() is not None, seconds)
        assert text in self.said[after:], self.said
        return self.said.index(text, after) + len(text)

    def ended(self) -> int:
        """Wait for the end, and return the exit status."""
        until_sync(lambda: self._process.poll() is not None)
        self._reader.join()
        return int(self._process.returncode)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 4096)
            except OSError:
                # The last process that had the terminal is gone.
                return
            if not data:
                return
            self._said += data


def run_in_terminal(words: Sequence[str], environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command of `penstock` on a terminal. Return its exit status and what it printed."""
    with Terminal(*PENSTOCK, *words, environ=environ) as terminal:
        return terminal.ended(), terminal.said
