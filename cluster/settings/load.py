"""Loading of the settings tree: defaults < TOML file < PENSTOCK_SECTION__KEY variables < flags."""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cluster.errors import SettingsError, plain_reason
from cluster.settings.environment import FILE_VARIABLE, Environment
from cluster.settings.near import near_setting
from cluster.settings.tree import Settings

SECRETS = ("url", "redis")
"""Fields that may hold a password, which errors must not repeat. `redis` is a section, but an address may be given for
it by mistake."""
NO_SECTION = ("model_type", "model_attributes_type", "dict_type", "json_invalid")
"""Pydantic's errors for a value where a section should be, which may be anything. `json_invalid` is of a whole file."""
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}
"""Pydantic's errors of bounds: what is said of the bound, and where it is."""
_TYPES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_unicode"), "text"),
    **dict.fromkeys(("path_type",), "a path"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a table"),
}
"""Pydantic's errors of types: what is expected, in the words of a settings file."""
_NAME = "[key]"
"""Last part of the place of a name that is wrong, such as that of a pool."""
_CREDENTIALS = re.compile(r"[^/@\s'\"]*:[^/@\s'\"]+@")
_PLACE = re.compile(r"[\w.\[\]-]+: ")
_SHOULD = re.compile(r"^\w+ should ")
"""How pydantic's messages of all other errors begin."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Settings as they were given, before they are checked."""

    file: Path | None
    """TOML file, if there is one."""
    from_file: Mapping[str, Any]
    environment: Environment
    flags: Mapping[str, Any]

    @property
    def tree(self) -> dict[str, Any]:
        """All sources together; later ones win."""
        merged = copy.deepcopy(dict(self.from_file))
        _merge(merged, self.environment.tree)
        _merge(merged, self.flags)
        return merged


def read_sources(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Sources:
    """Read what is given. The arguments are those of `load_settings`.

    Raises:
        SettingsError: the file can't be read, or is not TOML.
    """
    environ = os.environ if environ is None else environ
    path = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    tree: dict[str, Any] = {} if path is None else _read_toml(path)
    given = _given(flags or {})
    known = copy.deepcopy(tree)
    _merge(known, given)
    return Sources(path, tree, Environment(environ, known, Settings.model_fields), given)


def check_sources(sources: Sources) -> Settings | list[str]:
    """Build the tree; where that is not possible, return all problems, a sentence each."""
    problems = list(sources.environment.problems)
    try:
        settings = Settings.model_validate(sources.tree)
    except ValidationError as error:
        return problems + list_errors(error, SECRETS, sources.environment.variables, Settings)
    return problems or settings


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
        SettingsError: names every unknown key, every value out of range, and every variable that sets nothing.
    """
    found = check_sources(read_sources(file, flags, environ))
    if isinstance(found, list):
        raise SettingsError("; ".join(found))
    return found


def parse_settings(text: str) -> Settings:
    """Read a tree that another process wrote as JSON.

    Raises:
        SettingsError: the text is no such tree.
    """
    try:
        return Settings.model_validate_json(text)
    except ValidationError as error:
        raise SettingsError(describe_errors(error, SECRETS, Settings)) from error


def read_settings(json_file: Path | None, toml_file: Path | None) -> Settings:
    """Read a tree that another process wrote as JSON; without `json_file` build one as `load_settings` does.

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
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
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


def describe_errors(error: ValidationError, hide: Collection[str] = (), root: type[BaseModel] | None = None) -> str:
    """Describe all wrong settings in one line. The arguments are those of `list_errors`."""
    return "; ".join(list_errors(error, hide, root=root))


def list_errors(
    error: ValidationError,
    hide: Collection[str] = (),
    variables: Mapping[tuple[str, ...], str] | None = None,
    root: type[BaseModel] | None = None,
) -> list[str]:
    """Describe all wrong settings, a sentence each.

    Args:
        error: pydantic's error.
        hide: fields whose values are not shown. A value given for a whole section is not shown either.
        variables: environment variable that gave the value, by path.
        root: class of the whole tree, to suggest names from.
    """
    lines = []
    found = error.errors()
    for item in found:
        if item["type"] == "too_short" and any(_within(other, item) for other in found):
            # It has items, and those are wrong.
            continue
        where = ".".join(str(part) for part in item["loc"] if part != _NAME) or "settings"
        name = (variables or {}).get(tuple(str(part) for part in item["loc"]))
        if name is not None:
            where = f"{where} ({name})"
        if item["type"] == "extra_forbidden":
            near = "" if root is None else near_setting(root, item["loc"])
            lines.append(f"{where}: unknown setting{near}")
        else:
            whole = item["type"] in NO_SECTION or isinstance(item["input"], Mapping | BaseModel)
            hidden = whole or bool(item["loc"] and item["loc"][-1] in hide)
            told = _problem(item)
            if name is not None and _TYPES.get(item["type"]) in ("a list", "a table"):
                told += ", as JSON"
            shown = "" if hidden or ", got " in told else f", got {_shown(item['input'])}"
            # What a section says of its parts begins with their place.
            place = "" if not item["loc"] and _PLACE.match(told) else f"{where}: "
            lines.append(f"{place}{told}{shown}")
    return lines


def _within(item: ErrorDetails, other: ErrorDetails) -> bool:
    place = other["loc"]
    return item["loc"][: len(place)] == place != item["loc"]


def _shown(value: Any) -> str:
    """Return a value as TOML has it, without the credentials that an address may have."""
    return repr(value).lower() if isinstance(value, bool) else _CREDENTIALS.sub("***@", repr(value))


def _problem(item: ErrorDetails) -> str:
    """Return pydantic's message in the words of all other errors."""
    given = item.get("ctx", {})
    match item["type"]:
        case "value_error":
            return str(given["error"])
        case "missing":
            return "is required"
        case kind if kind in _BOUNDS:
            word, name = _BOUNDS[kind]
            bound = given[name]
            return f"must be {word} {int(bound) if float(bound).is_integer() else bound}"
        case kind if kind in _TYPES and item["loc"][-1:] != (_NAME,):
            return f"must be {_TYPES[kind]}"
    told = _SHOULD.sub("must ", item["msg"]).replace(" after validation", "")
    return f"the name {told}" if item["loc"][-1:] == (_NAME,) else told
