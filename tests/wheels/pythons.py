"""The Pythons of this machine. None is downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
"""What the distributions say they run on."""


def find(version: str) -> Path | None:
    """Return an interpreter of a version, such as "3.12": on PATH, or one of pyenv's."""
    return next((each for each in _candidates(version) if _is(each, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    if (found := shutil.which(f"python{version}")) is not None:
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    # GitHub's runners.
    if tools := os.environ.get("RUNNER_TOOL_CACHE"):
        yield from sorted(Path(tools).glob(f"Python/{version}.*/x64/bin/python{version}"), reverse=True)


def _is(python: Path, version: str) -> bool:
    """Return whether it answers with its version: pyenv has programs on PATH that only say what is missing."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version
