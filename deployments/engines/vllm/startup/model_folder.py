"""Folder with the files of a model that an engine has."""

from __future__ import annotations

from pathlib import Path


def folder_of(model: str, revision: str | None) -> Path:
    """Return the model's folder, which may be that of a hub's cache.

    Raises:
        OSError: the cache lacks it.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, local_files_only=True))
