"""Assembly of the queue's Lua scripts.

A script cannot call another one, so shared functions are put in front of each. `turn` has whole scripts as functions.
Three changes to the text save much of a call's time in Redis, which is spent before the script's first line:

* Names in capitals (redis/lua/names.lua) become numbers. As locals they would cost time at every call, in every
  function that captures them.
* Shared functions that a script never reaches are left out.
* The table `Q` has room for the others from the beginning. Otherwise it grows, and is filled anew, with every doubling.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from cluster.redis.script import Script

SCRIPTS = (
    "submit",
    "release",
    "refuse",
    "cancel",
    "collect",
    "heartbeat_router",
    "heartbeat_replica",
    "reap",
    "retire",
    "adopt",
    "requeue",
    "withdraw",
    "take_out",
    "find_key",
    "finish_key",
    "await_key",
    "usage",
    "observe",
    "show_line",
    "quarantine",
    "holdings",
    "account",
    "read_costs",
    "cells",
    "read_orders",
    "copy_orders",
    "turn",
)
STEPS = ("submit", "release", "refuse", "requeue", "withdraw", "cancel", "collect")
"""Scripts of which `turn` makes several calls in one."""
SHARED = ("line", "ahead", "orders", "fill", "preempt", "quota", "budget", "keys", "ledger", "costs", "leases", "torn")
_CONSTANT = re.compile(r"^([A-Z][A-Z_]+) = (\d+)", re.MULTILINE)
_FUNCTION = re.compile(r"^function Q\.(\w+)\([^\n]*?(?: end|(?:\n(?!end$)[^\n]*)*\nend)$", re.MULTILINE)
_USE = re.compile(r"\bQ\.(\w+)")
_WORD = re.compile(r"(?<![\w'.])[A-Z][A-Z_]+(?![\w'])")


@cache
def load_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    constants = load_constants()
    preamble, functions = _split(_read("common"))
    for part in SHARED:
        more = _split(_read(part))[1]
        if twice := functions.keys() & more.keys():
            raise ValueError(f"{part}.lua defines again: {', '.join(sorted(twice))}")
        functions |= more
    functions |= {f"step_{name}": f"function Q.step_{name}()\n{_read(name)}\nend" for name in STEPS}
    return MappingProxyType({name: _assemble(name, preamble, functions, constants) for name in SCRIPTS})


def load_constants() -> Mapping[str, str]:
    """Return the constants of redis/lua/names.lua by name."""
    text = (files("cluster.queue.redis") / "lua" / "names.lua").read_text(encoding="utf-8")
    return dict(_CONSTANT.findall(text))


def _read(name: str) -> str:
    """Return a Lua file without its comments: Redis stores and hashes the text."""
    text = (files("cluster.queue.redis") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    lines = (re.sub(r"\s+-- .*$", "", line) for line in text.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(line for line in lines if line.strip())


def _split(text: str) -> tuple[str, dict[str, str]]:
    """Split a shared file into the text outside its functions, and the functions by name."""
    functions = {match[1]: match[0] for match in _FUNCTION.finditer(text)}
    return _FUNCTION.sub("", text).strip(), functions


def _assemble(name: str, preamble: str, functions: Mapping[str, str], constants: Mapping[str, str]) -> Script:
    body = _read(name)
    used, unread = dict[str, str](), [body]
    while unread:
        for function in _USE.findall(unread.pop()):
            if function in functions and function not in used:
                used[function] = functions[function]
                unread.append(functions[function])
    room = "local Q = {" + "".join(f"{function} = 0, " for function in used)
    text = "\n".join([preamble.replace("local Q = {", room, 1), *used.values(), body])
    source = _WORD.sub(lambda match: constants.get(match[0], match[0]), text).encode()
    # Redis names scripts by SHA-1; no security depends on it.
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())
