"""The base images' stand-ins: Debian by debootstrap, with a Python of this machine where the official image has it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.wheels import pythons

LIBRARIES = (
    *("ca-certificates", "netbase", "tzdata", "libbz2-1.0", "libexpat1", "libffi8", "libgdbm6", "liblzma5"),
    *("libncursesw6", "libreadline8", "libsqlite3-0", "libssl3", "libuuid1", "zlib1g"),
)
"""What Python's own image has beside Python."""
SUITE = "bookworm"
_NOT_COPIED = ("test", "__pycache__", "*.a", "idlelib", "turtledemo")


class MissingError(Exception):
    """A program that this machine lacks."""


def debian(folder: Path) -> Path:
    """Make a file system of Debian, once: later calls return the same."""
    root = folder / f"debian-{SUITE}"
    if (root / "etc/debian_version").exists():
        return root
    if shutil.which("debootstrap") is None:
        raise MissingError("debootstrap is not installed: apt-get install debootstrap")
    shutil.rmtree(root, ignore_errors=True)
    begun = root.with_name(root.name + ".begun")
    shutil.rmtree(begun, ignore_errors=True)
    options = ["--variant=minbase", f"--include={','.join(LIBRARIES)}"]
    subprocess.run(["debootstrap", *options, SUITE, begun], check=True, stdout=subprocess.DEVNULL)
    begun.rename(root)
    return root


def with_python(folder: Path, version: str) -> Path:
    """Make a file system like `python:VERSION-slim-bookworm`, once."""
    root = folder / f"python-{version}"
    if (root / "usr/local/bin/pip").exists():
        return root
    found = pythons.find(version)
    if found is None:
        raise MissingError(f"no Python {version} on this machine")
    code = "import sys; print(sys.base_prefix)"
    prefix = Path(subprocess.run([found, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    copied(debian(folder), root)
    local = root / "usr/local"
    ignored = shutil.ignore_patterns(*_NOT_COPIED)
    for part in (f"lib/python{version}", f"include/python{version}"):
        shutil.copytree(prefix / part, local / part, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    for library in prefix.glob(f"lib/libpython{version[0]}*.so*"):
        shutil.copy2(library, local / "lib" / library.name, follow_symlinks=False)
    shutil.copy2(prefix / f"bin/python{version}", local / f"bin/python{version}")
    for name in ("python", "python3"):
        (local / "bin" / name).symlink_to(f"python{version}")
    shutil.rmtree(local / f"lib/python{version}/site-packages")
    subprocess.run(["chroot", root, "ldconfig"], check=True)
    # As the official image has it: pip, and nothing else.
    subprocess.run(["chroot", root, "python", "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    (local / "bin/pip").write_text('#!/bin/sh\nexec python -m pip "$@"\n', encoding="utf-8")
    (local / "bin/pip").chmod(0o755)
    return root


def copied(source: Path, target: Path) -> None:
    """Copy a file system with owners and links."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", f"{source}/.", target], check=True)
