"""Assembly of the autoscaler's scripts: the shared part goes in front of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from cluster.redis.script import Script

SCRIPTS = ("lead", "resign", "commit", "hold", "set_point", "note_failure", "store_forecast")


@cache
def load_control_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    shared = _read("common")
    return MappingProxyType({name: _script(name, f"{shared}\n{_read(name)}".encode()) for name in SCRIPTS})


def _script(name: str, source: bytes) -> Script:
    # Redis names scripts by SHA-1; no security depends on it.
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    """Return a Lua file without its comments: Redis stores and hashes the text."""
    text = (files("cluster.autoscaler.redis") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
