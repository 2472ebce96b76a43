"""A process of the cluster under test.

Not `cluster.bootstrap.process`: its hook between fork and exec makes Python run gRPC's own fork handlers, and those
crash the child of a process whose clients have calls under way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.waiting import until

_LOG_TAIL = 3_000


class Process:
    """A process that is started at once. It ends with this one where util-linux is installed, and with `kill`."""

    def __init__(
        self, name: str, command: Sequence[str], log_file: Path, environ: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.log_file = log_file
        setpriv = shutil.which("setpriv")
        leash = (setpriv, "--pdeathsig", "KILL") if setpriv else ()
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                (*leash, *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environ},
                # `python -m` takes modules from there before it looks anywhere else.
                cwd=folder,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def send_family(self, number: signal.Signals) -> None:
        """Send a signal to it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    async def wait(self) -> None:
        """Wait for its end."""
        await until(lambda: not self.running)

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, when it has ended."""
        if not self.running:
            raise RuntimeError(f"{self.name} ended with status {self.status}; end of its log:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
