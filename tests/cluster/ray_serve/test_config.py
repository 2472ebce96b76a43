from __future__ import annotations

from typing import Any

import pytest

from cluster.ray_serve import config
from cluster.ray_serve.config import actor_options, placement, serve_config
from cluster.settings import EngineKind, PoolSettings, load_settings


def pool(**settings: Any) -> PoolSettings:
    return PoolSettings(**settings)


def test_a_replica_on_one_machine_reserves_its_gpus_itself() -> None:
    assert {"num_cpus": 1, "num_gpus": 4} == actor_options(pool(tensor_parallel_size=4), 8)
    assert {} == placement(pool(tensor_parallel_size=4))


def test_a_build_for_gpus_asks_for_gpus_that_a_cluster_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's autoscaler adds machines for what is asked for."""
    assert {"num_cpus": 5} == actor_options(pool(tensor_parallel_size=4), 2)
    monkeypatch.setattr(config, "built_for_cpu", lambda: False)
    assert {"num_cpus": 1, "num_gpus": 4} == actor_options(pool(tensor_parallel_size=4), 2)


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


def arguments(flags: dict[str, Any]) -> dict[str, Any]:
    config = serve_config(load_settings(flags=flags, environ={}), "/run/settings.json", 0)
    found: dict[str, Any] = config["applications"][0]["args"]
    return found


@pytest.mark.parametrize(
    ("flags", "replaced"),
    [
        ({}, False),
        ({"router": {"port": 1}}, False),
        ({"pools": {"demo": {"replicas": 2}}}, False),
        ({"pools": {"demo": {"autoscale": {"mode": "active", "max_replicas": 3}}}}, False),
        ({"pools": {"demo": {"price_per_million_output_tokens": 3.0}}}, False),
        ({"pools": {"demo": {"control": {"window_s": 5.0}}}}, True),
        ({"pools": {"demo": {"sim": {"max_model_len": 2000}}}}, True),
        ({"redis": {"url": "redis://elsewhere:6379/0"}}, True),
        ({"replica": {"drain_s": 7}}, True),
        ({"queue": {"lookahead": 9}}, True),
    ],
)
def test_the_arguments_follow_what_replicas_read(flags: dict[str, Any], replaced: bool) -> None:
    """Ray replaces replicas whose arguments change, and looks into no file."""
    assert replaced == (arguments({"pools": {"demo": {}}}) != arguments(flags))


def test_replicas_that_follow_the_registry_are_not_replaced_for_what_it_changes() -> None:
    def digest(control: dict[str, Any]) -> str:
        settings = load_settings(flags={"pools": {"demo": {"control": control}}}, environ={})
        found: str = serve_config(settings, "/run/settings.json", 0, follows=True)["applications"][0]["args"]["digest"]
        return found

    assert digest({}) == digest({"window_s": 5.0})
