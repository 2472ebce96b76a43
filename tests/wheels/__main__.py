"""Command line: `python -m tests.wheels`. Ends with 1 at the first step that fails."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.wheels import build
from tests.wheels.pythons import VERSIONS, find

FULL = "3.11"
"""The Python that gets everything, with engine and Ray: about 1 GB."""
_TESTS = (
    "aws-cdk",
    "kubernetes-validate",
    "cel-python",
    "pytest",
    "hypothesis",
    "ruff",
    "mypy",
    "sphinx",
    "playwright",
)
"""Beginnings of pins that only tests and checks need."""
_CALL = """
import os, sys
import penstock
from penstock.testing import running_cluster

assert "site-packages" in penstock.__file__, penstock.__file__
with running_cluster() as cluster:
    answer = cluster.client.generate("demo", "What is a KV cache?", max_tokens=8)
print(f"Python {sys.version.split()[0]}: {answer.text!r}")
assert answer.text
"""
_BROUGHT = """
import importlib.metadata, sys
names = {each.metadata["Name"] for each in importlib.metadata.distributions()}
sys.exit(f"brings {names & {'ray', 'torch', 'vllm', 'redis'}}" if names & {"ray", "torch", "vllm", "redis"} else 0)
"""


class Steps:
    """The steps as they run, with their times."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        print(f"dist [{time.monotonic() - self._begun:5.0f} s] {text}", flush=True)

    def run(self, what: str, *command: str | Path, cwd: Path, **variables: str) -> None:
        """Run a program with nothing of this checkout in its environment."""
        self.say(what)
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        subprocess.run(command, cwd=cwd, check=True, env={**clean, **variables})


def main() -> int:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/dist"), help="folder of the results (out/dist)")
    parser.add_argument("--light", action="store_true", help="without engine and Ray, and so without the demo")
    given = parser.parse_args()
    steps = Steps()
    try:
        _all(steps, given.out.resolve(), light=given.light)
    except (subprocess.CalledProcessError, _MissingPythonError) as error:
        print(f"dist: failed: {error}")
        return 1
    steps.say(f"done: {', '.join(sorted(file.name for file in given.out.iterdir() if file.is_file()))}")
    return 0


class _MissingPythonError(Exception):
    pass


def _all(steps: Steps, out: Path, *, light: bool) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name in build.FOLDERS:
        steps.say(f"building {name}: sdist, and the wheel from it")
        build.build(out, name)
        missing = build.files_of_packages(name) - build.files_in_wheel(build.wheel_of(out, name))
        if missing:
            raise _MissingPythonError(f"{name}: the wheel lacks {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory(prefix="penstock-dist-") as temporary:
        folder = Path(temporary)
        server = _server(steps, out, folder, light=light)
        for version in VERSIONS:
            _try(steps, out, folder, version, server)
        if not light:
            steps.run("penstock demo, from the wheel", server, "demo", cwd=folder)


def _server(steps: Steps, out: Path, folder: Path, *, light: bool) -> Path:
    """Install the server. Return its program."""
    python = _environment(folder, FULL, "server")
    if python is None:
        raise _MissingPythonError(f"no Python {FULL} on this machine")
    wheels = [str(build.wheel_of(out, name)) for name in build.FOLDERS]
    if light:
        extra = [wheels[0], f"{wheels[1]}[sim]", "--constraint", str(_pins(folder))]
        _install(steps, "the server with simulated engines", python, *extra)
    else:
        _install(steps, "the pins, with engine and Ray (about 1 GB)", python, "--no-deps", "-r", str(_pins(folder)))
        _install(steps, "the server's and the client's wheel", python, "--no-deps", *wheels)
    return python.with_name("penstock")


def _try(steps: Steps, out: Path, folder: Path, version: str, server: Path) -> None:
    client, llm = (str(build.wheel_of(out, name)) for name in ("penstock_client", "penstock_llm"))
    python = _environment(folder, version, "client")
    if python is None:
        steps.say(f"Python {version}: not on this machine, skipped")
        if os.environ.get("CI") == "true":
            raise _MissingPythonError(f"CI needs Python {version}")
        return
    _install(steps, f"Python {version}: the client's wheel", python, client)
    steps.run(
        f"Python {version}: the client calls a simulated cluster",
        *(python, "-c", _CALL),
        cwd=folder,
        PENSTOCK_COMMAND=str(server),
    )
    python = _environment(folder, version, "command")
    assert python is not None
    _install(steps, f"Python {version}: the server's wheel without extras", python, client, llm)
    steps.run(f"Python {version}: penstock --version", python.with_name("penstock"), "--version", cwd=folder)
    steps.run(f"Python {version}: it brings no engine", python, "-c", _BROUGHT, cwd=folder)
    for name in ("penstock_client", "penstock_llm"):
        python = _environment(folder, version, f"sdist-{name}")
        assert python is not None
        built = [] if name == "penstock_client" else [client]
        _install(steps, f"Python {version}: {name} from its sdist", python, *built, str(build.sdist_of(out, name)))


def _environment(folder: Path, version: str, name: str) -> Path | None:
    """Make an empty environment; None without that Python."""
    found = find(version)
    if found is None:
        return None
    path = folder / f"{name}-{version}"
    subprocess.run(_uv("venv", "--quiet", "--no-python-downloads", "--python", found, path), check=True)
    return path / "bin" / "python"


def _install(steps: Steps, what: str, python: Path, *arguments: str) -> None:
    # Where no folder has PyTorch's CPU build, it comes from PyTorch's own index.
    torch = [] if os.environ.get("UV_FIND_LINKS") else ["--torch-backend=cpu"]
    steps.run(
        f"installing {what}",
        *_uv("pip", "install", "--quiet", "--python", python, *torch, *arguments),
        cwd=python.parent,
    )


def _pins(folder: Path) -> Path:
    lines = (build.ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8").splitlines()
    path = folder / "pins.txt"
    path.write_text("\n".join(line for line in lines if not line.startswith(_TESTS)) + "\n", encoding="utf-8")
    return path


def _uv(*arguments: str | Path) -> list[str | Path]:
    return [Path(sys.executable).with_name("uv"), *arguments]


sys.exit(main())
