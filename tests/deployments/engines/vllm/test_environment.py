from __future__ import annotations

import os

import pytest

from cluster.settings import PoolSettings, VllmSettings
from deployments.engines.vllm.startup.environment import engine_environment, inherited


def test_an_engine_core_that_is_its_own_worker_is_bound_to_the_worker_cores() -> None:
    found = engine_environment(PoolSettings(), (2, 5), on_cpu=True)

    assert ("2", "{2,5}", "true") == (found["OMP_NUM_THREADS"], found["OMP_PLACES"], found["OMP_PROC_BIND"])
    assert "2,5" == found["VLLM_CPU_OMP_THREADS_BIND"]


def test_an_engine_core_with_workers_is_free_and_runs_one_thread() -> None:
    found = engine_environment(PoolSettings(tensor_parallel_size=2), (2, 5), on_cpu=True)

    assert "1" == found["OMP_NUM_THREADS"]
    assert "OMP_PLACES" not in found
    assert "2|5" == found["VLLM_CPU_OMP_THREADS_BIND"]


@pytest.mark.parametrize(("eager", "disabled"), [(None, True), (True, True), (False, False)])
def test_without_compilation_a_cpu_engine_compiles_nothing_later(eager: bool | None, disabled: bool) -> None:
    pool = PoolSettings(vllm=VllmSettings(enforce_eager=eager))

    assert disabled is ("TORCHDYNAMO_DISABLE" in engine_environment(pool, (0,), on_cpu=True))


def test_on_a_gpu_the_processes_only_learn_whose_they_are() -> None:
    assert {"PENSTOCK_REPLICA_PID": str(os.getpid())} == engine_environment(PoolSettings(), None, on_cpu=False)


def test_variables_are_as_before_when_the_processes_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("NEW", raising=False)
    with inherited({"KEPT": "while", "NEW": "while"}):
        assert ("while", "while") == (os.environ["KEPT"], os.environ["NEW"])
    assert ("before", None) == (os.environ["KEPT"], os.environ.get("NEW"))
