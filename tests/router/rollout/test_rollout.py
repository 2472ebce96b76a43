"""Roll-outs over real routers and replicas, with simulated engines under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cluster.errors import EngineStartError
from cluster.rollout.redis.store import rollout_key
from cluster.settings import PoolSettings
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from loadtest.benchmarks.rollouts.places import Places
from penstock.client import (
    AsyncClient,
    InvalidArgumentError,
    PenstockClientError,
    Rollout,
    RolloutAction,
    RolloutState,
)
from router.rollout.api import on_this_machine
from tests.support.places import places
from tests.support.stack import Stack, running_stack, sim_pool
from tests.support.tiny_model import make_tokenizer
from tests.support.traffic import traffic
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER_WEIGHTS = {"sim": {"answer": "something else"}}
SAME_WEIGHTS = {"sim": {"max_num_seqs": 32}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    pool = {
        **sim_pool(base_ms=4.0),
        "replicas": 3,
        "rollout": {"judge_s": 0.3, "drain_s": 20},
        "slo": {"interactive": {"itl_p95_s": 0.2}},
    }
    async with running_stack(tmp_path_factory.mktemp("stack"), routers=2, replicas=0, pools={"demo": pool}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(stack: Stack) -> Stack:
    """Return the stack without a roll-out."""
    for router in stack.routers:
        book = router._parts.rollouts.pools["demo"].book
        book._known = type(book._known)(0, None, 0)
    stack.store.execute("DEL", rollout_key("demo"))
    return stack


def client(stack: Stack, router: int = 0) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{stack.routers[router].port}")


def gauge(stack: Stack, name: str, **labels: str) -> float | None:
    """Return a metric of a router's roll-outs."""
    registry = stack.routers[1]._metrics.registry
    return registry.get_sample_value(f"penstock_rollout_{name}", {"pool": "demo", **labels})


async def over(admin: AsyncClient, state: RolloutState) -> Rollout:
    """Wait for the end of the roll-out."""
    found: Rollout | None = None

    async def ended() -> bool:
        nonlocal found
        await asyncio.sleep(0.1)
        found = await admin.rollout("demo")
        return found is not None and not found.state.active

    await until(ended, 60)
    assert found is not None
    assert state is found.state, found
    return found


async def begin(stack: Stack, fleet: Places) -> None:
    """Wait until all replicas take work."""
    await until(lambda: len(fleet.replicas) == 3)
    for router in stack.routers:
        await until(lambda router=router: len(router.pools["demo"].replicas.connected()) == 3)


@pytest.mark.parametrize("changes", [OTHER_WEIGHTS, SAME_WEIGHTS], ids=["other weights", "same weights"])
async def test_all_replicas_change_under_load_and_no_request_fails(fresh: Stack, changes: dict[str, Any]) -> None:
    async with places(fresh, "demo", 3) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        async with traffic(fresh, clients=6) as load:
            begun = await admin.start_rollout("demo", changes)
            assert RolloutState.ROLLING is begun.state
            found = await over(admin, RolloutState.DONE)
        assert [] == load.failures
        assert load.ended >= 6
        assert [found.new_revision] * 3 == fleet.revisions
        await until(lambda: 1.0 == gauge(fresh, "state", state="done"))
        assert (3.0, 3.0, 0.0) == (
            gauge(fresh, "replicas"), gauge(fresh, "replicas_changed"), gauge(fresh, "failures", reason="start"),
        )  # fmt: skip
        assert changes == found.new_changes
        assert 3 == fleet.most


async def test_a_model_with_another_tokenizer_comes_under_load_and_no_request_fails(
    fresh: Stack, tmp_path: Path
) -> None:
    make_tokenizer(tmp_path)
    async with places(fresh, "demo", 3) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        before = {one.identity.model.tokenizer_digest for one in fleet.replicas.values()}
        async with traffic(fresh, clients=6) as load:
            await admin.start_rollout("demo", {"model": str(tmp_path)})
            found = await over(admin, RolloutState.DONE)
        assert [] == load.failures
        assert [found.new_revision] * 3 == fleet.revisions
        assert set() == before & {one.identity.model.tokenizer_digest for one in fleet.replicas.values()}


async def test_a_revision_that_does_not_start_goes_back(fresh: Stack) -> None:
    def engine(pool: PoolSettings) -> Engine:
        if pool.sim.max_num_seqs == 32:
            raise EngineStartError("out of memory")
        return build_engine(pool)

    async with places(fresh, "demo", 3, engine) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        async with traffic(fresh, clients=3) as load:
            await admin.start_rollout("demo", SAME_WEIGHTS)
            found = await over(admin, RolloutState.RETURNED)
        assert [] == load.failures
        assert "out of memory" in found.reason
        await until(lambda: 1.0 == gauge(fresh, "state", state="returned"))
        assert (0.0, 2.0) == (gauge(fresh, "replicas_changed"), gauge(fresh, "failures", reason="start"))
        assert [0] * 3 == fleet.revisions
        assert 3 == fleet.most


