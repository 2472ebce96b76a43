"""The documents make one site without a broken link or anchor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = """# Page

{}
"""


def build(sources: Path, out: Path) -> str:
    """Read the documents as `make docs` does, without writing pages; return the complaints."""
    flags = ["-q", "-E", "-n", "-W", "--keep-going", "-b", "dummy", "-c", str(ROOT / ".docs"), "-d", str(out)]
    command = [sys.executable, "-m", "sphinx", *flags, str(sources), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert bool(done.returncode) == bool(done.stderr), done.stderr
    return done.stderr


def test_no_link_is_broken(tmp_path: Path) -> None:
    assert "" == build(ROOT, tmp_path)


@pytest.mark.parametrize("link", ["[a](missing.md)", "[a](#missing)", "[a](missing.py)", "[a](missing/folder)"])
def test_a_broken_link_is_found(tmp_path: Path, link: str) -> None:
    (tmp_path / "README.md").write_text(PAGE.format(link), encoding="utf-8")
    assert "missing" in build(tmp_path, tmp_path / "out")


def test_the_recorded_demo_is_a_small_picture_that_loops() -> None:
    """`make demo-svg` records it."""
    text = (ROOT / ".docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert "{http://www.w3.org/2000/svg}svg" == ElementTree.fromstring(text).tag  # noqa: S314 - our own file
    assert "infinite" in text
