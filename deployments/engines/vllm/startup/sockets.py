"""The folder of an engine's sockets. It is removed with the engine, because vLLM leaves its socket files behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

FOLDER_VARIABLE = "VLLM_RPC_BASE_PATH"
"""Variable with the folder in which vLLM makes its sockets. By default it is the folder for temporary files itself."""
_PREFIX = "penstock-engine-"


def make_folder() -> Path:
    """Make the folder of an engine that this process starts. First remove the folders of processes that are gone."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove_folder(left)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def remove_folder(folder: Path) -> None:
    """Remove the folder of an ended engine. A folder that can't be removed stays."""
    shutil.rmtree(folder, ignore_errors=True)
