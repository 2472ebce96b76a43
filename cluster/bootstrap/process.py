"""Child processes of a local cluster. Each has a log file, ends with its whole group, and never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from cluster.bootstrap.last_words import MOST, last_words, status_text
from cluster.errors import BootstrapError

_PR_SET_PDEATHSIG = 1
"""An exception as Python prints it, also behind Ray's prefix of a line."""
_ROOM = 1 << 16
"""Bytes; a disk with less room is full."""
_LINGER_S = 2.0
"""Seconds that descendants may take to end after their parent."""


_STARTER = f"""
import ctypes, os, sys
parent = int(sys.argv[1])
os.setpgid(0, 0)
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGTERM)})
if os.getppid() == parent:
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def _dying_with_parent(command: Sequence[str]) -> list[str]:
    """Wrap a command so that its process has a group of its own, and ends with its parent, even if that is killed."""
    if sys.platform != "linux":
        return list(command)
    # Not preexec_fn, because it makes Python fork, and gRPC's fork handlers crash a child of a process with open calls.
    return [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid()), *command]


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _end_all(processes: list[psutil.Process]) -> None:
    _gone, alive = psutil.wait_procs(processes, timeout=_LINGER_S)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=_LINGER_S)


class ChildProcess:
    """One child process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_file: Path, log_from: int = 0) -> None:
        """`log_from` is the offset of its first byte in the log file; earlier processes wrote the bytes before."""
        self.name = name
        self.log_file = log_file
        self._log_from = log_from
        self._process = process
        self._family: set[psutil.Process] = set()

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], log_file: Path, environ: Mapping[str, str | None] | None = None
    ) -> ChildProcess:
        """Start a process whose output goes to `log_file`. `environ`: changes to this process' environment; None
        removes a variable.

        Raises:
            BootstrapError: the program can't be run.
        """
        if shutil.which(command[0]) is None:
            raise BootstrapError(name, f"{command[0]} can't be run: there is no such program")
        log_file.parent.mkdir(parents=True, exist_ok=True)
        changed = {**os.environ, **(environ or {})}
        with log_file.open("ab") as log:
            log_from = log.tell()
            try:
                process = await asyncio.create_subprocess_exec(
                    *_dying_with_parent(command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={variable: value for variable, value in changed.items() if value is not None},
                    # Ctrl-C reaches the parent only, which then ends its children in order. On Linux the starter makes
                    # a group for that: the scheduler divides full cores among sessions first, and a session of its own
                    # kept Redis waiting for seconds.
                    start_new_session=sys.platform != "linux",
                )
            except OSError as error:
                raise BootstrapError(name, f"{command[0]} can't be run: {error.strerror}") from error
        return cls(name, process, log_file, log_from)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the end of the process; return the exit status."""
        return await self._process.wait()

    async def look(self) -> None:
        """Remember the descendants, which can't be found from a dead parent."""
        if self.running:
            self._family = set(await asyncio.to_thread(_descendants, self.pid))

    async def stop(self, grace_s: float) -> None:
        """Ask the process to end; after `grace_s` seconds kill its group. At the return the process is gone."""
        if self.running:
            self._process.terminate()
            try:
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
            except TimeoutError:
                self.kill()
                await self._process.wait()

    async def stop_family(self, grace_s: float) -> None:
        """Stop the process and its descendants, which may outlive it; at the return all are gone. After a `look` this
        holds even if the process ended by itself.
        """
        await self.look()
        await self.stop(grace_s)
        await asyncio.to_thread(_end_all, list(self._family))

    def kill(self) -> None:
        """Kill the process and its group at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It has ended, or has no group yet.
            with suppress(ProcessLookupError):
                self._process.kill()

    def log_tail(self) -> str:
        """Return the end of the log, for an error message."""
        try:
            return self._log()[-MOST:]
        except OSError:
            return ""

    def obituary(self) -> dict[str, str]:
        """Return log fields about the end of the process: its status, and lines of its log that tell why, if any."""
        try:
            words = last_words(self._log())
        except OSError:
            words = ""
        return {
            "ended": status_text(self._process.returncode),
            "log_file": str(self.log_file),
            **({"log": f"\n{words}"} if words else {}),
        }

    def worries(self) -> str:
        """Return lines of the log that tell what goes wrong in a process that runs; empty without any."""
        try:
            return last_words(self._log())
        except OSError:
            return ""

    def _log(self) -> str:
        return self.log_file.read_bytes()[self._log_from :].decode("utf-8", errors="replace")

    def _silence(self) -> str:
        try:
            full = shutil.disk_usage(self.log_file.parent).free < _ROOM
        except OSError:
            full = False
        why = f"the disk of {self.log_file.parent} is full, so" if full else ""
        return f"{why} its log does not say why: {self.log_file}".lstrip()

    def check(self) -> None:
        """Raise BootstrapError if the process has ended."""
        if not self.running:
            told = self.obituary()
            words = f"end of its log:{told['log']}" if "log" in told else self._silence()
            raise BootstrapError(self.name, f"{told['ended']}; {words}", ended=True)
