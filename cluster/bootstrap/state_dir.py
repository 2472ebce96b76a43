"""Lock of a state folder. It ends with its process, even if that is killed."""

from __future__ import annotations

import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import BootstrapError

PID_FILE = "up.pid"
"""File that is locked while a cluster runs and then contains its pid. It is never removed, because that could remove
the lock of another process."""
_TRIES = 5


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock the folder while the block runs; one cluster per folder.

    Raises:
        BootstrapError: another cluster runs there, or the folder can't be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Children do not inherit the file: they would keep the lock after this process ends.
        file = os.open(folder / PID_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BootstrapError("cluster", f"the state folder {folder} cannot be used: {error.strerror}") from error
    try:
        _lock(file, folder)
        os.ftruncate(file, 0)
        try:
            os.write(file, str(os.getpid()).encode())
        except OSError as error:
            raise BootstrapError("cluster", f"the state folder {folder} cannot be used: {error.strerror}") from error
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                pid = _read(folder)
                named = f"process {pid} already runs one" if pid else "another process already runs one"
                # Without --state-dir `down` would use the default folder.
                stop = f"penstock down --state-dir {shlex.quote(str(folder))}"
                raise BootstrapError("cluster", f"{named} in {folder}; `{stop}` stops it") from None
            # `is_held` in another process holds the lock for a moment.
            time.sleep(0.05)
        except OSError as error:
            raise BootstrapError("cluster", f"{folder / PID_FILE} cannot be locked: {error.strerror}") from error


def is_held(folder: Path) -> bool:
    """Return whether a cluster runs in the folder."""
    try:
        file = os.open(folder / PID_FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise BootstrapError("cluster", f"{folder / PID_FILE} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def holder(folder: Path) -> int:
    """Return the pid of the cluster that runs in the folder.

    Raises:
        BootstrapError: it is no process that is visible on this machine or in this container.
    """
    pid = _read(folder)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        words = b""
    # In another container the same number is another process.
    if b"penstock" in words or b"cluster.cli" in words:
        return pid
    raise BootstrapError("cluster", f"one runs in {folder}, but not as a process of this machine or container")


def _read(folder: Path) -> int:
    try:
        return int((folder / PID_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
