"""Clients are warned of a budget that is nearly used, and told when it renews once it is used up."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from cluster.queue.entries import BudgetUse, Quota, Submitted
from penstock.client import AsyncClient, RegistryEdit
from penstock.v1 import admin_pb2
from router.admission.budgets import Budgets
from router.jobs import verdict
from tests.cluster.queue.backends import entry
from tests.router.http.test_openai import base
from tests.router.identity.test_calls import refusal
from tests.support.keys import Keys, bearer
from tests.support.stack import collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

POOL = {**sim_pool(), "price_per_million_output_tokens": 1e6}
"""A token costs 1."""


def sections(keys: Keys) -> dict[str, Any]:
    quota = {"cost_per_day": 10.0, "cost_per_month": 200.0, "warn_at": 0.6}
    return {"auth": {"keys_file": str(keys.path)}, "tenants": {"acme": {"quota": quota}}}


def test_a_warning_ends_when_its_budget_renews_or_is_none_any_more() -> None:
    now = 100.0
    budgets = Budgets(lambda: now)

    def note(quota: Quota, use: BudgetUse | None) -> None:
        budgets.note(entry("a", tenant="acme", quota=quota), Submitted(None, 0, budget=use))

    both = Quota(cost_per_day=10.0, cost_per_month=200.0, warn_at=0.6)
    note(both, BudgetUse("cost_per_month", 180.0, 200.0, 60_000))
    assert {("acme", "cost_per_month"): 0.9} == budgets.warned
    now += 60.0
    # The tenant sends nothing.
    assert {} == budgets.warned

    note(both, BudgetUse("cost_per_month", 180.0, 200.0, 60_000))
    note(both, BudgetUse("cost_per_day", 8.0, 10.0, 60_000))
    assert {("acme", "cost_per_month"): 0.9, ("acme", "cost_per_day"): 0.8} == budgets.warned
    # The queue tells the one of which the greatest part is used.
    note(both, BudgetUse("cost_per_day", 1.0, 10.0, 60_000))
    assert {} == budgets.warned

    note(both, BudgetUse("cost_per_day", 8.0, 10.0, 60_000))
    note(Quota(), None)
    assert {} == budgets.warned


async def test_a_budget_warns_and_then_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys(tmp_path / "keys.toml")
    async with running_stack(tmp_path, pools={"demo": POOL}, sections=sections(keys)) as stack:
        pool = stack.routers[0].pools["demo"]

        async def call(tokens: int, key: str) -> dict[str, str]:
            body = request(max_tokens=tokens, ignore_eos=True)
            made = stack.inference().Generate(body, metadata=bearer(key))
            await made
            while pool.releases.untold():
                await pool._context.owner.wait_any(0.01)
            return {name: str(value) for name, value in await made.initial_metadata()}

        assert "penstock-budget" not in await call(7, keys.acme)
        with caplog.at_level(logging.WARNING):
            warned = (await call(1, keys.acme))["penstock-budget"]
            await call(1, keys.acme)
        assert warned.startswith("cost_per_day; used=7; limit=10; renews=")
        assert 1 == [record.getMessage() for record in caplog.records].count("budget.nearly_used")
        assert "penstock-budget" not in await call(50, keys.other)

        stream = stack.inference().StreamGenerate(
            stream_request(max_tokens=1, ignore_eos=True), metadata=bearer(keys.acme)
        )
        await collect(stream)
        assert "penstock-budget" in dict(await stream.initial_metadata())
        assert {("acme", "cost_per_day"): 0.9} == pool.admission.budgets.warned
        while pool.releases.untold():
            await pool._context.owner.wait_any(0.01)

        code, facts = await refusal(stack.inference().Generate(request(), metadata=bearer(keys.acme)))
        assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
        assert ("cost_per_day", "10", "10.0") == (facts["quota"], facts["used"], facts["limit"])

        usage = await stack.admin().GetUsage(admin_pb2.GetUsageRequest(), metadata=bearer(keys.acme))
        assert [("cost_per_day", 10.0, 10.0), ("cost_per_month", 200.0, 10.0)] == [
            (each.name, each.limit, each.used) for each in usage.budgets
        ]
        everybody = await stack.admin().GetUsage(
            admin_pb2.GetUsageRequest(all_tenants=True), metadata=bearer(keys.operator)
        )
        assert {"acme"} == {each.tenant for each in everybody.budgets}
        [status] = (
            await stack.admin().GetClusterStatus(admin_pb2.GetClusterStatusRequest(), metadata=bearer(keys.operator))
        ).pools
        assert [("acme", "cost_per_day", 10.0, 10.0, True), ("acme", "cost_per_month", 200.0, 10.0, False)] == [
            (each.tenant, each.name, each.limit, each.used, each.warned) for each in status.budgets
        ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_warning_is_a_header_over_http(tmp_path: Path, stream: bool) -> None:
    keys = Keys(tmp_path / "keys.toml")
    async with running_stack(
        tmp_path, pools={"demo": POOL}, sections=sections(keys), router={"http": {"port": 0}}
    ) as stack:
        url = f"{base(stack)}/v1/completions"
        pool = stack.routers[0].pools["demo"]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {keys.acme}"}) as session:

            async def call(tokens: int) -> tuple[int, dict[str, str], str]:
                body = {"model": "demo", "prompt": "x", "max_tokens": tokens, "stream": stream, "ignore_eos": True}
                async with session.post(url, json=body) as reply:
                    text = await reply.text()
                while pool.releases.untold():
                    await pool._context.owner.wait_any(0.01)
                return reply.status, {name.lower(): value for name, value in reply.headers.items()}, text

            assert "penstock-budget" not in (await call(7))[1]
            assert (await call(3))[1]["penstock-budget"].startswith("cost_per_day; used=7; limit=10; renews=")
            status, headers, text = await call(1)
            assert 429 == status
            assert "has used 10 of its 10 cost per day" in text
            assert "false" == headers.get("x-should-retry", "false")


@pytest.mark.parametrize(
    "how",
    [{"store": False}, {"store": True}, {"stream": True}, {"background": True}, {"background": True, "stream": True}],
    ids=str,
)
async def test_responses_warn_by_the_same_header(tmp_path: Path, how: dict[str, Any]) -> None:
    keys = Keys(tmp_path / "keys.toml")
    async with running_stack(
        tmp_path, pools={"demo": POOL}, sections=sections(keys), router={"http": {"port": 0}}
    ) as stack:
        pool = stack.routers[0].pools["demo"]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {keys.acme}"}) as session:

            async def respond() -> tuple[int, str]:
                asked = {"model": "demo", "input": "x", "max_output_tokens": 1, **how}
                async with session.post(f"{base(stack)}/v1/responses", json=asked) as reply:
                    await reply.read()
                await until(lambda: not pool.active)
                while pool.releases.untold():
                    await pool._context.owner.wait_any(0.01)
                return reply.status, reply.headers.get("penstock-budget", "")

            for _ in range(9):
                status, warned = await respond()
                if warned:
                    break
            assert 200 == status
            assert warned.startswith("cost_per_day; used=")


async def test_a_batch_waits_for_the_next_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MAX_WAIT_S", 0.2)
    keys = Keys(tmp_path / "keys.toml")
    pools = {"demo": POOL}
    headers = {"Authorization": f"Bearer {keys.acme}"}
    async with (
        running_stack(tmp_path, pools=pools, sections=sections(keys), router={"http": {"port": 0}}) as stack,
        aiohttp.ClientSession(headers=headers) as session,
        AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=keys.admin, allow_plaintext_key=True) as admin,
    ):
        pool, url = stack.routers[0].pools["demo"], f"{base(stack)}/v1"
        await stack.inference().Generate(request(max_tokens=10, ignore_eos=True), metadata=bearer(keys.acme))
        while pool.releases.untold():
            await pool._context.owner.wait_any(0.01)
        body = {"model": "demo", "prompt": "x", "max_tokens": 1}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", aiohttp.payload.JsonPayload(line), filename="in.jsonl")
        async with session.post(f"{url}/files", data=form) as reply:
            asked = {"input_file_id": (await reply.json())["id"], "endpoint": "/v1/completions"}
        async with session.post(f"{url}/batches", json={**asked, "completion_window": "24h"}) as reply:
            assert (200, None) == (reply.status, reply.headers.get("penstock-budget"))
            begun = await reply.json()

        async def batch() -> dict[str, Any]:
            async with session.get(f"{url}/batches/{begun['id']}") as reply:
                return dict(await reply.json())

        feeder = stack.routers[0]._parts.jobs.feeder
        await until(lambda: feeder.runs == 1)
        assert {"total": 1, "completed": 0, "failed": 0} == (await batch())["request_counts"]
        await admin.edit_registry([RegistryEdit("tenant", "acme", {"quota": {"cost_per_day": 20.0}})])

        async def done() -> bool:
            return (await batch())["status"] == "completed"

        await until(done)
        assert {"total": 1, "completed": 1, "failed": 0} == (await batch())["request_counts"]
