"""What operators tell the cluster while it runs, and what they see of its decisions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from cluster.autoscaler.operating_point import PointRecord
from cluster.autoscaler.store import Commit
from cluster.cli.main import main
from cluster.errors import InvalidRequestError
from cluster.settings import PoolSettings
from penstock.client import AsyncClient, ClassSlo, InvalidArgumentError, OperatingPoint, PermissionDeniedError
from penstock.models import RequestClass
from penstock.v1 import admin_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.steps import Relief
from router.admin.control import ControlApi
from router.identity import ANONYMOUS
from tests.cluster.queue.servers import running
from tests.support.keys import Keys, bearer
from tests.support.stack import SECRET, Stack, request, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOW_S = 0.08
FAST_S = 0.02


class Platform:
    """Takes numbers and does nothing."""

    def __init__(self) -> None:
        self.told: list[int] = []

    async def look(self, pool: str) -> Actual:
        return Actual(self.told[-1] if self.told else 1, 1)

    async def scale(self, pool: str, replicas: int) -> None:
        self.told.append(replicas)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest.fixture(scope="module", params=["in-process", "redis-7.0"])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The store's address; empty for Redis in process."""
    with contextlib.nullcontext() if request.param == "in-process" else running(request.param) as server:
        yield server.url if server is not None else ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys, redis_url: str) -> AsyncIterator[Stack]:
    pool = {
        **sim_pool(base_ms=2.0),
        "slo": {"interactive": {"itl_p95_s": SLOW_S}},
        "control": {"period_s": 0.05},
        "autoscale": {"mode": "active", "max_replicas": 4},
    }
    sections = {"auth": {"keys_file": str(keys.path)}, "autoscaler": {"tick_s": 0.2, "lease_s": 60.0}}
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, pools={"demo": pool}, redis_url=redis_url, sections=sections) as running_:
        yield running_


def nothing_is_opened(_pool: str) -> Any:
    pytest.fail("nothing is opened")


def client(stack: Stack, key: str) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=key)


async def test_a_point_reaches_replicas_and_routers_without_a_leader(stack: Stack, keys: Keys) -> None:
    governor, pool = stack.replicas[0].governor, stack.routers[0].pools["demo"]
    assert governor.point.itl_p95_s == SLOW_S
    tight = OperatingPoint(interactive=ClassSlo(1.0, FAST_S), price_per_gpu_hour=1.0, budget_per_hour=5.0)
    async with client(stack, keys.admin) as admin, client(stack, keys.operator) as operator:
        assert tight == await admin.set_operating_point("demo", tight)
        await until(lambda: governor.point == tight and pool.admission.demand.point == tight)
        found = await operator.decisions()
        assert (tight, True) == (found.operating_point, found.operating_point_set)

        # One that starts later hears of it, too.
        late = await stack.add_replica()
        await until(lambda: late.governor.point == tight)

        await admin.set_operating_point("demo", None)
        await until(lambda: governor.point.itl_p95_s == SLOW_S)
        assert not (await operator.decisions()).operating_point_set


