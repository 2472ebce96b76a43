"""The folder of an engine's sockets. It is removed with the engine, because vLLM leaves its socket files behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

from cluster.short_folders import short_folder

FOLDER_VARIABLE = "VLLM_RPC_BASE_PATH"
"""Variable with the folder in which vLLM makes its sockets. By default it is the folder for temporary files itself."""
_PREFIX = "penstock-engine-"
_REST = len("/penstock-engine-4194304-abcdefgh/01234567-89ab-cdef-0123-456789abcdef")
"""Bytes of a socket's path behind the folder for temporary files: vLLM names sockets by UUIDs."""


def make_folder() -> Path:
    """Make the folder of an engine that this process starts. First remove the folders of processes that are gone."""
    base = short_folder(_REST)
    for left in base.glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove_folder(left)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def remove_folder(folder: Path) -> None:
    """Remove the folder of an ended engine. A folder that can't be removed stays."""
    shutil.rmtree(folder, ignore_errors=True)
