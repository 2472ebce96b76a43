"""Files that are replaced while a process runs: keys and certificates."""

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
"""Callback with the name of the files that were read again, and whether their content was good."""
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Watched(Generic[Content]):
    """Newest good content of a set of files. Safe to use from several threads.

    When content can't be read, the last good one stays in force: a typing error must not lock all callers out. Secrets
    that Kubernetes mounts are links that change their target, which counts as a change of the file.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        read: Callable[[], Content],
        on_reload: OnReload = lambda _name, _good: None,
    ) -> None:
        """Read the files for the first time.

        Args:
            name: name of the files in logs and metrics.
            paths: files to watch.
            read: function that reads and checks the content; raises SettingsError.
            on_reload: called for every noticed change, on the thread that calls `refresh`.

        Raises:
            SettingsError: the content is not good now.
        """
        self._name = name
        self._paths = tuple(paths)
        self._read = read
        self.on_reload = on_reload
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._content = read()
        self._version = 0

    @property
    def content(self) -> Content:
        """Newest good content."""
        return self._content

    @property
    def version(self) -> int:
        """Number of changes since the first content."""
        return self._version

    def refresh(self) -> bool:
        """Read the files if they changed; return whether there is new content. Blocks on the disk."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            return self._replace(stamp)

    def _replace(self, stamp: _Stamp) -> bool:
        try:
            content = self._read()
        except SettingsError as error:
            # Not read again before the next change, so that the error is logged once.
            self._stamp = stamp
            _LOG.error("file.bad", extra={"what": self._name, "error": str(error)})
            self.on_reload(self._name, False)
            return False
        if self._look() != stamp:
            # The files are being written, and the content may be a mix of old and new. The next call reads them again.
            return False
        self._stamp, self._content = stamp, content
        self._version += 1
        _LOG.info("file.reloaded", extra={"what": self._name, "version": self._version})
        self.on_reload(self._name, True)
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
        SettingsError: the file can't be read; the message names `setting`.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path} cannot be read: {error.strerror}") from error
