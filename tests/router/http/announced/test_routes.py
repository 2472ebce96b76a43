"""Announced load over HTTP."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.router.http.openapi.test_document import check
from tests.router.http.test_openai import HTTP, base
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack, sim_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/announcements"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Stack]:
    pools = {"demo": {**sim_pool(), "autoscale": {"mode": "advisory", "max_replicas": 4}}}
    sections = {"auth": {"keys_file": str(keys.path)}}
    async with running_stack(
        tmp_path_factory.mktemp("stack"), router=HTTP, replicas=0, pools=pools, sections=sections
    ) as running:
        yield running


async def call(stack: Stack, key: str, method: str, path: str = "", body: Any = None) -> tuple[int, Any]:
    """Return status and body of a call."""
    sent = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(base(stack), headers=sent) as session,
        session.request(method, f"{PATH}{path}", json=body) as reply,
    ):
        return reply.status, await reply.json()


def soon(hours: float) -> str:
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)).isoformat()


async def test_load_is_announced_listed_and_withdrawn(stack: Stack, keys: Keys) -> None:
    start = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    end = start + datetime.timedelta(hours=1)
    body = {"model": "demo", "id": "nine", "start": start.isoformat(), "end": end.isoformat(), "tokens_per_second": 2e4}
    check(body, "NewAnnouncement")
    status, told = await call(stack, keys.acme, "POST", body=body)
    check(told, "Announcement")
    assert (200, "nine", "acme", 2e4, None) == (
        *(status, told["id"], told["tenant"], told["tokens_per_second"], told["requests_per_second"]),
    )
    assert 3600 == told["end"] - told["start"]
    status, found = await call(stack, keys.operator, "GET", "?all_tenants=true")
    check(found, "Announcements")
    assert [told] == found["data"]
    assert [] == (await call(stack, keys.other, "GET"))[1]["data"]
    assert 404 == (await call(stack, keys.other, "DELETE", "/nine"))[0]
    assert (200, {"object": "announcement", "id": "nine", "deleted": True}) == await call(
        stack, keys.acme, "DELETE", "/nine?model=demo"
    )
    assert [] == (await call(stack, keys.acme, "GET"))[1]["data"]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({}, "requests_per_second", "must be given, or tokens_per_second"),
        ({"requests_per_second": 1, "tokens_per_second": 1}, "tokens_per_second", "must not be given beside"),
        ({"requests_per_second": 1e6}, "requests_per_second", "must be above 0 and at most 100000, got 1000000"),
        ({"requests_per_second": 1, "end": "nine"}, "end", "must be a time with its zone"),
        ({"requests_per_second": 1, "until": 3}, "until", ""),
    ],
)
async def test_a_wrong_field_is_named(stack: Stack, keys: Keys, fields: dict[str, Any], param: str, said: str) -> None:
    status, found = await call(stack, keys.acme, "POST", body={"model": "demo", "end": soon(1), **fields})
    assert (400, param) == (status, found["error"]["param"])
    assert said in found["error"]["message"]


async def test_the_pool_is_named_as_the_caller_wrote_it(stack: Stack, keys: Keys) -> None:
    body = {"end": soon(1), "requests_per_second": 1}
    for method, path, sent in (
        ("POST", "", body | {"model": "gone"}),
        ("GET", "?model=gone", None),
        ("DELETE", "/nine?model=gone", None),
    ):
        status, found = await call(stack, keys.acme, method, path, body=sent)
        assert (400, "model") == (status, found["error"]["param"])
        assert "model: 'gone' is none of demo" == found["error"]["message"]


async def test_nobody_announces_without_a_key(stack: Stack) -> None:
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/nine")):
        assert 401 == (await call(stack, "", method, path, body={} if method == "POST" else None))[0]
