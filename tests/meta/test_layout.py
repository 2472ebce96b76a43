"""What importing a part brings along, and what must never exist. Who imports whom is a matter of import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "proto"


def test_proto_is_never_a_package() -> None:
    """An `__init__.py` here would shadow a package that every Google client in the process imports."""
    assert not (SOURCES / "__init__.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("router.__main__", ("ray", "torch", "vllm", "transformers")),
        ("penstock.client", ("ray", "torch", "vllm", "redis", "pydantic", "tokenizers", "prometheus_client")),
        ("router.console.server", ("ray", "torch", "vllm", "redis", "tokenizers", "numpy", "locust")),
        ("cluster.cli.main", ("ray", "torch", "vllm", "redis", "grpc")),
        ("cluster.bootstrap.local", ("ray", "torch", "vllm")),
        ("deployments.replica.replica", ("ray", "torch", "vllm")),
    ],
)
def test_importing_a_part_does_not_load_what_it_must_not_need(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}\nprint([n for n in {forbidden!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "[]" == done.stdout.strip()


def test_packages_are_ours() -> None:
    """Generic names such as `cluster` could collide with another distribution of an image."""
    code = "import cluster, router, deployments, loadtest as l; print(cluster.__file__, router.__file__, l.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert all(path.startswith(str(ROOT)) for path in done.stdout.split())


def test_generated_code_is_current() -> None:
    command = [sys.executable, str(SOURCES / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stdout)


def test_every_element_of_the_api_has_a_comment_and_a_usual_name() -> None:
    """As Buf's rules have it, in the inner protocol too."""
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run([buf, "lint"], cwd=SOURCES, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stdout + done.stderr)


def test_pins_name_no_registry_and_no_path() -> None:
    text = (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8")
    assert not [line for line in text.splitlines() if "://" in line or line.startswith(("-", "/")) or " @ " in line]
