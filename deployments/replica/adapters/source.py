"""Files of an adapter: a copy of a folder, an archive or a hub's repository. All functions block."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil

from cluster.settings.adapters import AdapterSettings

CONFIG = "adapter_config.json"
_WEIGHTS = (".safetensors", ".bin", ".pt")
_PREFIX = "replica-"
_CHUNK = 1 << 20


def make_home(base: Path) -> Path:
    """Make the folder of this process' copies. First remove those of processes that are gone."""
    base.mkdir(parents=True, exist_ok=True)
    for left in base.glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove(left)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def remove(folder: Path) -> None:
    """Remove a folder. One that can't be removed stays."""
    shutil.rmtree(folder, ignore_errors=True)


def fetch(settings: AdapterSettings, home: Path) -> tuple[str, Path]:
    """Copy an adapter's files into a new folder. Return their digest and the folder.

    A copy, because an engine may read the files again at any time, and the source may change or go away.

    Raises:
        OSError: it can't be read.
        ValueError: there is no adapter, or its digest is not the expected one.
    """
    copy = Path(tempfile.mkdtemp(prefix="copy-", dir=home))
    try:
        return _fetch(settings, home, copy), copy
    except BaseException:
        remove(copy)
        raise


def _fetch(settings: AdapterSettings, home: Path, copy: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="source-", dir=home) as work:
        _copy(_folder(settings.source, Path(work)), copy)
    digest = folder_digest(copy)
    if settings.digest not in ("", digest):
        raise ValueError(f"the digest of {settings.source} must be {settings.digest}, got {digest}")
    return digest


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 over names, sizes and contents of an adapter's files in the order of their names, in hex."""
    total = hashlib.sha256()
    for file in _files(folder):
        total.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                total.update(chunk)
    return total.hexdigest()


def _folder(source: str, work: Path) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        # "data": nothing outside of the folder, no links out of it, no devices.
        if path.suffix == ".zip":
            shutil.unpack_archive(path, work)
        else:
            shutil.unpack_archive(path, work, filter="data")
        return _inner(work)
    if source.startswith(("/", "~", ".")):
        raise FileNotFoundError(f"there is no {source} on this replica")
    from huggingface_hub import snapshot_download

    repository, _, revision = source.partition("@")
    patterns = [CONFIG, *(f"*{suffix}" for suffix in _WEIGHTS)]
    return Path(snapshot_download(repository, revision=revision or None, allow_patterns=patterns))


def _inner(work: Path) -> Path:
    """Return the folder of an archive that has the adapter: the outermost one with a configuration."""
    found = sorted(work.rglob(CONFIG), key=lambda file: len(file.parts))
    return found[0].parent if found else work


def _copy(source: Path, target: Path) -> None:
    files = _files(source)
    names = [file.name for file in files]
    if CONFIG not in names:
        raise ValueError(f"there is no {CONFIG} in {source}")
    if len(names) == 1:
        raise ValueError(f"there are no weights ({', '.join(_WEIGHTS)}) in {source}")
    for file in files:
        shutil.copyfile(file, target / file.name)


def _files(folder: Path) -> list[Path]:
    wanted = (file for file in folder.iterdir() if file.name == CONFIG or file.suffix in _WEIGHTS)
    return sorted((file for file in wanted if file.is_file()), key=lambda file: file.name)
