"""Openings that docstrings and API comments must not have: a class is a noun phrase, a function an imperative."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.meta.test_sizes import PACKAGES, ROOT, sources

FORBIDDEN = re.compile(
    r"(Is|Are|Has|Holds|See|Says|Does|Gives|Tells|Knows|Takes|Returns|Belongs|Converts|Decides|Describes)\b(?!:)"
)
"""Third person, and pointers in place of a sentence. "Returns:" heads a section."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, those of fields included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield each.lineno, value.value.strip()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_begins_with_a_third_person_or_a_pointer(package: str) -> None:
    wrong = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, tree, _ in sources(package)
        for line, text in docstrings(tree)
        if FORBIDDEN.match(text)
    ]
    assert [] == wrong


def test_no_docstring_of_a_test_does() -> None:
    opening = re.compile(r"(Is|Are|See)\b")
    wrong = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, tree, _ in sources("tests")
        for line, text in docstrings(tree)
        if opening.match(text)
    ]
    assert [] == wrong


def test_no_comment_of_the_api_does() -> None:
    wrong = []
    for path in sorted((ROOT / "proto" / "penstock" / "v1").glob("*.proto")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            first = not lines[number - 1].strip().startswith("//")
            text = line.strip().removeprefix("//").strip()
            if line.strip().startswith("//") and first and FORBIDDEN.match(text):
                wrong.append(f"{path.name}:{number + 1}: {text}")
    assert [] == wrong


@pytest.mark.parametrize("opening", ["Is a choice.", "See `Queue.cancel`.", "Holds a lease.", "Returns it."])
def test_the_rule_finds_what_it_forbids(opening: str) -> None:
    assert FORBIDDEN.match(opening)
    assert not FORBIDDEN.match("Returns:\n    A number.")
