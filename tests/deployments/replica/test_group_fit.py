"""Step models that replicas hand to those that come after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.autoscaler.operating_point import PointRecord
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.redis.in_process.server import InProcessRedis
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.factory import build_engine
from deployments.replica.group_fit import GroupFit, engine_version
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.deployments.replica.test_governor import Site
from tests.support.stack import request, running_stack, sim_pool
from tests.support.waiting import until


@pytest.fixture
def redis() -> InProcessRedis:
    return InProcessRedis()


@pytest.fixture
async def fit(redis: InProcessRedis) -> GroupFit:
    pool = PoolSettings(model="demo", engine=EngineKind.SIM, sim=SimSettings())
    engine = build_engine(pool)
    identity = await engine.start()
    await engine.close()
    return GroupFit(RedisControlStore(redis, "demo"), identity, pool)


async def test_the_next_replica_starts_with_what_the_last_one_learned(fit: GroupFit) -> None:
    first, second = Site(), Site()
    await first.governor.start()
    await first.run(30)
    await fit.keep(first.governor)
    await fit.seed(second.governor)
    await second.governor.start()

    assert first.governor.model == second.governor.model
    # It knows its engine, so it need not begin low.
    assert [second.governor.bounds.largest] == second.applied
    assert [16] == first.applied[:1]


async def test_what_is_not_worth_keeping_is_not_kept(fit: GroupFit) -> None:
    new = Site()
    await new.governor.start()
    await fit.keep(new.governor)
    await fit.seed(new.governor)

    assert new.governor.model is None


async def test_a_store_that_is_away_or_holds_nonsense_costs_only_the_knowledge(
    fit: GroupFit, redis: InProcessRedis
) -> None:
    site, store = Site(), fit._store
    for text in (
        "no json",
        "{}",
        '{"group": "g", "model": {"a": -1, "b": 0, "g": 0}, "samples": 1, "median_error": 0}',
        '{"group": "g", "model": {"a": NaN, "b": 0, "g": 0}, "samples": 1, "median_error": 0}',
        '{"group": "g", "model": {"a": 1, "b": Infinity, "g": 0}, "samples": 1, "median_error": 0}',
        '{"group": "g", "model": {"a": 1, "b": 0, "g": 0}, "samples": Infinity, "median_error": 0}',
    ):
        await store.store_fit(fit.group, text)
        await fit.seed(site.governor)
        assert site.governor.model is None
    redis.down = True
    await fit.seed(site.governor)
    await fit.keep(site.governor)

    assert site.governor.model is None


async def test_a_replica_whose_slo_is_only_in_the_operating_point_begins_low(tmp_path: Path) -> None:
    """Nobody knows how fast its engine is."""
    pool = {**sim_pool(), "control": {"period_s": 60.0, "start_batch": 3}}
    async with running_stack(tmp_path, pools={"demo": pool}, replicas=0) as stack:
        point = OperatingPoint(interactive=ClassSlo(itl_p95_s=0.05), price_per_gpu_hour=3.6)
        await stack.control("demo").set_point(PointRecord(point, "ops").to_bytes())
        replica = await stack.add_replica()

        assert 3 == stack.engines[0].stats().batch_limit
        assert (0.05, 0.001) == (replica.governor.point.itl_p95_s, replica._account.price_per_gpu_s)


def test_a_simulated_engine_of_another_speed_is_another_engine() -> None:
    slow = PoolSettings(engine=EngineKind.SIM, sim=SimSettings(base_ms=50))
    fast = PoolSettings(engine=EngineKind.SIM, sim=SimSettings(base_ms=5))

    assert engine_version(slow) != engine_version(fast)
    assert engine_version(PoolSettings()).startswith("vllm-")


async def test_a_replica_that_stops_leaves_its_model_behind(tmp_path: Path) -> None:
    pool = {**sim_pool(base_ms=2.0), "control": {"period_s": 0.05}}
    async with running_stack(tmp_path, pools={"demo": pool}) as stack:
        first = stack.replicas[0]

        async def learned() -> bool:
            await stack.inference().Generate(request(max_tokens=60, ignore_eos=True))
            return first.governor.fit.samples >= 50

        await until(learned)
        # On a machine that does much else it may not trust what it learned.
        healthy = first.governor.fit.fitted("any") is not None
        await first.stop(drain_s=0)
        assert first._group_fit is not None
        stored = await stack.control("demo").fit(first._group_fit.group)
        assert healthy == (stored is not None)
        assert stored == await stack.control("demo").fit(first.identity.group_id)
