"""Loading of the settings tree: defaults < TOML file < PENSTOCK_SECTION__KEY variables < flags."""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from cluster.errors import SettingsError, plain_reason
from cluster.settings.environment import FILE_VARIABLE, Environment
from cluster.settings.tree import Settings

SECRETS = ("url", "redis")
"""Fields that may hold a password, which errors must not repeat. `redis` is a section, but an address may be given for
it by mistake."""
NO_SECTION = ("model_type", "model_attributes_type", "dict_type", "json_invalid")
"""Pydantic's errors for a value where a section should be, which may be anything. `json_invalid` is of a whole file."""


def load_settings(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Build the settings tree.

    Args:
        file: a TOML file; default: the file that PENSTOCK_SETTINGS names, if set.
        flags: nested values that win over all other sources; None values are left out.
        environ: default os.environ. PENSTOCK_ROUTER__PORT=1 sets router.port; values are JSON where they parse as JSON.

    Raises:
        SettingsError: names every unknown key and every value out of range, or a variable that sets nothing.
    """
    environ = os.environ if environ is None else environ
    path = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    tree: dict[str, Any] = {} if path is None else _read_toml(path)
    given = _given(flags or {})
    known = copy.deepcopy(tree)
    _merge(known, given)
    environment = Environment(environ, known, Settings.model_fields)
    _merge(tree, environment.tree)
    _merge(tree, given)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(describe_errors(error, SECRETS, environment.variables)) from error


def dump_settings(settings: Settings) -> str:
    """Return the tree as JSON, for another process."""
    return settings.model_dump_json()


def parse_settings(text: str) -> Settings:
    """Read a tree that `dump_settings` wrote.

    Raises:
        SettingsError: the text is no such tree.
    """
    try:
        return Settings.model_validate_json(text)
    except ValidationError as error:
        raise SettingsError(describe_errors(error, SECRETS)) from error


def read_settings(json_file: Path | None, toml_file: Path | None) -> Settings:
    """Read a tree that `dump_settings` wrote; without `json_file` build one as `load_settings` does.

    Raises:
        SettingsError: a file can't be read, or has an unknown key or a value out of range.
    """
    if json_file is None:
        return load_settings(toml_file)
    try:
        text = json_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {json_file} cannot be read: {plain_reason(error)}") from error
    return parse_settings(text)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"settings file {path} is not UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"settings file {path} is not valid TOML: {error}") from error


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: _given(value) if isinstance(value, Mapping) else value for name, value in flags.items()}
    return {name: value for name, value in given.items() if value is not None}


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if not isinstance(value, Mapping):
            into[key] = value
            continue
        if into.get(key) is None:
            into[key] = {}
        # A value where a section should be stays, so that validation reports it.
        if isinstance(into[key], dict):
            _merge(into[key], value)


def describe_errors(
    error: ValidationError, hide: Collection[str] = (), variables: Mapping[tuple[str, ...], str] | None = None
) -> str:
    """Describe all wrong settings in one line.

    Args:
        error: pydantic's error.
        hide: fields whose values are not shown. A value given for a whole section is not shown either.
        variables: environment variable that gave the value, by path.
    """
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "settings"
        if (name := (variables or {}).get(tuple(str(part) for part in item["loc"]))) is not None:
            where = f"{where} ({name})"
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown setting")
        else:
            whole = item["type"] in NO_SECTION or isinstance(item["input"], Mapping | BaseModel)
            hidden = whole or bool(item["loc"] and item["loc"][-1] in hide)
            shown = "" if hidden else f", got {item['input']!r}"
            lines.append(f"{where}: {item['msg']}{shown}")
    return "; ".join(lines)
