"""Files that others replace while a process runs: keys and certificates."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from cluster.errors import SettingsError

_LOG = logging.getLogger(__name__)

Content = TypeVar("Content")
OnReload = Callable[[str, bool], None]
"""Takes the name of what was read again and whether its content was good."""
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Watched(Generic[Content]):
    """Keeps the newest good content of a set of files. Safe to use from several threads.

    Content that can't be read leaves the last good one in force: a typing error must not lock everybody out. Secrets
    that Kubernetes mounts are links that move, which counts as a change.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        read: Callable[[], Content],
        on_reload: OnReload = lambda _name, _good: None,
    ) -> None:
        """Read for the first time.

        Args:
            name: for logs and metrics.
            paths: what to look at.
            read: reads and checks the content; raises SettingsError.
            on_reload: called for every change that was seen, on the thread that calls `refresh`.

        Raises:
            SettingsError: the content is not good now.
        """
        self._name = name
        self._paths = tuple(paths)
        self._read = read
        self._on_reload = on_reload
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._content = read()
        self._version = 0

    @property
    def content(self) -> Content:
        """Return the newest good content."""
        return self._content

    @property
    def version(self) -> int:
        """Count the changes since the first content."""
        return self._version

    def refresh(self) -> bool:
        """Look at the files and read them when they changed; says whether there is new content. Blocks on the disk."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            return self._replace(stamp)

    def _replace(self, stamp: _Stamp) -> bool:
        try:
            content = self._read()
        except SettingsError as error:
            # Not looked at again before it changes again, so this is said once.
            self._stamp = stamp
            _LOG.error("file.bad", extra={"what": self._name, "error": str(error)})
            self._on_reload(self._name, False)
            return False
        if self._look() != stamp:
            # Somebody writes right now; what was read may be half of each. The next look settles it.
            return False
        self._stamp, self._content = stamp, content
        self._version += 1
        _LOG.info("file.reloaded", extra={"what": self._name, "version": self._version})
        self._on_reload(self._name, True)
        return True

    def _look(self) -> _Stamp:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_bytes(path: Path, setting: str) -> bytes:
    """Read a whole file.

    Raises:
        SettingsError: names the setting that names the file.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path} cannot be read: {error.strerror}") from error
