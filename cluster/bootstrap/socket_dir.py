"""Folder for a socket, in the system's folder for temporary files. Paths of sockets are limited to about 100 bytes,
which a path in a state folder may exceed. Folders whose owner was killed are removed at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "penstock-redis-"
_OWNER = "owner"
"""Name of the file that is locked while the folder's owner lives."""


class SocketDir:
    """Folder that only this user can enter."""

    def __init__(self) -> None:
        """Create the folder, and remove those of dead owners."""
        _remove_left()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # The file gets its name only once it is locked, so that no process takes the folder for one of a dead owner.
        self._lock = os.open(self.path / f".{_OWNER}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(self.path / f".{_OWNER}", self.path / _OWNER)

    def remove(self) -> None:
        """Remove the folder with its content. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Skip folders that are unreadable, have no owner file, or are in use.
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
