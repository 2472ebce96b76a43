from __future__ import annotations

import multiprocessing
import os
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import psutil
import pytest

from deployments.engines.vllm.startup.early_core import EarlyCore, _Context

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")
MODULE = "sndhdr"
"""A module that nothing here imports."""
VARIABLE = "PENSTOCK_TEST_EARLY_CORE"


class Late:
    """Work that can be read only where a module of a later folder is found."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        return import_module, (self.module,)


def tell(pipe: Any, names: tuple[str, ...], late: Any) -> None:
    assert "found" == late.WORD
    pipe.send((os.getpid(), {name: os.environ.get(name) for name in names}, MODULE in sys.modules))


def early(**variables: str) -> EarlyCore:
    return EarlyCore([MODULE], variables)


def test_it_does_its_work_with_the_variables_of_both_moments_and_the_folders_of_the_later_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "late_module.py").write_text("WORD = 'found'")
    ours, theirs = SPAWN.Pipe()
    with closing(early(OMP_NUM_THREADS="3")) as core:
        assert "3" != os.environ.get("OMP_NUM_THREADS")
        monkeypatch.setenv(VARIABLE, "later")
        monkeypatch.syspath_prepend(tmp_path)
        work = {"pipe": theirs, "names": (VARIABLE, "OMP_NUM_THREADS"), "late": Late("late_module")}
        process = _Context(core, SPAWN).Process(target=tell, name="EngineCore", kwargs=work)
        assert process is core
        process.start()
        assert (core.pid, {VARIABLE: "later", "OMP_NUM_THREADS": "3"}, True) == ours.recv()
    process.join(20)
    assert 0 == process.exitcode


def test_without_work_it_is_gone_at_the_end() -> None:
    with closing(early()) as core:
        assert core.is_alive()
    assert core.exitcode not in (None, 0)


def test_a_second_process_and_a_queue_of_tensors_are_made_anew() -> None:
    with closing(early()) as core:
        context = _Context(core, SPAWN)
        queued = context.Process(target=tell, name="EngineCore", kwargs={"tensor_queue": SPAWN.SimpleQueue()})
        assert queued is not core
        assert core.work is None
        assert core is context.Process(target=tell, name="EngineCore", kwargs={})
        assert core is not context.Process(target=tell, name="EngineCore", kwargs={})
        core.work = None


PARENT = """
import os, sys
os.environ["PENSTOCK_REPLICA_PID"] = str(os.getpid())
from deployments.engines.vllm.startup.early_core import EarlyCore

if __name__ == "__main__":
    print(EarlyCore(["sndhdr"], {}).pid, flush=True)
    sys.stdin.read()
"""


def test_it_dies_with_a_killed_parent_before_it_has_work(tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("parent") / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with Popen([sys.executable, str(script)], stdin=PIPE, stdout=PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        core = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs([core], timeout=20)
        assert [] == alive
