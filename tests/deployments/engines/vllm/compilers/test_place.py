"""A refused schema is told with the place of what the compiler does not follow."""

from __future__ import annotations

import pytest

from deployments.engines.vllm.compilers.check import told
from deployments.engines.vllm.compilers.place import with_place
from penstock.models import ConstraintKind, StructuredOutput

NOT = 'Unimplemented keys: ["not"]'


@pytest.mark.parametrize(
    ("schema", "words", "place"),
    [
        ({"not": {}}, NOT, "#"),
        ({"properties": {"a": {"type": "string"}, "b": {"items": {"not": {}}}}}, NOT, "#/properties/b/items"),
        ({"anyOf": [{"type": "null"}, {"not": {}}]}, NOT, "#/anyOf/1"),
        ({"properties": {"a/b": {"format": "password"}}}, "Unknown format: password", "#/properties/a~1b"),
        ({"$defs": {"x": {"type": "objct"}}}, "Invalid type: objct", "#/$defs/x"),
        ({"items": {"oneOf": []}}, "oneOf constraints are not supported", "#/items"),
        ({"if": {}, "then": {}, "x": {"if": {}}}, 'Unimplemented keys: ["if", "then"]', "#"),
    ],
)
def test_the_place_is_that_of_the_keyword_or_value(schema: object, words: str, place: str) -> None:
    assert with_place(schema, words) == f"{words} (at {place})"


def test_the_name_of_a_property_and_data_are_no_keyword() -> None:
    schema = {"properties": {"not": {"enum": [{"not": 1}]}, "z": {"not": {}}}}
    assert with_place(schema, NOT) == f"{NOT} (at #/properties/z)"
    assert with_place({"properties": {"not": {}}}, NOT) == NOT


def test_words_without_a_known_form_stay_as_they_are() -> None:
    assert with_place({}, "something else") == "something else"
    regex = StructuredOutput(ConstraintKind.REGEX, "(")
    assert told(ValueError("Grammar error: regex parse error:\n    (\n"), regex) == "regex parse error: ("
