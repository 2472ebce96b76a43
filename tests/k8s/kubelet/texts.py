"""Translates what a pod's texts say of its network and file system to this machine; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_HERE = re.compile(r"\b(?:0\.0\.0\.0|127\.0\.0\.1)\b|(?<=\")::(?=\")|(?<=--host=)::$|\* -::\*")
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True)
class Translation:
    """One pod's view of the machine."""

    ip: str
    mounts: Mapping[str, Path]
    """Where its mounted paths are."""
    addresses: Mapping[str, str]
    """host:port of Services to ip:port of a pod behind them."""
    alone: bool = False
    """Whether it has a network of its own, where 0.0.0.0 may stay."""

    def of(self, text: str) -> str:
        """Translate a text."""
        text = text if self.alone else _HERE.sub(self.ip, text)
        for name, address in self.addresses.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?!\d)", address, text)
        # In one go: what a path became may contain another one.
        paths = "|".join(re.escape(path) for path in sorted(self.mounts, key=len, reverse=True))
        return re.sub(rf"(?<![\w.-])({paths})(?![\w-])", lambda m: str(self.mounts[m[1]]), text) if paths else text


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does; what is not defined stays."""
    return _VARIABLE.sub(lambda match: environ.get(match[1], match[0]), text)
