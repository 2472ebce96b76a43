"""Sizes that keep every room readable. The exceptions may only shrink: one that is not exact fails."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("proto/penstock", "cluster", "router", "deployments", "loadtest", "k8s/render")
MODULES, LINES, POSITIONAL = 16, 400, 6

LONG_FILES = {
    "router/generation/choice.py": 549,
}
MANY_PARAMETERS: dict[str, int] = {}
SAME_NAMES: dict[str, set[str]] = {}


def sources(package: str) -> Iterator[tuple[str, ast.Module, int]]:
    """Yield path, syntax and number of lines of every module that a hand wrote."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if "_pb2" not in path.name:
            text = path.read_text(encoding="utf-8")
            yield str(path.relative_to(ROOT)), ast.parse(text), text.count("\n")


def test_folders_hold_at_most_sixteen_modules() -> None:
    held = Counter(
        str(Path(path).parent)
        for package in PACKAGES
        for path, _, _ in sources(package)
        if not path.endswith("__init__.py")
    )
    assert {} == {folder: count for folder, count in held.items() if count > MODULES}


def test_files_have_at_most_four_hundred_lines() -> None:
    assert {path: lines for package in PACKAGES for path, _, lines in sources(package) if lines > LINES} == LONG_FILES


def test_functions_take_at_most_six_positional_parameters() -> None:
    many = {}
    for package in PACKAGES:
        for path, tree, _ in sources(package):
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
                    count = len([name for name in names if name not in ("self", "cls")])
                    if count > POSITIONAL:
                        many[f"{path}:{node.name}"] = count
    assert many == MANY_PARAMETERS


def test_a_package_has_one_public_class_of_a_name() -> None:
    twice: dict[str, set[str]] = {}
    for package in PACKAGES:
        places: dict[str, set[str]] = defaultdict(set)
        for path, tree, _ in sources(package):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(path)
        if names := {name for name, where in places.items() if len(where) > 1}:
            twice[package] = names
    assert twice == SAME_NAMES
