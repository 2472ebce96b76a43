"""Makes sure that no engine process outlives its engine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def tree_of(pids: Iterable[int]) -> list[psutil.Process]:
    """List the living processes with these ids and all their descendants."""
    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def end_all(processes: Iterable[psutil.Process], patience_s: float) -> None:
    """Wait for processes to end, and kill those that take longer; when it returns none is left."""
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=patience_s)
