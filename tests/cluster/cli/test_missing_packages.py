"""A command whose packages are not installed names the extra that has them."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = {"pydantic", "redis", "psutil", "locust", "gevent", "numpy", "tokenizers", "msgpack", "jinja2", "ray", "vllm"}
sys.meta_path.insert(0, Absent())
from cluster.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("keys new --file keys.toml --tenant acme", "pip install 'penstock-llm[router]'"),
        ("keys list --file keys.toml", "pip install 'penstock-llm[router]'"),
        ("config show", "pip install 'penstock-llm[router]'"),
        ("autoscaler", "pip install 'penstock-llm[router]'"),
        ("up", "pip install 'penstock-llm[cpu]', or 'penstock-llm[gpu]' for NVIDIA GPUs"),
        ("down", "pip install 'penstock-llm[cpu]', or 'penstock-llm[gpu]' for NVIDIA GPUs"),
        ("simulate --trace t.csv", "pip install 'penstock-llm[loadtest]'"),
        ("plan --model demo --rate 1", "pip install 'penstock-llm[loadtest]'"),
        ("loadtest", "pip install 'penstock-llm[loadtest]'"),
    ],
)
def test_it_names_the_command_and_the_extra(words: str, extra: str) -> None:
    done = subprocess.run([sys.executable, "-c", ABSENT, *words.split()], capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())
    assert 2 == done.returncode, said
    assert said.startswith(f"penstock: `penstock {words.split()[0]}` needs more packages (No module named '"), said
    assert said.endswith(f"): {extra}")


@pytest.mark.parametrize(
    "words", ["--help", "generate --help", "chat --help", "status --target 127.0.0.1:1", "completion bash"]
)
def test_what_calls_a_cluster_needs_none(words: str) -> None:
    done = subprocess.run([sys.executable, "-c", ABSENT, *words.split()], capture_output=True, text=True, check=False)
    assert "needs more packages" not in done.stderr
    assert (1 if "--target" in words else 0) == done.returncode, done.stderr
