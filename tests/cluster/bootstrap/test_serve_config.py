from __future__ import annotations

from typing import Any

from cluster.bootstrap.serve_config import actor_options, placement
from cluster.settings import EngineKind, PoolSettings


def pool(**settings: Any) -> PoolSettings:
    return PoolSettings(**settings)


def test_a_replica_on_one_machine_reserves_its_gpus_itself() -> None:
    assert {"num_cpus": 1, "num_gpus": 4} == actor_options(pool(tensor_parallel_size=4), 8)
    assert {} == placement(pool(tensor_parallel_size=4))


def test_a_replica_on_several_machines_reserves_a_bundle_per_gpu() -> None:
    """VLLM refuses bundles of several GPUs; the first one also holds the replica's actor."""
    wide = pool(tensor_parallel_size=4, pipeline_parallel_size=2)
    assert {"num_cpus": 1} == actor_options(wide, 8)
    bundles = placement(wide)["placement_group_bundles"]
    assert [{"CPU": 1, "GPU": 1}] * 8 == bundles


def test_a_simulated_engine_reserves_no_gpus() -> None:
    simulated = pool(engine=EngineKind.SIM, tensor_parallel_size=4, pipeline_parallel_size=2)
    assert ({"num_cpus": 1}, {}) == (actor_options(simulated, 8), placement(simulated))
    assert 8 == simulated.ranks
