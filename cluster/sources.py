"""Where the files of a model or an adapter are: in a folder, an archive, a hub's repository or an object store.

The text that a user writes is all there is to know it by. A path must never be made of it before it is known to be one:
a path has one slash where a URL has two.
"""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass
from pathlib import Path

STORES = ("s3", "gs", "az")
"""Schemes of object stores that the engine can read: Amazon S3 and what speaks its API, Google's and Azure's."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ONE_SLASH = re.compile(rf"({'|'.join(STORES)}):/?[^/]", re.IGNORECASE)
_PATHS = ("/", "./", "../", "~")
"""Beginnings of a path. A name without one is a folder only where that folder exists."""
REVISION = r"[\w-][\w.-]*(/[\w-][\w.-]*)*"
"""Pattern of a commit, tag or branch. It becomes a path, so none of its parts begins with a dot, as git has it too."""
_HUB = re.compile(rf"[\w.-]+(/[\w.-]+)?(@{REVISION})?")


class SourceKind(enum.Enum):
    """Kind of place that has the files."""

    FOLDER = enum.auto()
    """A folder of the machine; it may be missing."""
    ARCHIVE = enum.auto()
    """A file of the machine."""
    HUB = enum.auto()
    """A repository of a hub."""
    STORE = enum.auto()
    """A prefix of an object store's bucket."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Place of the files of a model or an adapter."""

    name: str
    """What names it: a path, a hub id without revision, or a URL."""
    kind: SourceKind
    revision: str = ""
    """Commit, tag or branch of a hub's repository; empty for the newest."""

    @property
    def path(self) -> Path:
        """Path of a folder or archive."""
        return Path(self.name).expanduser()

    @property
    def scheme(self) -> str:
        """Scheme of an object store's URL, in small letters."""
        return self.name.partition("://")[0].lower()

    @property
    def engine_name(self) -> str:
        """Name by which an engine finds the files: a full path, a hub id or a URL."""
        return str(self.path.resolve()) if self.kind in (SourceKind.FOLDER, SourceKind.ARCHIVE) else self.name


def check_source(text: str) -> str:
    """Return a source as the user wrote it.

    Raises:
        ValueError: it is a URL that is no object store's, or one that names no bucket.
    """
    if found := _URL.match(text):
        scheme, rest = found.group(1), found.group(2)
        if scheme.lower() not in STORES:
            known = ", ".join(f"{each}://" for each in STORES)
            raise ValueError(f"must be a folder, a hub id, or a URL that begins with {known}, got {text[:200]!r}")
        if not rest.strip("/"):
            raise ValueError(f"must name a bucket after {scheme}://, got {text[:200]!r}")
    elif found := _ONE_SLASH.match(text):
        raise ValueError(f"must have two slashes after {found.group(1)}: as a URL, got {text[:200]!r}")
    return text


def is_hub_id(text: str) -> bool:
    """Return whether a text may name a repository of a hub: it is neither a URL nor certainly a path."""
    return not text.startswith(_PATHS) and _HUB.fullmatch(text) is not None


def source_of(text: str, revision: str = "") -> ModelSource:
    """Tell where files are. Looks at the disk for paths.

    Args:
        text: a path, a hub id, which may end in "@revision", or the URL of an object store.
        revision: revision of a hub's repository, where the text has none.

    Raises:
        ValueError: as `check_source`.
    """
    check_source(text)
    if _URL.match(text):
        return ModelSource(text.rstrip("/"), SourceKind.STORE)
    path = Path(os.path.expanduser(text))
    if path.is_dir():
        return ModelSource(text, SourceKind.FOLDER)
    if path.is_file():
        return ModelSource(text, SourceKind.ARCHIVE)
    if not is_hub_id(text):
        return ModelSource(text, SourceKind.FOLDER)
    name, _, own = text.partition("@")
    return ModelSource(name, SourceKind.HUB, own or revision)
