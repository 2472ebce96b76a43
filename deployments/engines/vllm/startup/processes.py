"""The end of engine processes: none may live longer than its engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress

import psutil

from deployments.engines.vllm.plugin import REPLICA_PID_VARIABLE

log = logging.getLogger(__name__)
_REAP_S = 10.0
"""Longest wait for the kernel to free the memory of a killed process."""


def tree_of(pids: Iterable[int]) -> list[psutil.Process]:
    """List the living processes with these ids and all their descendants."""
    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def orphans() -> list[psutil.Process]:
    """List engine processes of this user whose replica is gone.

    There are none where the kernel signals the death of a parent. It does so on Linux only, and only after a process
    has asked for it.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            replica = process.environ().get(REPLICA_PID_VARIABLE, "")
            if replica.isdecimal() and process.pid != os.getpid() and not psutil.pid_exists(int(replica)):
                found.append(process)
    return found


def reap_orphans() -> None:
    """Kill orphaned engine processes. They hold memory and cores that a new engine needs."""
    left = orphans()
    if left:
        log.warning("engine.orphans_reaped", extra={"pids": [process.pid for process in left]})
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=_REAP_S)


def end_all(processes: Iterable[psutil.Process], patience_s: float) -> None:
    """Wait for processes to end, and kill those that take longer. When it returns, none is left."""
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=patience_s)
