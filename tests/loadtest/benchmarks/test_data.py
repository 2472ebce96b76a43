"""Benchmarks on recorded data: where it lies, and a line where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.benchmarks.data import VARIABLE, data_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("target", "module", "flag", "more"),
    [
        ("bench-autoscaler", "autoscaler", "--data", ()),
        ("bench-plan", "plan", "--points", ()),
        ("bench-simulate", "simulate", "--trace", ()),
        ("bench-affinity", "affinity", "--trace", ()),
        ("record-run", "record_run", "--trace", ("out",)),
    ],
)
def test_what_is_missing_is_a_line_that_says_what_names_it(
    target: str, module: str, flag: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "not there"
    path = os.pathsep.join((str(ROOT), str(ROOT / "proto")))
    command = [sys.executable, "-m", f"loadtest.benchmarks.{module}", *more]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (2, 1) == (ran.returncode, len(ran.stderr.splitlines())), ran.stderr
    assert ran.stderr.startswith(f"{target}: there is no {folder}")
    assert all(word in ran.stderr for word in ("DATA=FOLDER", VARIABLE, flag))


def test_without_the_variable_the_data_lies_beside_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/data")
    assert Path("/data") == data_folder()
    for nothing in ("", None):
        if nothing is None:
            monkeypatch.delenv(VARIABLE)
        else:
            monkeypatch.setenv(VARIABLE, nothing)
        assert ROOT.parent / "shared" / "data" == data_folder()
