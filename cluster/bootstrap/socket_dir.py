"""Folders for sockets and temporary files of a cluster's parts, with short paths: those of sockets are limited, and a
path in a state folder may exceed that. Folders whose owner was killed are removed at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from cluster.errors import BootstrapError
from cluster.short_folders import short_folder

REDIS = "penstock-redis-"
"""Prefix of the folder of the embedded Redis."""
RAY = "penstock-ray-"
"""Prefix of the folder of the local Ray: its session, and the temporary files of all its processes."""
_RANDOM = 8
"""Characters that `mkdtemp` adds to a prefix."""
_OWNER = "owner"
"""Name of the file that is locked while the folder's owner lives."""


class SocketDir:
    """Folder that only this user can enter."""

    def __init__(self, prefix: str, longest: str) -> None:
        """Create the folder, and remove those of dead owners.

        Args:
            prefix: REDIS or RAY.
            longest: longest path of a socket in the folder.

        Raises:
            BootstrapError: no folder has a path that is short enough, or none can be written.
        """
        component = prefix.split("-")[1]
        try:
            base = short_folder(len(f"/{prefix}/{longest}") + _RANDOM)
            _remove_left(base, prefix)
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        except OSError as error:
            raise BootstrapError(component, f"no folder for its sockets: {error}") from error
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


def _remove_left(base: Path, prefix: str) -> None:
    for folder in base.glob(f"{prefix}*"):
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
