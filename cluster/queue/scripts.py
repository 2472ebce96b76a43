"""Puts the Lua scripts together: a script cannot call another, so the shared files are prepended when it is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

_GRANTING = ("common", "line", "fill")
_JUDGING = (*_GRANTING, "leases")
_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "submit": _GRANTING,
    "release": _GRANTING,
    "refuse": _GRANTING,
    "cancel": _GRANTING,
    "collect": ("common",),
    "heartbeat_router": _JUDGING,
    "heartbeat_replica": _JUDGING,
    "reap": _JUDGING,
    "retire": _JUDGING,
})


@dataclass(frozen=True, slots=True)
class Script:
    """Is a script as Redis gets it."""

    name: str
    source: bytes
    sha: str


@cache
def load_scripts() -> Mapping[str, Script]:
    """Read all scripts, by name."""
    return MappingProxyType({name: _assemble(name, parts) for name, parts in _PARTS.items()})


def _assemble(name: str, parts: tuple[str, ...]) -> Script:
    folder = files("cluster.queue") / "lua"
    # Comments are stripped: Redis keeps the text in memory and hashes it at each load.
    lines = [
        line.rstrip()
        for part in (*parts, name)
        for line in (folder / f"{part}.lua").read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.lstrip().startswith("--")
    ]
    source = "\n".join(lines).encode()
    # Redis names scripts by SHA-1; nothing is secured by it.
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())
