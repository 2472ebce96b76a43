"""Files of LoRA adapters, from wherever they are: a folder, an archive, a hub's repository, an object store.

All functions block.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

from cluster.sources import ModelSource, SourceKind, source_of
from deployments.engines.object_store import pull

CONFIG = "adapter_config.json"
WEIGHTS = (".safetensors", ".bin", ".pt")
_PREFIX = "replica-"
_WANTED = (CONFIG, *(f"*{suffix}" for suffix in WEIGHTS))


def make_home(base: Path) -> Path:
    """Make the folder of this process' copies. First remove those of processes that are gone."""
    base.mkdir(parents=True, exist_ok=True)
    for left in base.glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def adapter_folder(text: str, work: Path) -> Path:
    """Return a folder with an adapter's files. It is the source itself where that is a folder.

    Args:
        text: the source, as in `AdapterSettings.source`.
        work: an empty folder, for what has to be unpacked or fetched.

    Raises:
        OSError: it can't be read, or this machine can't read such places.
        ValueError: it is no source.
    """
    source = source_of(text)
    if source.kind is SourceKind.HUB:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(source.name, revision=source.revision or None, allow_patterns=list(_WANTED)))
    if source.kind is SourceKind.STORE:
        pull(source, work, _WANTED)
        return _inner(work)
    if source.kind is SourceKind.ARCHIVE:
        _unpack(source, work)
        return _inner(work)
    if not source.path.is_dir():
        raise FileNotFoundError(f"there is no {text} on this replica")
    return source.path


def _unpack(source: ModelSource, work: Path) -> None:
    if source.path.suffix == ".zip":
        shutil.unpack_archive(source.path, work)
    else:
        # "data": nothing outside of the folder, no links out of it, no devices.
        shutil.unpack_archive(source.path, work, filter="data")


def _inner(work: Path) -> Path:
    """Return the folder that has the adapter: the outermost one with a configuration."""
    found = sorted(work.rglob(CONFIG), key=lambda file: len(file.parts))
    return found[0].parent if found else work
