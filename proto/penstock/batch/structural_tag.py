"""Structural tags as vLLM's server takes them: text with parts that follow a schema."""

from __future__ import annotations

import json
from typing import Any

from penstock.models import StructuredOutput
from penstock.values.objects import BodyError, Fields, shown
from penstock.values.requests import structural_tag

_PLAIN = {"at_least_one": False, "stop_after_first": False, "excludes": []}
"""Options of triggered tags, with the values that change nothing."""


def read_structural_tag(body: Fields) -> StructuredOutput:
    """Read a structural tag, with `structures` and `triggers`, or with a `format` of the type `triggered_tags`.

    Raises:
        BodyError: it is not well formed, or asks for what has no counterpart.
    """
    wanted = body.object("format")
    found = _parts(body) if wanted is None else _triggered(wanted)
    if wanted is not None:
        body.also_ignored(wanted.leftovers())
    try:
        return structural_tag(*found)
    except ValueError as error:
        raise body.wrong("structures", str(error)) from None


def read_structural_tag_text(body: Fields, name: str) -> StructuredOutput | None:
    """Read a structural tag that is written as text.

    Raises:
        BodyError: as `read_structural_tag`.
    """
    text = body.take(name)
    if text is None:
        return None
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise body.wrong(name, f"must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise body.wrong(name, f"must be an object, or the text of one, got {shown(text)}")
    fields = body.child(name, value)
    fields.take("type")
    found = read_structural_tag(fields)
    body.also_ignored(fields.leftovers())
    return found


def _parts(body: Fields) -> tuple[list[dict[str, Any]], list[str]]:
    parts = []
    for index, each in enumerate(_listed(body, "structures")):
        fields = _object(body, f"structures[{index}]", each)
        begin, schema, end = _text(fields, "begin"), _schema(fields, "schema"), _text(fields, "end")
        parts.append({"begin": begin, "schema": schema, "end": end})
        body.also_ignored(fields.leftovers())
    return parts, _triggers(body)


def _triggered(wanted: Fields) -> tuple[list[dict[str, Any]], list[str]]:
    if (kind := wanted.text("type")) != "triggered_tags":
        raise wanted.wrong("type", f"must be triggered_tags, got {shown(kind)}")
    for name, neutral in _PLAIN.items():
        if (value := wanted.take(name)) not in (None, neutral):
            raise wanted.wrong(name, f"must be {json.dumps(neutral)} or absent, got {shown(value)}")
    parts = []
    for index, each in enumerate(_listed(wanted, "tags")):
        fields = _object(wanted, f"tags[{index}]", each)
        if (kind := fields.text("type")) not in ("", "tag"):
            raise fields.wrong("type", f"must be tag, got {shown(kind)}")
        content = fields.object("content")
        if content is None or (kind := content.text("type")) != "json_schema":
            raise fields.wrong("content.type", f"must be json_schema, got {shown(None if content is None else kind)}")
        if (style := content.text("style")) not in ("", "json"):
            raise content.wrong("style", f"must be json, got {shown(style)}")
        begin, schema, end = _text(fields, "begin"), _schema(content, "json_schema"), _text(fields, "end")
        parts.append({"begin": begin, "schema": schema, "end": end})
        fields.also_ignored(content.leftovers())
        wanted.also_ignored(fields.leftovers())
    return parts, _triggers(wanted)


def _triggers(fields: Fields) -> list[str]:
    triggers = _listed(fields, "triggers")
    if not all(isinstance(each, str) for each in triggers):
        raise fields.wrong("triggers", f"must be a list of texts, got {shown(triggers)}")
    return triggers


def _listed(fields: Fields, name: str) -> list[Any]:
    value = fields.take(name)
    if not isinstance(value, list) or not value:
        raise fields.wrong(name, f"must be a list of at least one entry, got {shown(value)}")
    return value


def _object(fields: Fields, name: str, value: object) -> Fields:
    if not isinstance(value, dict):
        raise fields.wrong(name, f"must be an object, got {shown(value)}")
    return fields.child(name, value)


def _text(fields: Fields, name: str) -> str:
    value = fields.take(name)
    if not isinstance(value, str):
        raise _wrong(fields, name, "text", value)
    return value


def _schema(fields: Fields, name: str) -> dict[str, Any]:
    value = fields.take(name)
    if not isinstance(value, dict):
        raise _wrong(fields, name, "a JSON Schema", value)
    return value


def _wrong(fields: Fields, name: str, expected: str, value: object) -> BodyError:
    return fields.wrong(name, f"must be {expected}, got {shown(value)}")
