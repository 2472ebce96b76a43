"""Requests that have missed what their class is promised, as clients meet them at two routers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.v1 import inference_pb2 as api
from router.generation.choice import Choice
from tests.support.stack import Stack, collect, running_stack, sim_pool, stream_request
from tests.support.waiting import until

TTFT_S = 0.3
LONG = {"max_tokens": 4000, "ignore_eos": True}


def pools(ttft_s: float) -> dict[str, Any]:
    sim = sim_pool(max_num_seqs=1, base_ms=2.0)
    return {"demo": {**sim, "slo": {"standard": {"ttft_p99_s": ttft_s}}}}


async def opened(stack: Stack, router: int, **sampling: Any) -> tuple[Any, api.StreamGenerateResponse, Choice]:
    """Open a stream; return it with the first that it says, and its choice."""
    before = set(stack.routers[router].pools["demo"].choices.values())
    call = stack.inference(router).StreamGenerate(stream_request(**sampling))
    said = await call.read()
    (choice,) = set(stack.routers[router].pools["demo"].choices.values()) - before
    return call, said, choice


async def order_of(calls: dict[str, Any]) -> list[str]:
    """Read streams to their ends; return which ended first."""
    order: list[str] = []

    async def follow(name: str, call: Any) -> None:
        await collect(call)
        order.append(name)

    await asyncio.gather(*(follow(name, call) for name, call in calls.items()))
    return order


@pytest.mark.parametrize(("late_last", "order"), [(True, ["new", "old"]), (False, ["old", "new"])])
async def test_who_can_still_be_in_time_goes_first(
    tmp_path: Path, store_url: str, late_last: bool, order: list[str]
) -> None:
    queue = {"late_last": late_last}
    async with running_stack(tmp_path, redis_url=store_url, routers=2, pools=pools(TTFT_S), queue=queue) as stack:
        first, _, _ = await opened(stack, 0, **LONG)
        old, said, waiting = await opened(stack, 0, max_tokens=2)
        assert (said.queued.position, waiting.entry.late_after_ms) == (0, 300 if late_last else 0)
        if late_last:
            await until(lambda: waiting.wait.late)
        # Nothing is promised to this one, so that it does not become late itself, however slow the machine is.
        promising = stack.routers[1].pools["demo"].admission.demand
        promising.point = type(promising.point)()
        new, said, _ = await opened(stack, 1, max_tokens=2)
        first.cancel()

        assert order == await order_of({"old": old, "new": new})


async def test_who_is_late_hears_of_a_longer_line_and_of_no_estimate(tmp_path: Path, store_url: str) -> None:
    async with running_stack(tmp_path, redis_url=store_url, routers=2, pools=pools(TTFT_S)) as stack:
        pool = stack.routers[0].pools["demo"]
        first, _, _ = await opened(stack, 0, **LONG)
        old, _, waiting = await opened(stack, 0, max_tokens=2)
        pool.admission.estimate.wait_s = lambda *_: 1.0  # type: ignore[method-assign]
        # On a slow machine it is late by now.
        assert (0, 1.0) == (waiting.wait.position, pool.admission.wait_s(waiting)) or waiting.wait.late
        await until(lambda: waiting.wait.late)
        assert pool.admission.wait_s(waiting) is None

        # Nothing is promised to these, so that they never become late themselves, however slow the machine is.
        promising = stack.routers[1].pools["demo"].admission.demand
        promising.point = type(promising.point)()
        others = [await opened(stack, 1, **LONG) for _ in range(3)]
        first.cancel()
        await until(lambda: waiting.wait.position == 2)
        for call, _, _ in others:
            call.cancel()
        assert (await collect(old))[-1].HasField("finished")


async def test_a_promise_that_changes_holds_for_those_who_come(tmp_path: Path) -> None:
    async with running_stack(tmp_path, pools=pools(10.0)) as stack:
        pool = stack.routers[0].pools["demo"]
        first, _, _ = await opened(stack, 0, **LONG)
        old, _, earlier = await opened(stack, 0, max_tokens=2)
        pool.admission.demand.point = type(pool.admission.demand.point)()
        new, _, later = await opened(stack, 0, max_tokens=2)

        assert (10_000, 0) == (earlier.entry.late_after_ms, later.entry.late_after_ms)
        first.cancel()
        assert ["old", "new"] == await order_of({"old": old, "new": new})
