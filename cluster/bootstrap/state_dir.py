"""Whose state folder it is: a lock that ends with its process, however that ends."""

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
"""Is locked while a cluster runs, and holds its pid then. It stays: who took it away might take away another's lock."""
_TRIES = 5


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the folder; one cluster per folder.

    Raises:
        BootstrapError: another cluster runs there, or the folder can't be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # No child inherits it, which would hold the lock after us.
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
                # Without the folder `down` looks at the default one.
                stop = f"penstock down --state-dir {shlex.quote(str(folder))}"
                raise BootstrapError("cluster", f"{named} in {folder}; `{stop}` stops it") from None
            # `is_held` of somebody else holds it for a moment.
            time.sleep(0.05)
        except OSError as error:
            raise BootstrapError("cluster", f"{folder / PID_FILE} cannot be locked: {error.strerror}") from error


def is_held(folder: Path) -> bool:
    """Whether a cluster runs there."""
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
    """Return the pid of the cluster that runs there.

    Raises:
        BootstrapError: it is no process that can be seen from here.
    """
    pid = _read(folder)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        words = b""
    # In another container the same number is somebody else.
    if b"penstock" in words or b"cluster.cli" in words:
        return pid
    raise BootstrapError("cluster", f"one runs in {folder}, but not as a process of this machine or container")


def _read(folder: Path) -> int:
    try:
        return int((folder / PID_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
