from __future__ import annotations

import os
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def executor() -> Any:
    from deployments.engines.vllm.in_core import InCoreExecutor

    made = object.__new__(InCoreExecutor)
    made._replica_cores = os.sched_getaffinity(0)
    made._worker_cores = {min(made._replica_cores)}
    made.driver_worker = object()
    return made


def cores_of(_worker: Any) -> set[int]:
    return os.sched_getaffinity(0)


def fail(_worker: Any) -> None:
    raise ValueError("broken")


def test_the_worker_works_on_its_cores_and_all_else_on_those_of_the_replica(executor: Any) -> None:
    assert [executor._worker_cores] == executor.collective_rpc(cores_of)
    assert executor._replica_cores == os.sched_getaffinity(0)
    assert executor._worker_cores == executor.collective_rpc(cores_of, non_block=True, single_value=True).result()
    with pytest.raises(ValueError, match="broken"):
        executor.collective_rpc(fail)
    assert executor._replica_cores == os.sched_getaffinity(0)
