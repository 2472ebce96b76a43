"""The release before this code, for updates from one to the other."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SUBJECT = "^Release [0-9]"


def last_release() -> str | None:
    """Return the newest commit that made a release; None where the history does not show one."""
    found = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--extended-regexp", f"--grep={_SUBJECT}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None if found.returncode == 0 else None


def unpack(commit: str, folder: Path) -> Path:
    """Put a commit's files into a folder; returns it."""
    archive = subprocess.run(
        ["git", "archive", commit, "cluster", "deployments", "proto", "router"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder
