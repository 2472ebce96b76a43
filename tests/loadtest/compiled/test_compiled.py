"""Compiled simulations are the same to the bit, and the tests of the simulator pass on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtest.compiled.finder import VARIABLE
from loadtest.compiled.modules import ROOT, SETS, source_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SUITE = (
    *("-m", "quick", "tests/loadtest/simulate", "tests/deployments/engines/sim/test_core.py"),
    "tests/cluster/control/test_batch_policy.py",
)
"""The quick ones of tests whose code is compiled."""
CELLS_SUITE = ("tests/loadtest/benchmarks/cells/test_model_cell.py", "tests/loadtest/benchmarks/cells/test_day.py")
RUN = """
import json, sys
from loadtest.simulate.pool import traffic
assert traffic.__file__.endswith(".py") is (sys.argv[1] == "plain"), traffic.__file__
from tests.loadtest.compiled.runs import figures
for name in sys.argv[2:]:
    print(json.dumps(figures(name)))
"""
CELLS_RUN = """
import json, sys
from loadtest.benchmarks.cells import traffic
assert traffic.__file__.endswith(".py") is (sys.argv[1] == "plain"), traffic.__file__
from tests.loadtest.compiled.runs import figures_of_cells
print(json.dumps(figures_of_cells()))
"""


@contextmanager
def compiled_set(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Yield a folder of compiled modules. Nothing was written beside their sources."""
    missing = [tool for tool in ("mypyc", "setuptools") if find_spec(tool) is None]
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)}")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no C compiler {compiler}")
    made = tmp_path_factory.mktemp("compiled")
    before = beside_sources()
    checked([sys.executable, "-m", "loadtest.compiled", "--set", name, "--quick", str(made)])
    assert before == beside_sources()
    yield made
    shutil.rmtree(made)


def beside_sources() -> list[Path]:
    """Return the files beside the sources of compiled modules."""
    folders = {source_of(module).parent for modules in SETS.values() for module in modules}
    return sorted(file for each in folders for file in each.iterdir() if file.name != "__pycache__")


def checked(command: list[str], compiled: Path | None = None) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    environ = {**os.environ, "PYTHONPATH": path, VARIABLE: "" if compiled is None else str(compiled)}
    found = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-8000:]
    return found.stdout


# What needs a compiled set is one test: another process would compile it again.
def test_a_compiled_simulator_makes_the_same_runs_and_passes_its_tests(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    names = ("static", "scripts", "policies", "deaths", "parts")
    with compiled_set(tmp_path_factory, "simulator") as folder:
        plain = checked([sys.executable, "-c", RUN, "plain", *names]).splitlines()
        compiled = checked([sys.executable, "-c", RUN, "compiled", *names], folder).splitlines()
        assert len(names) == len(plain)
        assert min(map(len, plain)) > 1000
        assert [] == [name for name, one, other in zip(names, plain, compiled, strict=True) if one != other]
        assert "passed" in run_tests(folder, *SUITE)


def test_compiled_cells_make_the_same_day_and_grant_what_the_scripts_grant(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with compiled_set(tmp_path_factory, "cells") as folder:
        plain = checked([sys.executable, "-c", CELLS_RUN, "plain"])
        compiled = checked([sys.executable, "-c", CELLS_RUN, "compiled"], folder)
        assert len(plain) > 10_000
        assert plain == compiled
        assert "passed" in run_tests(folder, *CELLS_SUITE)


def run_tests(folder: Path, *suite: str) -> str:
    # The package comes first, before a test imports one of the modules.
    return checked([sys.executable, "-m", "pytest", "-q", "-p", "loadtest", "-p", "no:cacheprovider", *suite], folder)
