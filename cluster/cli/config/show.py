"""Settings as TOML, each with its origin in a comment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from cluster.cli.config.origin import ShownSetting

_COLUMN = 48
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(shown: Iterable[ShownSetting]) -> str:
    """Return the text. A setting without a value is a comment, because TOML has no word for that."""
    lines: list[str] = []
    section: tuple[str, ...] = ()
    for each in shown:
        if each.path[:-1] != section:
            section = each.path[:-1]
            lines += ["", f"[{'.'.join(map(_key, section))}]"]
        name = _key(each.path[-1])
        text = f"# {name} is not set" if each.value is None else f"{name} = {_value(each.value)}"
        lines.append(f"{text:<{_COLUMN}}  # {each.origin}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    # TOML writes numbers, texts and lists as JSON does, and an empty table, too.
    return json.dumps(value, ensure_ascii=False)
