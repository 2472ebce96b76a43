"""`--json` of the commands that look at a cluster, over a real router; and where they say that a mistake is."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cluster.cli.main import main
from tests.support.stack import Stack, request, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
Captured = pytest.CaptureFixture[str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    pools = {"demo": {**sim_pool(), "price_per_gpu_hour": 2.5}, "other": sim_pool()}
    budget = {"tenants": {"acme": {"quota": {"cost_per_day": 5.0, "concurrency": 3}}}}
    async with running_stack(tmp_path_factory.mktemp("stack"), pools=pools, sections=budget) as running:
        await running.inference().Generate(request(max_tokens=2))
        yield running


async def run(stack: Stack, capsys: Captured, *words: str) -> tuple[int, str, str]:
    """Return a command's exit status, output and errors."""
    status = await asyncio.to_thread(main, [*words, "--target", f"127.0.0.1:{stack.routers[0].port}"])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize(
    "words",
    [
        ("status",), ("explain",), ("usage",), ("usage", "--costs"), ("operating-point", "--pool", "demo"),
        ("decisions", "--pool", "demo"), ("get",), ("history",), ("announce", "demo"), ("rollout", "demo"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_it_is_json_whatever_the_cluster_has(stack: Stack, capsys: Captured, words: tuple[str, ...]) -> None:
    status, out, said = await run(stack, capsys, *words, "--json")
    assert (0, "") == (status, said)
    json.loads(out)


async def test_times_and_words_can_be_read(stack: Stack, capsys: Captured) -> None:
    pools: list[dict[str, Any]] = json.loads((await run(stack, capsys, "status", "--json"))[1])["pools"]
    [budget] = next(each for each in pools if each["name"] == "demo")["budgets"]
    renews = datetime.datetime.fromisoformat(budget["renews"])
    assert (0, 0) == (renews.hour, renews.minute)
    records: list[dict[str, Any]] = []

    async def told() -> bool:
        # The router writes records a moment after the request.
        records[:] = json.loads((await run(stack, capsys, "explain", "--json"))[1])
        return bool(records)

    await until(told)
    assert ["standard"] == [each["request_class"] for each in records]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("decisions",), "--pool: is required, one of demo, other"),
        (("operating-point",), "--pool: is required, one of demo, other"),
        (("operating-point", "--pool", "gone"), "--pool: 'gone' is none of demo, other"),
        (("usage", "--pool", "gone"), "--pool: 'gone' is none of demo, other"),
        (("explain", "--pool", "gone"), "--pool: 'gone' is none of demo, other"),
        (("rollout",), "POOL: is required, one of demo, other"),
        (("announce", "gone"), "POOL: 'gone' is none of demo, other"),
        (("explain", "gone"), "no record of an ended request 'gone'"),
    ],
    ids=" ".join,
)
async def test_a_mistake_is_said_to_be_where_it_was_written(
    stack: Stack, capsys: Captured, words: tuple[str, ...], said: str
) -> None:
    status, out, error = await run(stack, capsys, *words)
    assert status > 0
    assert "" == out
    assert said in error
