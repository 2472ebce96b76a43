"""Where a report comes from: version, command line, machine, time."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cluster

_CPU_INFO = Path("/proc/cpuinfo")


def origin(program: str = "penstock", words: Sequence[str] | None = None) -> dict[str, str]:
    """Return version, command line, machine and time, for a report's JSON.

    Args:
        program: name of the program.
        words: its arguments; None for those of this process.
    """
    now = datetime.datetime.now(datetime.UTC)
    return {
        "version": cluster.__version__,
        "command": shlex.join([program, *(sys.argv[1:] if words is None else words)]),
        "machine": _machine(),
        "at": now.isoformat(timespec="seconds"),
    }


def shown_origin(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a report about its origin. Reports of older versions have none."""
    at = str(data.get("at", ""))
    lines = {
        "Date": at.replace("T", " ").replace("+00:00", " UTC"),
        "Machine": data.get("machine"),
        "Version": f"Penstock {data['version']}" if data.get("version") else "",
        "Command": data.get("command"),
    }
    return [(name, str(value)) for name, value in lines.items() if value]


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [platform.node(), f"{platform.system()} {platform.machine()}", _processor(), f"{cores} cores"]
    return ", ".join(part for part in parts if part)


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
