"""A replica's copy of an adapter's files. All functions block."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from cluster.settings.adapters import AdapterSettings
from deployments.engines.adapter_files import CONFIG, WEIGHTS, adapter_folder

_CHUNK = 1 << 20


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
        _copy(adapter_folder(settings.source, Path(work)), copy)
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


def _copy(source: Path, target: Path) -> None:
    files = _files(source)
    names = [file.name for file in files]
    if CONFIG not in names:
        raise ValueError(f"there is no {CONFIG} in {source}")
    if len(names) == 1:
        raise ValueError(f"there are no weights ({', '.join(WEIGHTS)}) in {source}")
    for file in files:
        shutil.copyfile(file, target / file.name)


def _files(folder: Path) -> list[Path]:
    wanted = (file for file in folder.iterdir() if file.name == CONFIG or file.suffix in WEIGHTS)
    return sorted((file for file in wanted if file.is_file()), key=lambda file: file.name)
