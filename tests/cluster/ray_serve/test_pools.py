"""Pools in a stand-in for Ray Serve that keeps numbers as Serve does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import BootstrapError
from cluster.ray_serve import pools as module
from cluster.ray_serve.client import AppStatus
from cluster.ray_serve.pools import ServePools
from cluster.settings import Settings

ACTIVE = {"mode": "active", "min_replicas": 0, "max_replicas": 8}


class Serve:
    """Applications at once have the replicas that they are told to have."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, Any]] = {}
        self.targets: dict[str, int] = {}

    async def deploy(self, config: dict[str, Any]) -> None:
        found = {app["name"]: app for app in config["applications"]}
        for name, app in found.items():
            number = app["deployments"][0]["num_replicas"]
            if number < 1:
                raise BootstrapError("ray serve", "num_replicas must be greater than 0")
            # Serve leaves the number that its API was told where the config is the same.
            if self.configs.get(name) != app:
                self.targets[name] = number
        self.configs = found

    async def scale(self, pool: str, replicas: int) -> None:
        self.targets[f"penstock-{pool}"] = replicas

    async def status(self) -> dict[str, AppStatus]:
        return {name: self._status(name, app) for name, app in self.configs.items()}

    def _status(self, name: str, app: dict[str, Any]) -> AppStatus:
        number, digest = app["deployments"][0]["num_replicas"], app["args"]["digest"]
        return AppStatus("RUNNING", "", self.targets[name], self.targets[name], digest=digest, deployed=number)


@pytest.fixture
def serve() -> Serve:
    return Serve()


@pytest.fixture
def pools(serve: Serve, tmp_path: Path) -> ServePools:
    parts = serve, tmp_path / "settings.json", 0, lambda *_: None, lambda: None
    return ServePools(*parts, follows=True)  # type: ignore[arg-type]


def cluster(**pools: dict[str, Any]) -> Settings:
    return Settings.model_validate({"pools": {name: {"engine": "sim", **one} for name, one in pools.items()}})


async def test_a_pool_without_replicas_does_not_wake_for_a_price_or_for_another_pool(
    serve: Serve, pools: ServePools
) -> None:
    await pools.deploy(cluster(idle={"autoscale": ACTIVE}))
    await serve.scale("idle", 0)
    dearer = {"autoscale": ACTIVE, "price_per_million_output_tokens": 2.0}
    await pools.redeploy(cluster(idle=dearer, more={}))
    assert {"penstock-idle": 0, "penstock-more": 1} == serve.targets
    await pools.ready("idle", cluster(idle=dearer).pools["idle"])


async def test_a_scaled_pool_keeps_its_number_whether_its_replicas_are_replaced_or_not(
    serve: Serve, pools: ServePools
) -> None:
    await pools.deploy(cluster(busy={"autoscale": ACTIVE}))
    await serve.scale("busy", 5)
    await pools.redeploy(cluster(busy={"autoscale": ACTIVE}, more={}))
    assert 5 == serve.targets["penstock-busy"]
    await pools.redeploy(cluster(busy={"autoscale": ACTIVE, "sim": {"base_ms": 3.0}}, more={}))
    assert 5 == serve.targets["penstock-busy"]


@pytest.mark.parametrize("before", [0, 2, 6])
@pytest.mark.parametrize("mode", ["off", "advisory"])
async def test_a_pool_that_is_no_longer_scaled_gets_the_number_of_its_settings(
    serve: Serve, pools: ServePools, monkeypatch: pytest.MonkeyPatch, before: int, mode: str
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    await pools.deploy(cluster(demo={"replicas": 3, "autoscale": ACTIVE}))
    await serve.scale("demo", before)
    fixed = cluster(demo={"replicas": 3, "autoscale": {**ACTIVE, "mode": mode}})
    await pools.redeploy(fixed)
    await asyncio.wait_for(pools.ready("demo", fixed.pools["demo"]), 20.0)
    assert {"penstock-demo": 3} == serve.targets
