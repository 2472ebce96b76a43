"""A hub's cache on the disk: the folders of huggingface_hub, and a mark for each snapshot that is complete.

Readers may be on other machines, on a volume without locks that hold between them. So the mark is written last, by a
rename, and it says what has to be there.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import plain_reason
from cluster.sources import ModelSource
from cluster.weights.files import COMMIT, Repository

_MARKS = ".penstock"
_NEWEST = "main"
PART = ".part"
"""Ending of a file of which the beginning is there."""


@dataclass(frozen=True, slots=True)
class RepositoryCache:
    """Place of one repository in a cache."""

    folder: Path
    """Folder of the repository."""

    @classmethod
    def of(cls, cache: Path, name: str) -> RepositoryCache:
        """Return the place of a model's repository; `cache` is what HF_HUB_CACHE names."""
        return cls(cache / f"models--{name.replace('/', '--')}")

    @property
    def blobs(self) -> Path:
        """Folder of the files' contents, by digest."""
        return self.folder / "blobs"

    def parts(self, digest: str) -> list[Path]:
        """List the beginnings of a content, the longest first. Each process that fetches has one of its own."""
        found = []
        for path in self.blobs.glob(f"{digest}.*{PART}"):
            try:
                found.append((path.stat().st_size, path))
            except OSError:
                # It was renamed meanwhile.
                continue
        return [path for _, path in sorted(found, reverse=True)]

    def claim_part(self, digest: str) -> Path:
        """Return a name for the beginning of a content that no other process has: where there is a beginning, it has
        that name now. Who wrote it before finds it no more, and begins another one.
        """
        own = self.blobs / f"{digest}.{uuid.uuid4().hex}{PART}"
        for path in self.parts(digest):
            try:
                path.rename(own)
            except FileNotFoundError:
                # Another process was faster.
                continue
            break
        return own

    def file(self, commit: str, name: str) -> Path:
        """Return the path of a file of a snapshot."""
        return self.folder / "snapshots" / commit / name

    def mark(self, commit: str) -> Path:
        """Return the path of a snapshot's mark."""
        return self.folder / _MARKS / f"{commit}.json"

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a revision stood for when it was last fetched; None for an unknown one."""
        if COMMIT.fullmatch(revision):
            return revision
        try:
            return (self.folder / "refs" / (revision or _NEWEST)).read_text().strip()
        except OSError:
            return None

    def set_complete(self, repository: Repository) -> None:
        """Mark a snapshot, then let its revision stand for it."""
        tree = {"repository": repository.name, "files": {file.name: file.size for file in repository.files}}
        _write(self.mark(repository.commit), json.dumps(tree, indent=1))
        if not COMMIT.fullmatch(repository.revision):
            _write(self.folder / "refs" / (repository.revision or _NEWEST), repository.commit)

    def bytes_there(self) -> int:
        """Return the bytes of all contents, and of their beginnings."""
        try:
            found = list(os.scandir(self.blobs))
        except OSError:
            return 0
        total = 0
        for each in found:
            try:
                total += each.stat(follow_symlinks=False).st_size
            except OSError:
                # It was renamed meanwhile.
                continue
        return total


def what_lacks(cache: Path, source: ModelSource) -> str:
    """Return why a hub's model is not complete in a cache; empty where it is."""
    place = RepositoryCache.of(cache, source.name)
    commit = place.commit_of(source.revision)
    shown = source.name + f"@{source.revision}" * bool(source.revision)
    if commit is None:
        return f"{shown} is not in {cache}"
    try:
        files = json.loads(place.mark(commit).read_bytes())["files"]
    except FileNotFoundError:
        return f"{shown} is not complete in {cache}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the mark of {shown} in {cache} can't be read: {plain_reason(error)}"
    for name, size in files.items():
        path = place.file(commit, name)
        try:
            found = path.stat().st_size
        except OSError as error:
            return f"{shown} lacks {name}: {error.strerror}"
        if found != size:
            return f"{shown}: {name} has {found} bytes instead of {size}"
    return ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by the process's number: those of containers are much the same.
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
