"""Rules of the page's own files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "router" / "console" / "static"
MODULES = sorted(STATIC.rglob("*.js"))
UNSAFE = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "DOMParser",
    "srcdoc",
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_makes_no_code_of_text_and_loads_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [] == [word for word in UNSAFE if word in text]
    addresses = re.findall(r"https?://[^\s\"'`]+", text)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}
    assert text.startswith("// ")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_what_a_module_imports_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for names, source in re.findall(r"import \{([^}]+)\} from \"([^\"]+)\"", text):
        found = (path.parent / source).read_text(encoding="utf-8")
        for each in re.split(r"\s*,\s*", names.strip()):
            name = each.partition(" as ")[0]
            assert re.search(rf"export (async )?(function\*? |const |class ){name}\b", found), (source, name)


def test_modules_are_small_and_few_in_a_folder() -> None:
    for path in MODULES:
        assert path.read_text(encoding="utf-8").count("\n") <= 400, path
    for folder in {path.parent for path in MODULES}:
        assert len(list(folder.glob("*.js"))) <= 16


def test_the_page_loads_all_modules_at_once() -> None:
    """Otherwise each would be asked for when another one that imports it has come."""
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'<link rel="modulepreload" href="/static/([^"]+)">', text)
    assert loaded == [name for path in MODULES if (name := str(path.relative_to(STATIC))) != "main.js"]


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>", text) == ['<script type="module" src="/static/main.js">']
    assert "<style" not in text
    assert not re.search(r"\s(style|on\w+)=", text)


def test_the_wheel_leaves_out_no_kind_of_file_of_the_page() -> None:
    """Everything in a package is in the wheel but what is excluded."""
    target = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert "router" in target["wheel"]["packages"]
    assert ["loadtest/benchmarks", "*.md"] == target["wheel"]["exclude"]
    assert {".html", ".css", ".js", ".svg"} == {path.suffix for path in STATIC.rglob("*") if path.is_file()}