async def test_a_revision_that_misses_the_slo_goes_back(fresh: Stack) -> None:
    async with places(fresh, "demo", 3) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        async with traffic(fresh, clients=6, tokens=4) as load:
            await admin.start_rollout("demo", {"sim": {"base_ms": 400.0}}, judge_s=20.0)
            found = await over(admin, RolloutState.RETURNED)
        assert [] == load.failures
        assert "missed the SLO" in found.reason
        assert [0] * 3 == fleet.revisions


async def test_it_stops_goes_on_and_goes_back_by_order(fresh: Stack) -> None:
    async with places(fresh, "demo", 3) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        await admin.start_rollout("demo", OTHER_WEIGHTS)
        with pytest.raises(PenstockClientError, match="a roll-out to revision 1 goes on"):
            await admin.start_rollout("demo", SAME_WEIGHTS)
        await admin.change_rollout("demo", RolloutAction.STOP)
        assert RolloutState.HELD is (await admin.rollout("demo")).state  # type: ignore[union-attr]
        with pytest.raises(PenstockClientError, match="'held'"):
            await admin.change_rollout("demo", RolloutAction.STOP)
        await admin.change_rollout("demo", RolloutAction.GO_ON)
        await over(admin, RolloutState.DONE)
        again = await admin.change_rollout("demo", RolloutAction.GO_BACK)
        assert (1, 2, {}) == (again.old_revision, again.new_revision, again.new_changes)
        await over(admin, RolloutState.DONE)
        assert [2] * 3 == fleet.revisions
        assert {32_768} == {one.plan.pool_settings.sim.max_model_len for one in fleet.replicas.values()}


async def test_it_goes_on_when_redis_loses_everything_and_a_router_ends(fresh: Stack) -> None:
    """Whoever is left takes the next step: the record is all that counts, and every router knows it."""
    async with places(fresh, "demo", 3) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        await admin.start_rollout("demo", SAME_WEIGHTS)
        await until(lambda: 1 in fleet.revisions)
        fresh.store.execute("FLUSHALL")
        extra = await fresh.add_router()
        await until(lambda: fleet.revisions.count(1) == 2)
        await extra.stop(drain_s=0.1)
        fresh.routers.remove(extra)
        await fresh.channels.pop().close()
        await over(admin, RolloutState.DONE)
        assert [1] * 3 == fleet.revisions
        assert 3 == fleet.most


async def test_a_replica_that_starts_later_has_the_new_revision(fresh: Stack) -> None:
    async with places(fresh, "demo", 3) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        await admin.start_rollout("demo", SAME_WEIGHTS)
        await over(admin, RolloutState.DONE)
    async with places(fresh, "demo", 1) as fleet:
        await until(lambda: [1] == fleet.revisions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "must have a setting"),
        (
            {"engine": "vllm"},
            "engine: needs a restart of the cluster; a roll-out can change model, revision, task",
        ),
        ({"replicas": 3}, "replicas: changes with `penstock apply`, and no replica restarts; a roll-out can change"),
        ({"price_per_gpu_hour": 3}, "price_per_gpu_hour: is part of the operating point"),
        ({"image": "penstock:2"}, "image: is what a replica's machine runs, .* lead an alias .* under Change an image"),
        ({"modle": "x"}, "modle: is no setting of a pool"),
        ({"sim": {"max_num_seqs": 0}}, "sim.max_num_seqs: must be at least 1, got 0"),
        ({"sim": {"max_seqs": 3}}, "sim.max_seqs: unknown setting"),
    ],
)
async def test_wrong_changes_are_named(fresh: Stack, changes: dict[str, Any], words: str) -> None:
    async with client(fresh) as admin:
        with pytest.raises(InvalidArgumentError, match=words):
            await admin.start_rollout("demo", changes)
        assert await admin.rollout("demo") is None


async def test_a_model_that_is_not_there_takes_no_replica_away(fresh: Stack) -> None:
    """The replicas are on the router's machine, so it sees what they would see."""
    async with places(fresh, "demo", 3) as fleet, client(fresh) as admin:
        await begin(fresh, fleet)
        with pytest.raises(InvalidArgumentError, match=r"changes: pools.demo.model: there is no folder /nowhere/m"):
            await admin.start_rollout("demo", {"model": "/nowhere/m"}, dry_run=True)
        with pytest.raises(InvalidArgumentError, match=r"there is no folder /nowhere/m"):
            await admin.start_rollout("demo", {"model": "/nowhere/m"})
        assert await admin.rollout("demo") is None
        assert [0, 0, 0] == fleet.revisions


@pytest.mark.parametrize(
    ("here", "addresses"),
    [
        (True, ["127.0.0.1:5000", "[::1]:5001"]),
        (False, ["127.0.0.1:5000", "10.0.0.7:5000"]),
        (False, ["gpu-node:5000"]),
        (False, []),
    ],
)
async def test_files_are_looked_at_only_where_all_replicas_are_on_this_machine(
    here: bool, addresses: list[str]
) -> None:
    assert here is on_this_machine(addresses)


async def test_a_surge_needs_an_active_autoscaler(fresh: Stack) -> None:
    async with client(fresh) as admin:
        with pytest.raises(InvalidArgumentError, match=r"surge: must be 0 in a pool whose autoscale.mode"):
            await admin.start_rollout("demo", SAME_WEIGHTS, surge=1)
