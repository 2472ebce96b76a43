"""Tenants take turns at the threads that encode long prompts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.tokens.fair_turns import FairTurns
from tests.support.keys import Keys, bearer
from tests.support.stack import running_stack, stream_request


async def test_turns_go_round_the_tenants_and_each_has_its_own_order() -> None:
    turns, order = FairTurns(1), list[str]()

    async def work(name: str) -> None:
        async with turns.turn(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*map(work, ("a1", "a2", "a3", "a4", "b1", "b2", "c1")))

    assert ["a1", "a2", "b1", "c1", "a3", "b2", "a4"] == order


async def test_who_leaves_takes_no_place_along() -> None:
    """In line, with a place that has just come, and while the others are all gone."""
    turns, held = FairTurns(1), asyncio.Event()

    async def work(tenant: str) -> None:
        async with turns.turn(tenant):
            await held.wait()

    first, leaves, follows = (asyncio.ensure_future(work(tenant)) for tenant in "abc")
    await asyncio.sleep(0)
    first.cancel()
    # The first one's place goes to the second in the next turn of the loop, which finds it cancelled.
    asyncio.get_running_loop().call_soon(leaves.cancel)
    await asyncio.gather(first, leaves, return_exceptions=True)
    held.set()
    await follows
    async with asyncio.timeout(60), turns.turn("d"):
        pass
    assert not turns._lines


@pytest.mark.parametrize("job", ["count", "generate"])
async def test_the_long_prompts_of_one_tenant_hold_up_nobody_else(tmp_path: Path, job: str) -> None:
    keys = Keys(tmp_path / "keys.toml")
    async with running_stack(tmp_path, sections={"auth": {"keys_file": str(keys.path)}}) as stack:
        client = stack.inference()

        def count(key: str, words: int) -> asyncio.Future[api.CountTokensResponse]:
            prompt = types.Prompt(text="many words of text " * words)
            return asyncio.ensure_future(
                client.CountTokens(api.CountTokensRequest(model="demo", prompt=prompt), metadata=bearer(key))
            )

        await count(keys.acme, 1)
        crowd = [count(keys.acme, 20_000) for _ in range(30)]
        await crowd[0]
        if job == "count":
            assert (await count(keys.other, 1_000)).tokens > 2_000
        else:
            wanted = stream_request("words " * 400, max_tokens=2).generate
            assert 2 == (await client.Generate(wanted, metadata=bearer(keys.other))).usage.output_tokens

        assert sum(each.done() for each in crowd) < 15
        await asyncio.gather(*crowd)
