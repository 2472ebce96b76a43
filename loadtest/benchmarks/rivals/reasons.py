"""Reasons of other programs in one short line."""

from __future__ import annotations

import re

MOST = 120
"""Letters of a reason."""
_PATH = re.compile(r"(?<![\w:/.\-])(?:~|\.{1,2})?/(?:[^\s/'\"<>|:,;()]+/)*([^\s/'\"<>|:,;()]+)/?")
_SHOUTED = re.compile(r"^(?:ERROR|Error|error):\s*")


def short(text: str) -> str:
    """Return a message in one short line: files by their names, without the folders of this machine."""
    line = _PATH.sub(r"\1", " ".join(text.split()))
    line = _SHOUTED.sub("", line).rstrip(".")
    return line if len(line) <= MOST else f"{line[: MOST - 1].rsplit(' ', 1)[0].rstrip(' ,;:(')}…"
