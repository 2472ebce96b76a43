"""Secrets among values that have names, hidden where people see the values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
_SECRET = re.compile(
    r"(?:password|passwd|passphrase|secret|token|credentials?|(?:api|access|private)[_-]?key|(?:^|[_-])key)$", re.I
)
"""Names of secrets, such as one for an engine in `vllm.extra`, also as variables and JSON write them."""
_TEXT_TOKEN = re.compile(
    r"(?:^|[_-])(?:bos|eos|pad|unk|sep|cls|mask|special|start|end|stop|image|video|audio)_token$", re.I
)
"""Names of tokens that are a piece of text."""
_SECRET_OPTION = re.compile(r"([?&](?:key|[\w-]*(?:password|secret|token|sig|signature|api_?key))=)[^&]*", re.I)
"""Option of an address that is a secret, such as `sentinel_password`."""
_END_OF_AUTHORITY = re.compile("[/?#]")
_SHOWN_HIDDEN = re.compile(r"[:=]\*\*\*(?:[@&]|$)")
"""Place of a secret that an address is shown without."""


def masked(name: str, value: Any) -> Any:
    """Return a value with what is secret in it hidden: by its name, or the secrets of an address."""
    if isinstance(value, Mapping):
        return masked_tree(value)
    if isinstance(value, list):
        return [masked(name, each) for each in value]
    if not isinstance(value, str):
        return value
    if value and _is_secret(name):
        return HIDDEN
    if "://" not in value:
        return value
    password = _password(value)
    shown = value if not password else value.replace(f":{password}@", f":{HIDDEN}@", 1)
    return _SECRET_OPTION.sub(rf"\1{HIDDEN}", shown)


def _password(address: str) -> str:
    """Return the password in an address; empty for none. `urlsplit` refuses some that people write, as those with [."""
    authority = _END_OF_AUTHORITY.split(address.partition("://")[2], 1)[0]
    return authority.rpartition("@")[0].partition(":")[2]


def masked_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of named values with what is secret in it hidden."""
    return {name: masked(name, value) for name, value in tree.items()}


def filled(tree: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree that was shown masked with the values that it hides, as far as its source has them."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        known = source.get(name)
        if isinstance(value, Mapping):
            found[name] = filled(value, known if isinstance(known, Mapping) else {})
        else:
            found[name] = known if known is not None and value == masked(name, known) else value
    return found


def still_masked(tree: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of secrets that stand for themselves: nothing has filled them."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in still_masked(value))
        elif any(_stands_in(name, each) for each in (value if isinstance(value, list) else [value])):
            yield (name,)


def _stands_in(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(True for _ in still_masked(value))
    if value == HIDDEN:
        return _is_secret(name)
    return isinstance(value, str) and "://" in value and _SHOWN_HIDDEN.search(value) is not None


def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None and _TEXT_TOKEN.search(name) is None
