"""Folders for sockets. A socket's path has at most 107 bytes, and folders for temporary files may have long paths."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

LONGEST_PATH = 107
"""Most bytes of a socket's path on Linux."""
_OTHERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - only folders within them that one user can enter are used
"""Folders to try where the one for temporary files has too long a path."""


def short_folder(rest: int) -> Path:
    """Return an existing folder in which a socket's path fits: the one for temporary files if it is short enough.

    Args:
        rest: bytes of the path behind the folder's, with the slash.

    Raises:
        OSError: there is none; the text names the variable TMPDIR.
    """
    usual = tempfile.gettempdir()
    for folder in (usual, *_OTHERS):
        if len(os.fsencode(folder)) + rest <= LONGEST_PATH and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder)
    tried = ", ".join(_OTHERS)
    room = LONGEST_PATH - rest
    raise OSError(f"TMPDIR: {usual} is too long for sockets, and none of {tried} can be used; set it to {room} bytes")