async def test_a_budget_needs_a_price(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        with pytest.raises(InvalidArgumentError, match="price_per_gpu_hour: must be above 0 where there is a budget"):
            await admin.set_operating_point("demo", OperatingPoint(budget_per_hour=5.0))


async def test_only_admins_may(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.operator) as operator, client(stack, keys.acme) as user:
        with pytest.raises(PermissionDeniedError):
            await operator.set_operating_point("demo", None)
        with pytest.raises(PermissionDeniedError):
            await user.decisions()


async def test_every_wrong_field_is_named(stack: Stack, keys: Keys) -> None:
    bad = OperatingPoint(
        interactive=ClassSlo(ttft_p99_s=0.0),
        standard=ClassSlo(ttft_p99_s=3600.001),
        batch=ClassSlo(itl_p95_s=61),
        attainment=1.0,
        price_per_gpu_hour=-1,
    )
    async with client(stack, keys.admin) as admin:
        with pytest.raises(InvalidArgumentError) as refused:
            await admin.set_operating_point("demo", bad)
        with pytest.raises(InvalidArgumentError, match="none of demo"):
            await admin.decisions("other")
        with pytest.raises(InvalidArgumentError, match="at most 1000"):
            await admin.decisions(limit=1001)

    assert {
        f"operating_point.{name}"
        for name in ("interactive.ttft_p99", "standard.ttft_p99", "batch.itl_p95", "attainment", "price_per_gpu_hour")
    } == {violation.field for violation in refused.value.violations}
    assert "at most 3600 s, got 3600.001" in str(refused.value)


async def test_an_autoscaler_decides_on_what_routers_count_and_says_why(
    stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = AutoscalerStores(queue=stack.queue, control=stack.control)
    autoscaler = Autoscaler(stack.settings, SECRET, stores, Platform())
    await autoscaler.start()
    try:
        scaler = autoscaler.scalers["demo"]
        await until(lambda: scaler.record is not None)

        def arrivals() -> Any:
            return next((one for one in scaler.record.demands if one.rate > 0), None)

        async def ask() -> bool:
            await stack.inference().Generate(request(max_tokens=80, ignore_eos=True), metadata=bearer(keys.acme))
            return arrivals() is not None

        await until(ask)
        assert arrivals().output_tokens == pytest.approx(80)
        assert autoscaler.healthy()
        assert autoscaler.ready()

        monkeypatch.setenv("PENSTOCK_API_KEY", keys.operator)
        target = f"127.0.0.1:{stack.routers[0].port}"
        assert 0 == await asyncio.to_thread(main, ["decisions", "--target", target, "--json"])
        newest = json.loads(capsys.readouterr().out)["decisions"][0]
        assert ("active", 1) == (newest["mode"], newest["fence"])
        # On a machine that does much else the steps' times are no guide.
        assert {"needed", "fallback"} & {step["name"] for step in newest["steps"]}
        assert {"standard"} == {demand["request_class"] for demand in newest["demands"]}
        assert 0 == await asyncio.to_thread(main, ["decisions", "--target", target])
        shown = capsys.readouterr().out
        assert "operating point (from the settings): interactive ITL p95 80 ms" in shown
        assert f"{autoscaler.holder} (fence 1)" in shown
        assert "  keep " in shown
    finally:
        await autoscaler.stop()


async def test_replicas_know_what_is_interactive(stack: Stack, keys: Keys) -> None:
    tables = [replica.table for replica in stack.replicas]
    started = sum(table.interactive_started for table in tables)
    urgent = request(max_tokens=400, ignore_eos=True)
    urgent.request_class = types.REQUEST_CLASS_INTERACTIVE
    call = stack.inference().Generate(urgent, metadata=bearer(keys.acme))
    await until(lambda: sum(table.interactive for table in tables) == 1)
    await call

    assert started + 1 == sum(table.interactive_started for table in tables)
    assert 0 == sum(table.interactive for table in tables)


async def test_relief_is_acted_on_in_routers_and_replicas(stack: Stack) -> None:
    store, pool, governor = stack.control("demo"), stack.routers[0].pools["demo"], stack.replicas[0].governor
    point = OperatingPoint(interactive=ClassSlo(ttft_p99_s=0.5, itl_p95_s=SLOW_S))
    await store.set_point(PointRecord(point).to_bytes())
    lead = await store.lead("test", 60.0)
    until_ms = (await pool._context.queue.observe()).time_ms + 30_000
    commit = Commit(b"", 1, Relief.SHED, until_ms, b"{}", 10)
    await store.commit("test", lead.fence, commit)
    await until(lambda: governor.relief is pool.admission.relief is Relief.SHED)
    await until(lambda: pool.admission.demand.point == point)

    assert 0.5 == pool.admission.shed_after_s(RequestClass.INTERACTIVE)
    assert pool.admission.shed_after_s(RequestClass.BATCH) is None
    await store.commit("test", lead.fence, Commit(b"", 1, Relief.NONE, until_ms, b"{}", 10))
    await until(lambda: governor.relief is pool.admission.relief is Relief.NONE)
    assert pool.admission.shed_after_s(RequestClass.INTERACTIVE) is None
    await store.set_point(PointRecord(None).to_bytes())
    await store.close()


async def test_a_pool_must_be_named_only_where_there_are_several(stack: Stack, keys: Keys) -> None:
    tight = OperatingPoint(interactive=ClassSlo(itl_p95_s=FAST_S))
    async with client(stack, keys.admin) as admin:
        assert tight == await admin.set_operating_point("", tight)
        await admin.set_operating_point("", None)

    pools = {name: PoolSettings() for name in ("small", "large")}
    several = ControlApi(pools, nothing_is_opened, nothing_is_opened)
    for call, asked in (
        (several.set_operating_point, api.SetOperatingPointRequest()),
        (several.list_decisions, api.ListDecisionsRequest()),
    ):
        with pytest.raises(InvalidRequestError, match="pool: is required, one of large, small"):
            await call(asked, ANONYMOUS)
