"""Every setting of a running pool, changed with `penstock apply` over two routers under load: each does what its way
says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import tomli_w

from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from cluster.autoscaler.own_settings import ScalerSettings
from cluster.cli.main import main
from cluster.control.settings import operating_point
from cluster.settings import PoolSettings
from cluster.settings.rollout import REASONS, WAYS, Way, settings_that_change
from deployments.replica.replica import Replica
from loadtest.benchmarks.rollouts.places import Places
from penstock.client import (
    AsyncClient,
    InvalidArgumentError,
    RegistryEdit,
    Rollout,
    RolloutAction,
    RolloutState,
    Usage,
)
from tests.support.launching import launching
from tests.support.stack import SECRET, Stack, running_stack, sim_pool
from tests.support.tiny_model import make_tokenizer
from tests.support.traffic import traffic
from tests.support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("patient_registry"),
]

BASE: dict[str, Any] = {
    **sim_pool(base_ms=4.0),
    "replicas": 2,
    "autoscale": {"mode": "advisory", "max_replicas": 4},
    "rollout": {"judge_s": 0.1, "drain_s": 20.0},
    "slo": {"interactive": {"itl_p95_s": 5.0}},
}
ENTRY: dict[str, Any] = {
    "replicas": 3,
    "cells": 2,
    "control": {
        "mode": "advisory",
        "period_s": 0.5,
        "window_s": 20.0,
        "min_batch": 2,
        "max_batch": 48,
        "start_batch": 8,
    },
    "autoscale": {
        "mode": "off",
        "min_replicas": 2,
        "max_replicas": 5,
        "cold_start_s": 10.0,
        "start_timeout_s": 100.0,
        "headroom": "more",
        "fill": 0.5,
        "rate_window_s": 30.0,
        "drain_s": 30.0,
        "hold_s": 10.0,
        "look_back_s": 100.0,
        "forecast": "advisory",
        "announced": "advisory",
        "announced_per_tenant": 5,
        "announced_ahead_s": 1000.0,
        "announced_rate": 50.0,
        "schedule": [{"start": "08:00", "end": "18:00", "min_replicas": 3, "dates": ["2020-01-02"]}],
        "idle_s": 100.0,
        "up_window_s": 30.0,
        "down_window_s": 100.0,
        "stale_s": 20.0,
        "standby": 2,
        "standby_least": 1,
        "standby_price": 0.5,
        "wake_s": 5.0,
    },
    "rollout": {
        "surge": 1,
        "judge_s": 0.2,
        "max_failed": 0.1,
        "max_late": 0.2,
        "attempts": 3,
        "drain_s": 10.0,
    },
    "price_per_million_prompt_tokens": 3.0,
    "price_per_million_cached_tokens": 1.0,
    "price_per_million_output_tokens": 5.0,
}
"""Another value of each setting that an entry changes."""
POINT: dict[str, Any] = {
    "slo": {
        "attainment": 0.9,
        "interactive": {"ttft_p99_s": 30.0, "itl_p95_s": 4.0},
        "standard": {"ttft_p99_s": 40.0, "itl_p95_s": 6.0},
        "batch": {"ttft_p99_s": 50.0, "itl_p95_s": 7.0},
    },
    "price_per_gpu_hour": 7200.0,
    "budget_per_hour": 90_000.0,
}
"""The same for the operating point."""
NEVER: dict[str, Any] = {"engine": "vllm", "pipeline_parallel_size": 2}
"""The same for what never changes."""


class Unmoved:
    """A platform that keeps its replicas."""

    async def look(self, pool: str) -> Actual:
        return Actual(2, 2)

    async def scale(self, pool: str, replicas: int) -> None:
        pass


class Site:
    """Two routers, replicas that follow the registry, and an autoscaler."""

    def __init__(self, stack: Stack, places: Places, autoscaler: Autoscaler, folder: Path) -> None:
        self.stack = stack
        self.places = places
        self.autoscaler = autoscaler
        self.folder = folder

    @property
    def replicas(self) -> list[Replica]:
        return [self.places.replicas[rank] for rank in sorted(self.places.replicas)]

    async def apply(self, *changes: Mapping[str, Any]) -> int:
        """Change a pool with the command, from its first settings to these; return the exit status."""
        settings: dict[str, Any] = dict(BASE)
        for each in changes:
            settings |= each
        file = self.folder / "cluster.toml"
        file.write_text(tomli_w.dumps({"pools": {"demo": settings}}))
        target = f"127.0.0.1:{self.stack.routers[0].port}"
        return await asyncio.to_thread(main, ["apply", str(file), "--yes", "--target", target])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("stack")
    async with (
        running_stack(folder, routers=2, replicas=0, pools={"demo": BASE}) as stack,
        launching(stack, ray=True) as machine,
    ):
        await machine.fit_pool("demo", stack.settings.pools["demo"])
        stores = AutoscalerStores(stack.factory().pool, stack.control, stack.rollout, registry=stack.registry)
        autoscaler = Autoscaler(stack.settings, SECRET, stores, Unmoved())
        await autoscaler.start()
        try:
            async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
                await until(lambda: launcher_seen(client))
            for router in stack.routers:
                await until(lambda router=router: len(router.pools["demo"].replicas.connected()) == 2)
            yield Site(stack, machine.places["demo"], autoscaler, folder)
        finally:
            await autoscaler.stop()


async def launcher_seen(client: AsyncClient) -> bool:
    try:
        await client.edit_registry([RegistryEdit("pool", "probe", {"settings": sim_pool()})], dry_run=True)
    except InvalidArgumentError:
        return False
    return True


def cost(pool: PoolSettings, used: Usage) -> float:
    """Return the cost of a request on accelerators without a price."""
    cached = pool.price_per_million_cached_tokens or 0.0
    fresh = pool.price_per_million_prompt_tokens * (used.prompt_tokens - used.cached_tokens)
    return (fresh + cached * used.cached_tokens + pool.price_per_million_output_tokens * used.output_tokens) / 1e6


def leaves(tree: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


async def test_every_setting_has_one_way() -> None:
    assert set(PoolSettings.model_fields) == set(WAYS)
    assert {name for name, way in WAYS.items() if way is Way.NEVER} == set(REASONS) == set(NEVER)
    assert set(settings_that_change(Way.ENTRY)) == set(ENTRY)
    assert set(settings_that_change(Way.POINT)) == set(POINT)


@pytest.mark.parametrize("changes", [ENTRY, POINT], ids=["entry", "operating point"])
async def test_another_value_is_tried_of_every_part(changes: Mapping[str, Any]) -> None:
    """Otherwise a new setting would be followed by nobody, and no test would say so."""
    before = dict(leaves(PoolSettings.model_validate(BASE).model_dump(mode="json", include=set(changes))))
    assert before.keys() == dict(leaves(changes)).keys()
    assert {} == {name: value for name, value in leaves(changes) if before[name] == value}


async def test_what_an_entry_changes_is_in_force_everywhere_and_no_replica_restarts(site: Site) -> None:
    began = [replica.plan.replica_id for replica in site.replicas]
    active = {**ENTRY, "autoscale": {**ENTRY["autoscale"], "mode": "active"}}
    async with traffic(site.stack, clients=4, pause_s=0.01) as load:
        for changes in (ENTRY, active, {}):
            assert 0 == await site.apply(changes)
            wanted = PoolSettings.model_validate({**BASE, **changes})
            for router in site.stack.routers:
                assert wanted == router.pools["demo"].settings
                assert wanted == router._parts.rollouts.pools["demo"].settings
                async with AsyncClient(f"127.0.0.1:{router.port}") as client:
                    answer = await client.generate("demo", "x", max_tokens=8, ignore_eos=True)
                assert cost(wanted, answer.usage) == pytest.approx(answer.receipt.cost)
            assert [wanted.cells] * 2 == [each.pools["demo"].cells.layout.count for each in site.stack.routers]
            assert [wanted.cells] * wanted.replicas == [each._layout.count for each in site.replicas]
            assert [wanted.control] * wanted.replicas == [each.governor._settings for each in site.replicas]
            scaler = site.autoscaler.scalers.get("demo")
            if wanted.autoscale.mode == "off":
                await until(lambda: "demo" not in site.autoscaler.scalers)
            else:
                await until(lambda: "demo" in site.autoscaler.scalers)
                scaler = site.autoscaler.scalers["demo"]
                await until(lambda scaler=scaler, wanted=wanted: ScalerSettings.of(wanted) == scaler._settings)
            assert began == [replica.plan.replica_id for replica in site.replicas][:2]
    assert [] == load.failures


async def test_what_the_operating_point_has_is_in_force_everywhere_and_in_receipts(site: Site) -> None:
    began = [replica.plan.replica_id for replica in site.replicas]
    async with traffic(site.stack, clients=4, pause_s=0.01) as load:
        assert 0 == await site.apply(POINT)
        point = operating_point(PoolSettings.model_validate({**BASE, **POINT}))
        for router in site.stack.routers:
            await until(lambda router=router: router.pools["demo"].admission.demand.point == point)
        for replica in site.replicas:
            await until(lambda replica=replica: replica.governor.point == point)
            assert 2.0 == replica._account.price_per_gpu_s
        for number in range(2):
            async with AsyncClient(f"127.0.0.1:{site.stack.routers[number].port}") as client:
                receipt = (await client.generate("demo", "x", max_tokens=8, ignore_eos=True)).receipt
                assert 2.0 * receipt.gpu_seconds == pytest.approx(receipt.cost)
                (pool,) = (await client.cluster_status()).pools
                assert 2 * 7200.0 == pool.cost_per_hour
        assert 0 == await site.apply()
        for router in site.stack.routers:
            await until(lambda router=router: router.pools["demo"].replicas.price_per_gpu_hour == 0.0)
    assert [] == load.failures
    assert began == [replica.plan.replica_id for replica in site.replicas]


@pytest.mark.parametrize("setting", sorted({*settings_that_change(Way.ROLLOUT)} - {"revision"}))
async def test_what_a_roll_out_changes_comes_with_new_replicas(site: Site, setting: str) -> None:
    model = site.folder / "model"
    if not model.exists():
        model.mkdir()
        make_tokenizer(model)
    values: dict[str, Any] = {
        "model": str(model),
        "task": "generate",
        "tensor_parallel_size": 2,
        "vllm": {"max_num_seqs": 8},
        "sim": {**BASE["sim"], "max_num_seqs": 8},
    }
    began = {replica.plan.replica_id for replica in site.replicas}
    async with traffic(site.stack, clients=4, pause_s=0.01) as load:
        assert 0 == await site.apply({setting: values[setting]})
    wanted = getattr(PoolSettings.model_validate({**BASE, setting: values[setting]}), setting)
    assert [wanted] * 2 == [getattr(replica.plan.pool_settings, setting) for replica in site.replicas]
    assert set() == began & {replica.plan.replica_id for replica in site.replicas}
    assert [] == load.failures
    assert 0 == await site.apply()


async def test_only_another_roll_out_waits_for_the_end_of_one(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    rolled = {"sim": {**BASE["sim"], "max_num_seqs": 16}}
    async with AsyncClient(f"127.0.0.1:{site.stack.routers[0].port}") as client:
        await client.start_rollout("demo", {"sim": {"max_num_seqs": 16}}, judge_s=3600.0)
        await client.change_rollout("demo", RolloutAction.STOP)
        assert 0 == await site.apply(rolled, {"replicas": 3}, {"price_per_million_output_tokens": 5.0})
        await until(lambda: rollout_is(client, lambda found: (found.state, found.size) == (RolloutState.HELD, 3)))
        assert 0 != await site.apply({"replicas": 3})
        assert "a roll-out of pool demo goes on. Nothing was changed" in " ".join(capsys.readouterr().err.split())
        await client.change_rollout("demo", RolloutAction.GO_BACK)
        await until(lambda: rollout_is(client, lambda found: not found.state.active), 60)
    assert 0 == await site.apply()


async def rollout_is(client: AsyncClient, wanted: Callable[[Rollout], bool]) -> bool:
    found = await client.rollout("demo")
    return found is not None and wanted(found)


async def test_a_revision_is_rolled_out_with_a_model_of_a_hub_only(site: Site) -> None:
    """Planned only: its replicas would ask the hub."""
    async with AsyncClient(f"127.0.0.1:{site.stack.routers[0].port}") as client:
        changes = {"model": "acme/small", "revision": "v2"}
        planned = (await client.start_rollout("demo", changes, dry_run=True)).new_changes
        # Roll-outs of before have left their settings in it too.
        assert changes == {name: planned[name] for name in changes}
        with pytest.raises(InvalidArgumentError, match="only a hub has revisions"):
            await client.start_rollout("demo", {"revision": "v2"}, dry_run=True)


async def test_what_is_wrong_with_a_roll_out_is_named_as_the_file_has_it(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 != await site.apply({"model": "/nowhere/m"})
    told = " ".join(capsys.readouterr().err.split())
    assert "penstock: pools.demo.model: there is no folder /nowhere/m. Nothing was changed" in told
    surge = {"rollout": {**BASE["rollout"], "surge": 1}}
    assert 0 == await site.apply(surge)
    assert 0 != await site.apply(surge, {"sim": {**BASE["sim"], "max_num_seqs": 8}})
    told = " ".join(capsys.readouterr().err.split())
    assert "penstock: pools.demo.rollout.surge: must be 0 in a pool whose autoscale.mode is not 'active'" in told
    assert 0 == await site.apply()


@pytest.mark.parametrize("setting", settings_that_change(Way.NEVER))
async def test_what_never_changes_is_refused_with_its_name_and_reason(
    site: Site, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    began = [replica.plan.replica_id for replica in site.replicas]
    assert 0 != await site.apply({setting: NEVER[setting]})
    told = " ".join(capsys.readouterr().err.split())
    assert f"pools.demo.{setting}: can't change while the pool runs: {REASONS[setting]}" in told
    assert "Nothing was changed" in told
    async with AsyncClient(f"127.0.0.1:{site.stack.routers[0].port}") as client:
        with pytest.raises(InvalidArgumentError, match=setting):
            await client.start_rollout("demo", {setting: NEVER[setting]})
        changed = json.loads(PoolSettings.model_validate({**BASE, setting: NEVER[setting]}).model_dump_json())
        with pytest.raises(InvalidArgumentError, match=rf"settings\.{setting}: can't change here"):
            await client.edit_registry([RegistryEdit("pool", "demo", {"settings": changed})])
    assert began == [replica.plan.replica_id for replica in site.replicas]


async def test_an_autoscaler_has_its_number_to_itself(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    scaled = {"autoscale": {"mode": "active", "max_replicas": 4}, "replicas": 3}
    assert 0 != await site.apply(scaled)
    told = " ".join(capsys.readouterr().err.split())
    assert "pools.demo.replicas: can't change while the pool runs: the pool's autoscaler decides on it" in told


@pytest.mark.parametrize(("gpus", "refused"), [(0, False), (4, True)])
async def test_a_replica_keeps_the_number_of_gpus_that_ray_reserves_for_it(
    tmp_path: Path, gpus: int, refused: bool
) -> None:
    async with (
        running_stack(tmp_path, replicas=0, pools={"demo": {"engine": "vllm"}}) as stack,
        AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client,
    ):
        # Without a process that starts replicas they are Kubernetes' to change.
        way = "tensor_parallel_size: can't change while the pool runs: Ray .* lead an alias .* under Change an image"
        with pytest.raises(InvalidArgumentError, match=way):
            await client.start_rollout("demo", {"tensor_parallel_size": 2}, dry_run=True)
        async with launching(stack, ray=True, gpus=gpus):
            await until(lambda: launcher_seen(client))
            changing = client.start_rollout("demo", {"tensor_parallel_size": 2}, dry_run=True)
            if refused:
                with pytest.raises(InvalidArgumentError, match="Ray reserves the same GPUs"):
                    await changing
            else:
                assert {"tensor_parallel_size": 2} == (await changing).new_changes
            assert await client.rollout("demo") is None


async def test_without_ray_no_autoscaler_can_begin(tmp_path: Path) -> None:
    async with (
        running_stack(tmp_path, pools={"demo": sim_pool()}) as stack,
        launching(stack),
        AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client,
    ):
        await until(lambda: launcher_seen(client))
        settings = {**sim_pool(), "autoscale": {"mode": "active", "max_replicas": 2}}
        with pytest.raises(InvalidArgumentError, match=r"autoscale\.mode: must be 'off', got 'active'; this cluster"):
            await client.edit_registry([RegistryEdit("pool", "demo", {"settings": settings})])
