"""Object stores, read with the library with which vLLM streams weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from cluster.sources import ModelSource

_CORE = "runai_model_streamer"
_READERS = {"s3": "runai_model_streamer_s3", "gs": "runai_model_streamer_gcs", "az": "runai_model_streamer_azure"}
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}


def missing_reader(source: ModelSource) -> str:
    """Return what is missing to read a source of an object store, and how to get it; empty where nothing is."""
    missing = [name for name in (_CORE, _READERS[source.scheme]) if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    package = f"runai-model-streamer[{_EXTRAS[source.scheme]}]"
    return (
        f"{source.name} is in an object store, and the package that reads it is not installed: "
        f"pip install '{package}', or the extra `objects` of penstock-llm"
    )


def pull(source: ModelSource, folder: Path, patterns: Sequence[str]) -> None:
    """Copy the files of a source that fit a pattern into a folder.

    Raises:
        OSError: the package is missing, the store refuses, or nothing fits.
    """
    if missing := missing_reader(source):
        raise OSError(missing)
    from runai_model_streamer import pull_files

    try:
        pull_files(f"{source.name}/", str(folder), allow_pattern=list(patterns))
    except Exception as error:
        # Each store's library has errors of its own.
        raise OSError(f"{source.name} can't be read: {type(error).__name__}: {error}") from error
    if not any(folder.iterdir()):
        raise OSError(f"{source.name} has none of {', '.join(patterns)}")
