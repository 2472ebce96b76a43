"""Files of a repository, and which of them an engine reads. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_TENSORS = ("*.safetensors",)
_OLDER = (
    ("pytorch_model*.bin", ("model*.safetensors", "pytorch_model*.safetensors")),
    ("consolidated*.pth", ("model*.safetensors", "consolidated*.safetensors")),
    ("adapter_model*.bin", ("adapter_model*.safetensors",)),
)
"""Weights in an older form, and what has them too where it is in the same folder. Other files with such endings may be
all there is of a part, such as the dense layer of a model that embeds."""
_NEVER = (
    *("*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.tflite", "*.ot", "*.mlmodel", "*.mlpackage/*"),
    *("optimizer.pt", "optimizer.bin", "rng_state*.pth"),
    ".gitattributes",
)
"""Weights of other libraries, what only training reads, and git's own."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
COMMIT = re.compile(r"[0-9a-f]{40}")
"""Form of a commit's name: a revision that never moves."""


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """One file of a repository."""

    name: str
    """Path in the repository."""
    size: int
    """Bytes."""
    digest: str
    """SHA-256 of a large file, or git's SHA-1 of a small one, in hex; empty where the hub gives none."""

    @property
    def is_git_object(self) -> bool:
        """Whether the digest is git's, over a head and the content."""
        return _SHA1.fullmatch(self.digest) is not None

    @property
    def can_be_verified(self) -> bool:
        """Whether the digest has a known form."""
        return self.is_git_object or _SHA256.fullmatch(self.digest) is not None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a hub at one commit."""

    name: str
    revision: str
    """Revision that was asked for; empty for the newest commit."""
    commit: str
    files: tuple[RepositoryFile, ...]
    """Files that are wanted of it."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def shown(self) -> str:
        """Name and commit for people."""
        return f"{self.name}@{self.commit[:12]}"


def wanted(files: Iterable[RepositoryFile], include: Sequence[str], exclude: Sequence[str]) -> list[RepositoryFile]:
    """Return the files that an engine reads, in the order of their names: no weights for other libraries, and of the
    same weights only the safetensors.

    Args:
        files: those of the repository.
        include: patterns; not empty, they replace the choice.
        exclude: patterns of files to leave out in any case.
    """
    every = sorted(files, key=lambda file: file.name)
    if include:
        chosen = [file for file in every if _fits(file.name, include)]
    else:
        # Of the root alone: a folder `original` beside it has other tensors.
        has_tensors = any("/" not in file.name and _fits(file.name, _TENSORS) for file in every)
        names = [file.name for file in every]
        chosen = [file for file in every if not (_fits(file.name, _NEVER) or _is_older(file.name, names))]
        if has_tensors:
            chosen = [file for file in chosen if not file.name.startswith("original/")]
    return [file for file in chosen if not _fits(file.name, exclude)]


def _is_older(name: str, every: Sequence[str]) -> bool:
    folder, _, last = name.rpartition("/")
    beside = [other for path in every for at, _, other in (path.rpartition("/"),) if at == folder]
    return any(
        fnmatch.fnmatchcase(last, older) and any(_fits(other, newer) for other in beside) for older, newer in _OLDER
    )


def _fits(name: str, patterns: Iterable[str]) -> bool:
    last = name.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(name, each) or fnmatch.fnmatchcase(last, each) for each in patterns)
