"""CPU time of serving processes, without engine core and workers."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

ENGINE_TITLES = ("VLLM::EngineCore", "VLLM::Worker")


def descendants(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the processes and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def title(process: psutil.Process) -> str:
    """Return the process' command line, which vLLM and Ray set to a title."""
    try:
        return " ".join(process.cmdline()) or str(process.name())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def is_engine(process: psutil.Process) -> bool:
    """Return whether it is an engine core or worker."""
    return any(mark in title(process) for mark in ENGINE_TITLES)


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the sum of user and system time so far."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
