"""The build of both distributions, and what must be inside."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"penstock_client": ROOT / "proto", "penstock_llm": ROOT}
"""Folder of each distribution, by the name that its files begin with."""
_MADE = ("__pycache__", "*.egg-info", ".mypy_cache", ".ruff_cache")


def build(out: Path, name: str, *kinds: str) -> None:
    """Build a distribution as a release does: its sdist from the tree, and its wheel from the sdist.

    Args:
        out: folder for the files.
        name: as in `FOLDERS`.
        kinds: "wheel" or "sdist"; both if none is given.
    """
    uv = Path(sys.executable).with_name("uv")
    flags = [f"--{kind}" for kind in kinds]
    # The build's tools are pinned with all others, so the build needs no network.
    command = [uv, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, *flags]
    subprocess.run([*command, FOLDERS[name]], check=True)


def wheel_of(out: Path, name: str) -> Path:
    """Return the one wheel of a distribution."""
    (found,) = out.glob(f"{name}-*.whl")
    return found


def sdist_of(out: Path, name: str) -> Path:
    """Return the one sdist of a distribution."""
    (found,) = out.glob(f"{name}-*.tar.gz")
    return found


def files_in_wheel(wheel: Path) -> set[str]:
    """List the files of a wheel but for its own description."""
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if ".dist-info/" not in name}


def files_in_sdist(sdist: Path) -> set[str]:
    """List the files of an sdist, relative to its folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def files_of_packages(name: str) -> set[str]:
    """List the files that the packages of a distribution have in the tree, but for those that are left out."""
    folder = FOLDERS[name]
    wheel: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]
    left_out = wheel.get("exclude", [])
    found = set()
    for package in wheel["packages"]:
        for file in (folder / package).rglob("*"):
            path = file.relative_to(folder)
            made = any(fnmatch.fnmatch(part, made) for part in path.parts for made in _MADE)
            if file.is_file() and not made and not any(_matches(path, pattern) for pattern in left_out):
                found.add(path.as_posix())
    return found


def _matches(path: Path, pattern: str) -> bool:
    """Return whether a pattern of .gitignore's kind means a file: a folder's path, or the end of a name."""
    return path.as_posix().startswith(f"{pattern}/") or fnmatch.fnmatch(path.name, pattern)
