"""vLLM's second model runner, which GPUs get: it needs Triton, whose interpreter also works on a CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here"),
]

INTERPRETED = """
import triton.backends

class Driver:
    @staticmethod
    def is_active():
        return True

known = triton.backends.backends
known["cpu"] = triton.backends.Backend(compiler=next(iter(known.values())).compiler, driver=Driver)
"""
"""vLLM asks for a backend before it believes in Triton on a CPU; the interpreter compiles nothing."""


def test_resumes_with_penalties_are_exact_there_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERPRETED, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    environment = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    suite = Path(__file__).with_name("test_vllm_engine.py")
    # vLLM's n-gram kernel for speculation is one that the interpreter does not take.
    chosen = "penalties and not speculating"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(suite)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout[-5000:]
    assert " passed" in done.stdout
