"""A Hugging Face hub, or what speaks its API: lists a repository's files and fetches them. All functions block.

The library keeps the cache's layout. It begins a file anew in each process, so a download goes into a file of ours
first, which a later process continues. All of them are plain HTTP: what the library's client of a content-addressed
store (Xet) leaves behind when it is killed, nobody continues and nobody removes.
"""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import Any

from cluster.sources import ModelSource
from cluster.weights.cache import RepositoryCache
from cluster.weights.files import Repository, RepositoryFile

_TIMEOUT_S = 30.0
_CHUNK = 8 << 20
_PART_OF_PATH = re.compile(r"[\w-][\w.-]*", re.ASCII)


class StoppedError(Exception):
    """The download was told to stop."""


class TakenError(Exception):
    """Another process took what this one had begun, or finished it. A later try finds what is there."""


class WrongContentError(Exception):
    """A file that is whole has another content than its hub says."""


class _StoppableFile:
    """A file that stops its writer when the download is to end, or the file became another process's: the library looks
    at no flag of ours.
    """

    def __init__(self, file: Any, path: Path, stop: threading.Event) -> None:
        self._file, self._path, self._stop = file, path, stop
        self.seek, self.tell, self.truncate = file.seek, file.tell, file.truncate

    def write(self, content: bytes) -> int:
        if self._stop.is_set():
            raise StoppedError
        # Where locks don't hold between machines, another process may have taken it, and go on with it.
        if not self._path.exists():
            raise TakenError(f"another process took {self._path.name}")
        return int(self._file.write(content))


def read_repository(source: ModelSource) -> Repository:
    """List the files of a hub's repository at the commit that its revision stands for now."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(source.name, revision=source.revision or None, files_metadata=True, timeout=_TIMEOUT_S)
    files = tuple(
        RepositoryFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else each.blob_id or "")
        for each in info.siblings or ()
    )
    return Repository(source.name, source.revision, _part_of_path("commit", str(info.sha)), files)


def fetch_file(cache: Path, repository: Repository, file: RepositoryFile, stop: threading.Event) -> None:
    """Fetch one file into the cache, verify it, and put it into the snapshot. What was begun before goes on.

    Raises:
        StoppedError: `stop` was set.
        WrongContentError: the content is another one. It was removed.
        OSError: the disk, or the hub, does not let it be fetched.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    if stop.is_set():
        raise StoppedError
    place = RepositoryCache.of(cache, repository.name)
    if has_size(place.file(repository.commit, file.name), file.size):
        return
    url = hf_hub_url(repository.name, file.name, revision=repository.commit)
    found = get_hf_file_metadata(url, timeout=_TIMEOUT_S)
    blob = place.blobs / _part_of_path("ETag", str(found.etag))
    if not has_size(blob, file.size):
        blob.parent.mkdir(parents=True, exist_ok=True)
        part = place.claim_part(blob.name)
        try:
            _transfer(url, part, file, stop)
            _verify(part, file)
            part.replace(blob)
            for other in place.parts(blob.name):
                other.unlink(missing_ok=True)
        except FileNotFoundError as error:
            raise TakenError(f"another process took {part.name}") from error
    # It finds the content there.
    path = Path(hf_hub_download(repository.name, file.name, revision=repository.commit, cache_dir=cache))
    if not has_size(path, file.size):
        size = path.stat().st_size
        blob.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise WrongContentError(f"{file.name} has {size} bytes, and its hub says {file.size}")


def _part_of_path(what: str, text: str) -> str:
    if not _PART_OF_PATH.fullmatch(text):
        raise ValueError(f"a hub's {what} must have letters, digits, dots, - and _ only, got {text[:200]!r}")
    return text


def _transfer(url: str, part: Path, file: RepositoryFile, stop: threading.Event) -> None:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    # It begins to write where the file ends.
    with part.open("ab") as target:
        begun = target.tell()
        if begun > file.size:
            target.truncate(0)
            begun = 0
        sink: Any = _StoppableFile(target, part, stop)
        try:
            http_get(url, sink, resume_size=begun, headers=build_hf_headers(), expected_size=file.size)
        except OSError as error:
            if error.errno is not None or isinstance(error, HfHubHTTPError):
                raise
            # All of it came, and it is longer or shorter than the hub says.
            target.truncate(0)
            raise WrongContentError(" ".join(str(error).split())) from error


def _verify(part: Path, file: RepositoryFile) -> None:
    if not file.can_be_verified:
        return
    total = hashlib.sha1(usedforsecurity=False) if file.is_git_object else hashlib.sha256()
    if file.is_git_object:
        total.update(f"blob {file.size}\0".encode())
    with part.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            total.update(chunk)
    if total.hexdigest() != file.digest:
        part.unlink()
        raise WrongContentError(f"{file.name} has the digest {total.hexdigest()}, and its hub says {file.digest}")


def has_size(path: Path, size: int) -> bool:
    """Return whether a file is there with so many bytes."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False
