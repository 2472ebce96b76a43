"""Generates the code of the .proto files, or checks that the committed code is current.

Usage: generate.py proto | generate.py --check
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "proto"
PACKAGES = (Path("penstock/v1"), Path("penstock/internal/v1"))
PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(out: Path) -> None:
    """Write the generated files below `out`."""
    protos = [
        str(path.relative_to(SOURCES)) for package in PACKAGES for path in sorted((SOURCES / package).glob("*.proto"))
    ]
    flags = [f"--{plugin}_out={out}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCES}", *flags, *protos]
    # protoc looks for its plugins on PATH; they were installed beside this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(command, check=True, cwd=SOURCES, env={**os.environ, "PATH": path}, capture_output=True)


def stale_files() -> list[str]:
    """List generated files that are missing, different or left over."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        names = {
            path.relative_to(base)
            for base in (fresh, SOURCES)
            for package in PACKAGES
            for pattern in PATTERNS
            for path in (base / package).glob(pattern)
        }
        return sorted(str(name) for name in names if not _same(fresh / name, SOURCES / name))


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and filecmp.cmp(one, other, shallow=False)


def main() -> int:
    """Run the command line."""
    if sys.argv[1:] == ["--check"]:
        stale = stale_files()
        if stale:
            sys.stderr.write(f"generated code is not current, run `make proto`: {', '.join(stale)}\n")
        return 1 if stale else 0
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    generate(Path(sys.argv[1]).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
