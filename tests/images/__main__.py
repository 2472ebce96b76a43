"""Command line: `python -m tests.images`. Needs root, debootstrap, runc, redis-server, and Pythons 3.11 and 3.12."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.images import base, checks, runtime
from tests.images.build import build
from tests.images.dockerfile import read
from tests.wheels.build import ROOT

IMAGES = ROOT / "k8s" / "images"
BUILT = ("router", "replica-cpu")
"""Images that are built. The others need base images that Debian does not have: their packages are resolved."""
RESOLVED = ("replica-cuda",)


def main() -> int:
    """Run the checks of the images that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help=f"of {', '.join((*BUILT, *RESOLVED))} (default: all)"
    )
    parser.add_argument("--folder", type=Path, default=Path("out/images"), help="for file systems (out/images)")
    given = parser.parse_args()
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"images [{time.monotonic() - begun:5.0f} s] {text}", flush=True)

    try:
        for name in given.images or (*BUILT, *RESOLVED):
            if name in BUILT:
                _built(name, given.folder.resolve(), say)
            elif name in RESOLVED:
                say(f"{name}: {checks.resolve_cuda(IMAGES / f'{name}.Dockerfile')}")
            else:
                parser.error(f"no image {name!r}")
    except (base.MissingError, checks.CheckError, subprocess.CalledProcessError) as error:
        say(f"failed: {error}")
        return 1
    say("done")
    return 0


def _built(name: str, folder: Path, say: checks.Say) -> None:
    if os.geteuid() != 0:
        raise base.MissingError("images are built by chroot: run as root")
    python = _python_for(name)
    file = read(IMAGES / f"{name}.Dockerfile")
    say(f"{name}: Debian {base.SUITE} with Python {python} stands in for the base image")
    say(f"{name}: {checks.resolve_pins(name)}")
    image = build(file, folder / name, lambda _: base.with_python(folder, python), say, _arguments())
    size = int(subprocess.run(["du", "-sm", image.root], capture_output=True, text=True, check=True).stdout.split()[0])
    say(f"{name}: {size} MB")
    with _place() as work, runtime.own_network():
        (checks.start_router if name == "router" else checks.start_replica)(image, work, say)


def _arguments() -> dict[str, str]:
    """Return build arguments: with a folder that has PyTorch's CPU build, its index is not asked."""
    return {"TORCH_BACKEND": ""} if os.environ.get("UV_FIND_LINKS") else {}


def _python_for(name: str) -> str:
    """Return the Python of an image, or the one for which a local folder has PyTorch's CPU build."""
    stated = re.search(r"PYTHON_IMAGE=python:(\d+\.\d+)", (IMAGES / f"{name}.Dockerfile").read_text(encoding="utf-8"))
    assert stated is not None
    folder = os.environ.get("UV_FIND_LINKS", "")
    if name == "replica-cpu" and folder and (wheels := [*Path(folder).glob("torch-*.whl")]):
        tags = {f"3.{found[1]}" for wheel in wheels if (found := re.search(r"-cp3(\d+)-", wheel.name))}
        return stated[1] if stated[1] in tags else max(tags)
    return stated[1]


@contextmanager
def _place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="penstock-image-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
