"""Keeps the files of an engine's sockets in a folder that goes with the engine: vLLM leaves them where it made them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

FOLDER_VARIABLE = "VLLM_RPC_BASE_PATH"
"""Where vLLM makes them; its default is the folder for temporary files itself."""
_PREFIX = "penstock-engine-"


def make_folder() -> Path:
    """Make the folder of an engine that this process starts; those of processes that are gone go first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove_folder(left)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def remove_folder(folder: Path) -> None:
    """Remove an ended engine's folder; one that can't be removed stays."""
    shutil.rmtree(folder, ignore_errors=True)
