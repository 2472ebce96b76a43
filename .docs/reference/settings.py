"""The page of all settings, from the tree in `cluster.settings`."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cluster.settings import Settings
from cluster.settings.environment import ENV_PREFIX
from cluster.settings.near import options_of
from reference.markdown import code, page, prose, slug, table

INTRO = """Settings come from a TOML file, environment variables and flags: see
[Give it settings](../README.md#give-it-settings). `NAME` stands for the name of a pool, an alias, a tenant or an
issuer. Names that end in `_s` are seconds, `_ms` milliseconds, `_us` microseconds, `_mb` MiB. *Required* means that the
section needs the setting. *Unset* means that the setting has no value; its text says what holds then."""
KEYS = {"pools": "NAME", "aliases": "NAME", "tenants": "NAME", "jwt": "NAME"}
"""What stands for a name in sections that have one."""
WORDS = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
}


def render() -> str:
    """Return the page."""
    seen: dict[type[BaseModel], str] = {}
    sections = list(_sections((), Settings, seen))
    return page("Settings", INTRO, _overview(seen), *sections)


def _overview(seen: dict[type[BaseModel], str]) -> str:
    """Return a table of the tree's own sections."""
    rows = []
    for name, field in Settings.model_fields.items():
        inner = _inner((), name, field)
        if inner is None:
            raise TypeError(f"{name}: not a section")
        place, section = inner
        text = prose(field.description or section.__doc__ or "")
        same = "" if seen[section] == ".".join(place) else f" Its settings are those of `{seen[section]}`."
        rows.append([f"[`{'.'.join(place)}`](#{slug(seen[section])})", text + same])
    return table(["section", "meaning"], rows)


def _sections(path: tuple[str, ...], model: type[BaseModel], seen: dict[type[BaseModel], str]) -> Iterator[str]:
    """Yield a section and those below it. A class that stands in several places is described in the first."""
    inner = {name: _inner(path, name, field) for name, field in model.model_fields.items()}
    for place, section in (each for each in inner.values() if each is not None):
        seen.setdefault(section, ".".join(place))
    if path:
        rows = [_row(path, name, field, inner[name], seen) for name, field in model.model_fields.items()]
        head = ["setting", "type", "default", "meaning, and variable"]
        level = "#" * (1 + len([part for part in path if part.islower()]))
        yield f"{level} {'.'.join(path)}\n\n{prose(model.__doc__ or '')}\n\n{table(head, rows)}"
    for place, section in (each for each in inner.values() if each is not None):
        if seen[section] == ".".join(place):
            yield from _sections(place, section, seen)


def _row(
    path: tuple[str, ...],
    name: str,
    field: FieldInfo,
    inner: tuple[tuple[str, ...], type[BaseModel]] | None,
    seen: dict[type[BaseModel], str],
) -> list[str]:
    text = prose(field.description or "")
    if inner is not None:
        place, section = inner
        word = "list of sections" if place[-1].endswith("[]") else "section"
        kind = f"[{word}](#{slug(seen[section])})"
        optional = type(None) in get_args(field.annotation)
        if place[-1].endswith("[]"):
            text += f"<br>{_variable((*path, name))}, as JSON"
        return [code(".".join(place[len(path) :])), kind, "*unset*" if optional else "", text]
    kind = _kind(field.annotation)
    bounds = _bounds(_constraints(field))
    # One of a list has no variable of its own.
    variable = "" if any(part.endswith("[]") for part in path) else _variable((*path, name))
    words = "<br>".join(each for each in (text, variable) if each)
    return [code(name), f"{kind}, {bounds}" if bounds else kind, _default(field), words]


def _variable(path: tuple[str, ...]) -> str:
    return code(ENV_PREFIX + "__".join(path).upper())


def _inner(path: tuple[str, ...], name: str, field: FieldInfo) -> tuple[tuple[str, ...], type[BaseModel]] | None:
    """Return path and class of a field that is a section, or has one per name or several."""
    for each in _options(field.annotation):
        if get_origin(each) is dict:
            value = get_args(each)[1]
            if isinstance(value, type) and issubclass(value, BaseModel):
                key = "POOL" if path and name == "pools" else KEYS[name]
                return (*path, name, key), value
        elif get_origin(each) is tuple:
            value = get_args(each)[0]
            if isinstance(value, type) and issubclass(value, BaseModel):
                return (*path, f"{name}[]"), value
        elif isinstance(each, type) and issubclass(each, BaseModel):
            return (*path, name), each
    return None


def _options(annotation: Any) -> list[Any]:
    """Return what an annotation allows, without None."""
    return [each for each in options_of(annotation) if each is not type(None)]


def _kind(annotation: Any) -> str:
    words = []
    for each in _options(annotation):
        if get_origin(each) is Literal:
            words.append(_one_of(get_args(each)))
        elif isinstance(each, type) and issubclass(each, enum.Enum):
            words.append(_one_of([member.value for member in each]))
        elif get_origin(each) is tuple:
            inner = _kind(get_args(each)[0])
            words.append("list of texts" if inner == "text" else f"list of {inner}")
        elif get_origin(each) is dict:
            words.append("table of names and texts")
        elif get_origin(each) is tuple and get_origin(_options(get_args(each)[0])[0]) is Literal:
            words.append(f"list of {_one_of(get_args(_options(get_args(each)[0])[0]))}")
        elif get_origin(each) is tuple:
            words.append(WORDS[tuple[str, ...]])
        else:
            words.append(WORDS[each])
    return " or ".join(words)


def _one_of(values: Any) -> str:
    return " or ".join(code(f'"{value}"') for value in values)


def _constraints(field: FieldInfo) -> list[Any]:
    """Return the notes of a field and of its annotation."""
    found = list(field.metadata)
    for each in (field.annotation, *get_args(field.annotation)):
        if get_origin(each) is Annotated:
            found += each.__metadata__
    return found


def _bounds(notes: list[Any]) -> str:
    """Return the range that notes allow."""
    least = next((f"{_number(each.ge)}" for each in notes if isinstance(each, Ge)), "")
    above = next((f"above {_number(each.gt)}" for each in notes if isinstance(each, Gt)), "")
    most = next((f"{_number(each.le)}" for each in notes if isinstance(each, Le)), "")
    below = next((f"below {_number(each.lt)}" for each in notes if isinstance(each, Lt)), "")
    filled = "not empty" if any(isinstance(each, MinLen) for each in notes) else ""
    if least and most:
        return f"{least} to {most}"
    upper = f"at most {most}" if most else below
    lower = f"at least {least}" if least else above
    return ", ".join(each for each in (lower, upper, filled) if each)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "*required*"
    if value is None:
        return "*unset*"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, int | float):
        return code(_number(value))
    if isinstance(value, dict):
        return code("{}")
    if isinstance(value, tuple):
        return code(json.dumps(value))
    return code(f'"{value.value if isinstance(value, enum.Enum) else value}"')


def _number(value: float) -> str:
    """Return a number as TOML has it."""
    text = f"{value:_}"
    return text.removesuffix(".0") if isinstance(value, float) else text
