"""Load is announced, listed and withdrawn through any router, within its bounds, and only those tenants are counted."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cluster.announced.redis.store import announced_key
from cluster.autoscaler.router_report import unpack_report
from penstock.client import (
    AsyncClient,
    InvalidArgumentError,
    NotFoundError,
    PenstockClientError,
    PermissionDeniedError,
    RetryPolicy,
)
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack, sim_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = datetime.timedelta(hours=1)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Stack]:
    autoscale = {"mode": "advisory", "max_replicas": 4, "announced_per_tenant": 2, "announced_rate": 50.0}
    sections = {
        "auth": {"keys_file": str(keys.path)},
        "tenants": {"acme": {"quota": {"requests_per_minute": 300}}, "other": {"quota": {"requests_per_minute": 1}}},
        "aliases": {
            "mixed": {"targets": [{"model": "demo", "weight": 3.0}, {"model": "fixed"}]},
            "nowhere": {"targets": [{"model": "fixed"}]},
        },
    }
    pools = {"demo": {**sim_pool(), "autoscale": autoscale}, "fixed": sim_pool()}
    async with running_stack(tmp_path_factory.mktemp("stack"), routers=2, pools=pools, sections=sections) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def fresh(stack: Stack) -> None:
    for name in ("demo", "mixed"):
        stack.store.execute("DEL", announced_key(name))


def client(stack: Stack, key: str, router: int = 0) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{stack.routers[router].port}", api_key=key, allow_plaintext_key=True)


def soon(hours: float = 1.0) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + hours * HOUR


async def test_any_router_lists_what_another_one_was_told(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.acme) as mine, client(stack, keys.acme, 1) as other:
        told = await mine.announce_load("demo", start=soon(1), end=soon(2), requests_per_second=10.0, output_tokens=64)
        assert (told,) == await other.announced_load("demo")
        assert ("acme", "demo", 10.0, None, 64) == (
            *(told.tenant, told.pool, told.requests_per_second, told.tokens_per_second, told.output_tokens),
        )
        # The quota lets five of the ten through.
        assert pytest.approx(0.5) == told.counts_for
        await other.withdraw_load(told.id, "demo")
        assert () == await mine.announced_load("demo")
        with pytest.raises(NotFoundError, match=f"no announcement {told.id!r}"):
            await mine.withdraw_load(told.id, "demo")


async def test_a_tenant_has_at_most_so_many_and_replaces_its_own(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.acme) as mine, client(stack, keys.operator) as other:
        for name in ("one", "two", "two"):
            await mine.announce_load("demo", end=soon(), tokens_per_second=1000.0, load_id=name)
        with pytest.raises(PenstockClientError, match=r"autoscale.announced_per_tenant = 2"):
            await mine.announce_load("demo", end=soon(), tokens_per_second=1000.0)
        await other.announce_load("demo", end=soon(), tokens_per_second=1000.0)
        assert {"one", "two"} == {each.id for each in await mine.announced_load("demo")}
        assert 3 == len(await other.announced_load("demo", all_tenants=True))
        assert 2 == len(await other.announced_load("demo", tenant="acme"))


async def test_the_same_load_announced_again_goes_on_and_more_or_later_load_begins_anew(
    stack: Stack, keys: Keys
) -> None:
    """Whoever said the same every minute and sent nothing would be believed for ever."""
    async with client(stack, keys.acme) as mine:

        async def again(rate: float, **more: Any) -> datetime.datetime:
            told = await mine.announce_load("demo", end=soon(), requests_per_second=rate, load_id="one", **more)
            return told.start

        first = await again(5.0)
        assert first == await again(5.0)
        assert first == await again(4.0)
        more = await again(6.0)
        assert first < more == await again(6.0)
        later = soon(0.5)
        assert abs(await again(6.0, start=later) - later) < datetime.timedelta(seconds=1)
        assert more < await again(6.0) < later


async def test_other_tenants_announcements_are_for_operators_to_see_and_admins_to_withdraw(
    stack: Stack, keys: Keys
) -> None:
    async with client(stack, keys.acme) as mine, client(stack, keys.operator) as operator:
        told = await operator.announce_load("demo", end=soon(), requests_per_second=1.0)
        for call in (
            mine.announced_load("demo", all_tenants=True),
            mine.announced_load("demo", tenant=told.tenant),
            mine.withdraw_load(told.id, "demo", tenant=told.tenant),
        ):
            with pytest.raises(PermissionDeniedError):
                await call
        own = await mine.announce_load("demo", end=soon(), requests_per_second=1.0)
        with pytest.raises(PermissionDeniedError):
            await operator.withdraw_load(own.id, "demo", tenant="acme")
    async with client(stack, keys.admin) as admin:
        await admin.withdraw_load(own.id, "demo", tenant="acme")
        assert (told,) == await admin.announced_load("demo", all_tenants=True)


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"requests_per_second": 0.0}, "requests_per_second", "must be above 0 and at most 50, got 0"),
        ({"requests_per_second": float("nan")}, "requests_per_second", "got nan"),
        ({"tokens_per_second": 50_001.0}, "tokens_per_second", "must be above 0 and at most 50000, got 50001"),
        ({"requests_per_second": 1.0, "prompt_tokens": 10_000_001}, "prompt_tokens", "at most 10000000, got 10000001"),
        ({"requests_per_second": 1.0, "load_id": "a/b"}, "id", "1 to 63 letters, digits, dots, underscores and"),
        ({"requests_per_second": 1.0, "start": soon(-1)}, "start", "must be from now to 31 days ahead, got"),
        ({"requests_per_second": 1.0, "start": soon(24 * 40), "end": soon(24 * 41)}, "start", "31 days ahead"),
        ({"requests_per_second": 1.0, "end": soon(-0.1)}, "end", "must be after the start, 20"),
        ({"requests_per_second": 1.0, "end": soon(24 * 32)}, "end", "and at most 31 days after it, got"),
        ({"requests_per_second": 1.0, "pool": "none"}, "pool", "'none' is none of demo, fixed, mixed, nowhere"),
        ({"requests_per_second": 1.0, "pool": ""}, "pool", "is required, one of demo, fixed, mixed, nowhere"),
        ({"requests_per_second": 1.0, "pool": "fixed"}, "pool", "takes no announcements: autoscale.mode of 'fixed' is"),
        ({"requests_per_second": 1.0, "pool": "nowhere"}, "pool", "takes no announcements: autoscale.mode of 'fixed'"),
    ],
)
async def test_an_error_names_field_limit_and_value(
    stack: Stack, keys: Keys, fields: dict[str, Any], field: str, said: str
) -> None:
    async with client(stack, keys.admin) as admin:
        with pytest.raises(InvalidArgumentError) as caught:
            await admin.announce_load(**{"pool": "demo", "end": soon(), **fields})
        [violation] = caught.value.violations
        assert field == violation.field
        assert said in violation.description
        assert () == await admin.announced_load("demo", all_tenants=True)


async def test_a_call_without_a_rate_or_a_zone_is_refused_before_it_is_sent(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.acme) as mine:
        with pytest.raises(ValueError, match="exactly one of requests_per_second and tokens_per_second"):
            await mine.announce_load("demo", end=soon())
        with pytest.raises(TypeError, match="end: must be a datetime with a time zone"):
            await mine.announce_load("demo", end=datetime.datetime(2027, 1, 1), requests_per_second=1.0)


async def test_only_those_who_announced_are_counted_one_by_one(stack: Stack, keys: Keys) -> None:
    router = stack.routers[0]
    async with client(stack, keys.acme) as mine, client(stack, keys.admin) as other:
        await other.generate("demo", "Hello", max_tokens=4)
        await mine.announce_load("demo", end=soon(), requests_per_second=1.0)
        await router._parts.announced.look()
        await mine.generate("demo", "Hello", max_tokens=4, n=2)
        await other.generate("demo", "Hello", max_tokens=4)
        counted = unpack_report(router.pools["demo"].admission.demand.report()).tenants
        assert {"acme"} == counted.keys()
        assert 2 == counted["acme"].requests
        assert 0 < counted["acme"].prompt_tokens
        [told] = await mine.announced_load("demo")
        await mine.withdraw_load(told.id, "demo")
        await router._parts.announced.look()
        assert {} == unpack_report(router.pools["demo"].admission.demand.report()).tenants


async def test_load_of_an_alias_counts_at_its_targets_that_take_announcements(stack: Stack, keys: Keys) -> None:
    router = stack.routers[0]
    async with client(stack, keys.acme) as mine, client(stack, keys.acme, 1) as other:
        told = await mine.announce_load("mixed", end=soon(), requests_per_second=10.0)
        # Of ten requests per second 7.5 go to `demo`, where the quota lets 5 through; `fixed` takes no announcements.
        assert ("mixed", 10.0, pytest.approx(0.5)) == (told.pool, told.requests_per_second, told.counts_for)
        assert ((told,), ()) == (await other.announced_load("mixed"), await other.announced_load("demo"))
        await router._parts.announced.look()
        await mine.generate("demo", "Hello", max_tokens=4)
        counted = unpack_report(router.pools["demo"].admission.demand.report()).tenants
        assert {"acme": 1} == {tenant: own.requests for tenant, own in counted.items()}
        await other.withdraw_load(told.id, "mixed")
        assert () == await mine.announced_load("mixed")


async def test_what_a_quota_refuses_is_counted_as_sent_once_per_call(stack: Stack, keys: Keys) -> None:
    router = stack.routers[0]
    async with AsyncClient(
        f"127.0.0.1:{router.port}", api_key=keys.other, allow_plaintext_key=True, retry=RetryPolicy(max_attempts=1)
    ) as mine:
        await mine.announce_load("demo", end=soon(), requests_per_second=1.0)
        await router._parts.announced.look()
        await mine.generate("demo", "Hello", max_tokens=4)
        for prompt in ("one", "one", "two"):
            with pytest.raises(PenstockClientError, match="may use 1 requests per minute"):
                await mine.generate("demo", prompt, max_tokens=4)
        counted = unpack_report(router.pools["demo"].admission.demand.report()).tenants["other"]
        assert (1, 2) == (counted.requests, counted.refused)
