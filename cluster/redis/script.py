"""Lua scripts and single commands, as a pipeline sends them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Script:
    """A script as Redis gets it."""

    name: str
    source: bytes
    sha: str
    """SHA-1 of the source in hex: the script's name in Redis."""


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """A script call as a part of a larger one."""

    script: Script
    """Script that makes several calls: its last argument is a list of their steps. It returns a list of their replies,
    and a flat list of (number of a step that failed, counted from 1; its error)."""
    head: bytes
    """Packed EVALSHA of it without its last argument. Steps of the same head can be joined."""
    packed: bytes
    """ScriptStep in MessagePack."""


def join(head: bytes, steps: Sequence[bytes]) -> bytes:
    """Return the command that makes the calls of several steps."""
    count = len(steps)
    last = b"".join((b"%c" % (0x90 + count) if count < 16 else b"\xdc" + count.to_bytes(2), *steps))
    return b"%b$%d\r\n%b\r\n" % (head, len(last), last)


PLAIN = Script("command", b"", "")
"""Placeholder of a single command, which Redis can't have lost."""


@cache
def load_scripts(package: str) -> Mapping[str, Script]:
    """Return scripts by name, from the Lua files of a package. Its `common.lua` goes in front of each."""
    texts = {path.name.removesuffix(".lua"): _code(path) for path in (files(package) / "lua").iterdir()}
    shared = texts.pop("common")
    return MappingProxyType({name: _script(name, f"{shared}\n{text}".encode()) for name, text in texts.items()})


def _script(name: str, source: bytes) -> Script:
    # Redis names scripts by SHA-1; no security depends on it.
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def _code(path: Traversable) -> str:
    """Return a Lua file without its comments: Redis stores and hashes the text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("--"))


def pack(*words: str | bytes | float) -> bytes:
    """Return a command in Redis' protocol."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
