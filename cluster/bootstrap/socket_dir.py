"""A folder for a socket, in the system's folder for temporary files: paths of sockets are limited to about 100 bytes,
which a state folder may exceed. Those whose owner was killed are removed at the next start.
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
"""Is locked as long as the folder's owner lives, however that ends."""


class SocketDir:
    """Is such a folder; only this user can enter it."""

    def __init__(self) -> None:
        """Make it, and remove those that are left."""
        _remove_left()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Under its name it is locked from the first moment: nobody can take it for one that is left.
        self._lock = os.open(self.path / f".{_OWNER}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(self.path / f".{_OWNER}", self.path / _OWNER)

    def remove(self) -> None:
        """Remove it with all that is in it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Not ours to look at, without a lock, or in use.
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
