"""Names of keys, from the bytes that a terminal sends. Pure."""

from __future__ import annotations

import re

_NAMED = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[C": "right", b"\x1bOC": "right", b"\x1b[D": "left", b"\x1bOD": "left",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
    b"\x1b[Z": "back tab", b"\t": "tab", b"\r": "enter", b"\n": "enter", b"\x1b": "escape", b"\x7f": "escape",
    b"\x03": "q", b"\x04": "q", b" ": "space",
}  # fmt: skip
_KEY = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b|[^\x1b]", re.DOTALL)


def names_of(data: bytes) -> list[str]:
    """Return the names of the keys in what was read. A key without a name is its character; an unknown sequence of a
    special key is left out.
    """
    found = []
    for match in _KEY.finditer(data):
        key = match[0]
        if name := _NAMED.get(key):
            found.append(name)
        elif len(key) == 1 and 0x20 <= key[0] < 0x7F:
            found.append(key.decode())
    return found
