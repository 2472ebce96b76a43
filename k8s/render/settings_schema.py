"""Schemas of the values that are settings, made from the settings themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

SAID_ELSEWHERE = ("title", "description", "default", "format")
"""What a schema of values leaves out: the settings reference has it, or Helm does not know it."""

WRITTEN_NUMBER: dict[str, Any] = {"type": ["number", "string"], "pattern": "^-?[0-9]*\\.?[0-9]+([eE][-+]?[0-9]+)?$"}
"""Number with a fraction. `helm --set` gives it as text, which settings read too."""


def schema_of(section: type[BaseModel], *, without: Iterable[str] = ()) -> dict[str, Any]:
    """Return the schema of a section, in one piece.

    Args:
        section: the class.
        without: settings that the chart gives itself, as paths with dots. They are refused.
    """
    whole = section.model_json_schema()
    schema = _plain(whole, whole.get("$defs", {}))
    for path in without:
        node = schema
        *sections, name = path.split(".")
        for part in sections:
            node = _section(node["properties"][part])
        node["properties"][name] = False
        node["required"] = [each for each in node.get("required", ()) if each != name]
    return schema


def _section(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a setting may be beside null."""
    found: dict[str, Any] = schema["anyOf"][0] if "anyOf" in schema else schema
    return found


def _plain(node: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without references, which in draft 7 stand alone."""
    if "$ref" in node:
        return _plain(sections[node["$ref"].removeprefix("#/$defs/")], sections)
    schema = {key: value for key, value in node.items() if key not in (*SAID_ELSEWHERE, "$defs")}
    for key in ("properties", "patternProperties"):
        if key in schema:
            needed = schema.get("required", ())
            inner = {name: _plain(each, sections) for name, each in schema[key].items()}
            schema[key] = {name: each if name in needed else _or_null(each) for name, each in inner.items()}
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(key), dict):
            schema[key] = _plain(schema[key], sections)
    if "enum" in schema:
        # YAML reads `off` as false, and so do settings.
        return {"enum": [*schema["enum"], *([False] if "off" in schema["enum"] else [])]}
    if schema.get("type") == "number":
        return schema | WRITTEN_NUMBER
    return _one(schema, sections) if "anyOf" in schema else schema


def _one(schema: dict[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting that may be null; without alternatives, which hide what is wrong, if possible."""
    options = [_plain(each, sections) for each in schema["anyOf"]]
    some = [each for each in options if each != {"type": "null"}]
    if len(some) > 1 or "enum" in some[0]:
        return schema | {"anyOf": options}
    return _or_null(some[0])


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting that may also be null: the chart leaves it out then, and it has its default."""
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        null = {"type": "null"}
        return schema if null in schema["anyOf"] else schema | {"anyOf": [*schema["anyOf"], null]}
    if "type" not in schema:
        return schema
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return schema if "null" in kinds else schema | {"type": [*kinds, "null"]}
