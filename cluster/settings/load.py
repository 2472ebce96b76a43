"""Builds the settings tree: defaults < TOML file < PENSTOCK_SECTION__KEY variables < flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from cluster.errors import SettingsError
from cluster.settings.tree import Settings

ENV_PREFIX = "PENSTOCK_"
FILE_VARIABLE = "PENSTOCK_SETTINGS"
"""Names the TOML file when no flag does."""

_JSON: TypeAdapter[Any] = TypeAdapter(Any)


SECRETS = ("url",)
"""Fields that may hold a password, which errors must not repeat."""


def load_settings(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Build the tree.

    Args:
        file: a TOML file; default: the one that PENSTOCK_SETTINGS names, if any.
        flags: nested values that win over everything else; None values are left out.
        environ: default os.environ. PENSTOCK_ROUTER__PORT=1 sets router.port; values are JSON where they parse as JSON.

    Raises:
        SettingsError: names every unknown key and every value out of range.
    """
    environ = os.environ if environ is None else environ
    path = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    tree: dict[str, Any] = {}
    if path is not None:
        _merge(tree, _read_toml(path))
    _merge(tree, _from_environment(environ))
    _merge(tree, flags or {})
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(describe_errors(error, SECRETS)) from error


def dump_settings(settings: Settings) -> str:
    """Write the tree as JSON, for handing it to another process."""
    return settings.model_dump_json()


def parse_settings(text: str) -> Settings:
    """Read what `dump_settings` wrote."""
    try:
        return Settings.model_validate_json(text)
    except ValidationError as error:
        raise SettingsError(describe_errors(error, SECRETS)) from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"settings file {path} is not valid TOML: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or "__" not in name:
            continue
        path = name.removeprefix(ENV_PREFIX).split("__")
        # Pool names and adapter names keep their case only in files; variables are matched in lower case.
        keys = [part.lower() for part in path]
        node = tree
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = _parse_value(text)
    return tree


def _parse_value(text: str) -> Any:
    try:
        return _JSON.validate_json(text)
    except ValidationError:
        return text


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            node = into.setdefault(key, {})
            if not isinstance(node, dict):
                node = into[key] = {}
            _merge(node, value)
        else:
            into[key] = value


def describe_errors(error: ValidationError, hide: Collection[str] = ()) -> str:
    """Say what is wrong, in one line; the values of fields named in `hide` are not shown."""
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "settings"
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown setting")
        else:
            hidden = isinstance(item["input"], Mapping | BaseModel) or (item["loc"] and item["loc"][-1] in hide)
            shown = "" if hidden else f", got {item['input']!r}"
            lines.append(f"{where}: {item['msg']}{shown}")
    return "; ".join(lines)
