"""Compiled simulations are the same to the bit, and the tests of the simulator pass on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadtest.compiled.finder import VARIABLE
from loadtest.compiled.modules import ROOT, SETS, source_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SUITE = (
    "tests/loadtest/simulate",
    "tests/deployments/engines/sim/test_core.py",
    "tests/cluster/control/test_batch_policy.py",
)
CELLS_SUITE = ("tests/loadtest/benchmarks/cells/test_model_cell.py", "tests/loadtest/benchmarks/cells/test_day.py")
RUN = """
import json, sys
from loadtest.simulate.pool import traffic
assert traffic.__file__.endswith(".py") is (sys.argv[1] == "plain"), traffic.__file__
from tests.loadtest.compiled.runs import figures
print(json.dumps(figures(sys.argv[2])))
"""
CELLS_RUN = """
import json, sys
from loadtest.benchmarks.cells import traffic
assert traffic.__file__.endswith(".py") is (sys.argv[1] == "plain"), traffic.__file__
from tests.loadtest.compiled.runs import figures_of_cells
print(json.dumps(figures_of_cells()))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the compiled simulator."""
    yield from compiled_set(tmp_path_factory, "simulator")


@pytest.fixture(scope="module")
def cells_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the compiled simulation of cells."""
    yield from compiled_set(tmp_path_factory, "cells")


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


@pytest.mark.parametrize("name", ["static", "scripts", "policies", "deaths", "parts"])
def test_a_run_is_the_same_to_the_bit(name: str, folder: Path) -> None:
    plain = checked([sys.executable, "-c", RUN, "plain", name])
    compiled = checked([sys.executable, "-c", RUN, "compiled", name], folder)
    assert len(plain) > 1000
    assert plain == compiled


def test_the_tests_of_the_simulator_pass_on_it(folder: Path) -> None:
    # The package comes first, before a test imports one of the modules.
    words = ["-m", "pytest", "-q", "-p", "loadtest", "-p", "no:cacheprovider"]
    assert "passed" in checked([sys.executable, *words, *SUITE], folder)


def test_a_pool_of_cells_is_the_same_to_the_bit(cells_folder: Path) -> None:
    plain = checked([sys.executable, "-c", CELLS_RUN, "plain"])
    compiled = checked([sys.executable, "-c", CELLS_RUN, "compiled"], cells_folder)
    assert len(plain) > 10_000
    assert plain == compiled


def test_compiled_cells_grant_what_the_scripts_grant_and_count_a_day(cells_folder: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "loadtest", "-p", "no:cacheprovider"]
    assert "passed" in checked([sys.executable, *words, *CELLS_SUITE], cells_folder)
