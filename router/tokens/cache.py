"""Tokenizer files on disk by digest, shared by all router processes of a machine."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from cluster.digests import TOKENIZER_FILES, tokenizer_digest

_log = logging.getLogger(__name__)


def read_files(cache_dir: Path, digest: str) -> dict[str, bytes] | None:
    """Return the files of a digest; None when they are missing or no longer match it."""
    folder = cache_dir / digest
    try:
        files = {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
    except OSError as error:
        _log.warning("tokens.cache_unreadable", extra={"digest": digest, "error": str(error)})
        return None
    if not files:
        return None
    if tokenizer_digest(files) != digest:
        _log.warning("tokens.cache_corrupt", extra={"digest": digest})
        return None
    return files


def write_files(cache_dir: Path, digest: str, files: Mapping[str, bytes]) -> None:
    """Replace the files of a digest. Readers see all of the new files or none.

    Raises:
        OSError: the files cannot be written.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    fresh = cache_dir / f".{digest}.{secrets.token_hex(8)}"
    fresh.mkdir()
    try:
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        _replace(fresh, cache_dir / digest)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _replace(fresh: Path, target: Path) -> None:
    # A folder cannot be renamed over one that has files. Between the two renames another process may put its own, equal
    # files there; then ours are not needed.
    if target.exists():
        old = fresh.with_name(f"{fresh.name}.old")
        target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        fresh.rename(target)
    except OSError:
        if not target.exists():
            raise
