"""The distribution `penstock-client`: what it brings, what it needs, and that it is enough to call a router."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from cluster import __version__
from tests.penstock.client.fake_router import FakeRouter, serving
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
NEEDED = {"grpcio", "grpcio-status", "protobuf", "googleapis-common-protos"}
BROUGHT = NEEDED | {"typing-extensions"}
"""With what these need themselves."""

CALL = """
import sys
from importlib.metadata import distributions
from penstock import Client, Message, Sampling

print(sorted(each.metadata["Name"].lower().replace("_", "-") for each in distributions()))
with Client(sys.argv[1]) as client:
    print(client.generate("demo", [Message("user", "one two")], Sampling(max_tokens=4)).text)
"""


LEAVE = """
import asyncio, gc, sys
import grpc
from penstock import AsyncClient, Delta

async def begin(client):
    stream = client.stream("demo", "one two")
    while not isinstance(await anext(stream), Delta):
        pass

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await begin(client)
        gc.collect()
        print(grpc.__version__, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


def project(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as a release would."""
    out = tmp_path_factory.mktemp("wheel")
    run("uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", str(out), str(ROOT / "proto"))
    (found,) = out.glob("penstock_client-*.whl")
    return found


def run(program: str, *arguments: str) -> str:
    """Run a program of this environment."""
    path = Path(sys.executable).with_name(program)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False, env=os.environ)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_holds_the_package_penstock_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"penstock", wheel.name.replace("-py3-none-any.whl", ".dist-info")} == {name.split("/")[0] for name in names}
    assert {"penstock/py.typed", "penstock/v1/inference.proto", "penstock/v1/inference_pb2.pyi"} <= set(names)


def test_both_distributions_have_one_version_and_the_server_needs_this_client() -> None:
    server, client = project(ROOT), project(ROOT / "proto")
    assert __version__ == server["version"] == client["version"]
    assert f"penstock-client=={__version__}" in server["dependencies"]  # type: ignore[operator]
    assert NEEDED == {Requirement(text).name for text in client["dependencies"]}  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_installed_alone_it_makes_a_call(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has nothing else, beside an application with a `router.py` and a `cluster/` of its own."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pins = [line for line in (ROOT / "requirements/cpu.txt").read_text().splitlines() if line.split("==")[0] in BROUGHT]
    await asyncio.to_thread(
        run, "uv", "pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel), *pins
    )
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "__init__.py").write_text("raise ImportError('the application imports this itself')")
    (tmp_path / "router.py").write_text("raise ImportError('the application imports this itself')")
    (tmp_path / "app.py").write_text(CALL)
    async with serving(FakeRouter()) as port:
        child = await asyncio.create_subprocess_exec(
            python, "app.py", f"127.0.0.1:{port}", cwd=tmp_path, stdout=-1, stderr=-1, env={"PATH": "/usr/bin:/bin"}
        )
        out, errors = await child.communicate()
    assert (0, b"") == (child.returncode, errors)
    installed, text = out.decode().splitlines()
    assert sorted(BROUGHT | {"penstock-client"}) == eval(installed)  # noqa: S307 - our own list
    assert text


@pytest.mark.slow
async def test_with_the_newest_grpc_a_stream_that_nobody_holds_is_cancelled(wheel: Path, tmp_path: Path) -> None:
    """Applications bring their own gRPC. Since grpcio 1.83 an abandoned call keeps itself alive."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    await asyncio.to_thread(run, "uv", "pip", "install", "--quiet", "--python", str(python), str(wheel))
    (tmp_path / "app.py").write_text(LEAVE)
    fake = FakeRouter()
    fake.hold_after = 1
    async with serving(fake) as port:
        child = await asyncio.create_subprocess_exec(
            python,
            "app.py",
            f"127.0.0.1:{port}",
            cwd=tmp_path,
            stdin=-1,
            stdout=-1,
            stderr=-1,
            env={"PATH": "/usr/bin"},
        )
        assert child.stdout is not None
        version = (await child.stdout.readline()).decode().strip()
        assert Version("1.83") <= Version(version), "there is nothing to prove"
        await until(fake.abandoned.is_set)
        _out, errors = await child.communicate(b"\n")
    assert (0, b"") == (child.returncode, errors)
