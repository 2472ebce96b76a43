"""What an interrupted request used is in the ledger, wherever it ends: the same that its receipt says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.v1 import admin_pb2
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.generation.test_resume_state import of_group
from tests.router.inference.test_preemption import QUICK, of_class
from tests.support.stack import Stack, collect, first_tokens, ids_of, running_stack, sim_pool, stream_request
from tests.support.waiting import until

PRICES = {"price_per_million_output_tokens": 1e6, "price_per_million_prompt_tokens": 1e6}
POOL = {**sim_pool(base_ms=5.0, max_num_seqs=1), **PRICES}


async def ledger(stack: Stack) -> admin_pb2.UsageLine:
    lines = (await stack.admin().GetUsage(admin_pb2.GetUsageRequest())).lines
    return lines[0] if lines else admin_pb2.UsageLine()


async def gave_way(stack: Stack) -> tuple[Any, list[Any], Any]:
    """Return a batch stream that waits again, what it got, and the stream that it gave way to."""
    batch = stack.inference(0).StreamGenerate(of_class(types.REQUEST_CLASS_BATCH, 5000))
    events = await first_tokens(batch, 60)
    chat = stack.inference(0).StreamGenerate(of_class(types.REQUEST_CLASS_INTERACTIVE, 2000))
    while not (await chat.read()).HasField("delta"):
        pass
    return batch, events, chat


@pytest.mark.parametrize("router", [0, 1])
async def test_a_cancel_while_it_waits_again_is_charged_as_its_receipt_says(
    tmp_path: Path, store_url: str, router: int
) -> None:
    pools = {"demo": POOL}
    async with running_stack(tmp_path, redis_url=store_url, routers=2, pools=pools, queue=QUICK) as stack:
        batch, events, chat = await gave_way(stack)
        assert 0 == (await ledger(stack)).requests
        await stack.inference(router).Cancel(
            api.CancelRequest(request_id=events[0].queued.request_id or events[0].started.request_id)
        )
        end = (await collect(batch))[-1].finished
        await until(lambda: _requests(stack, 1))

        line = await ledger(stack)
        assert (end.usage.prompt_tokens, end.usage.output_tokens) == (line.prompt_tokens, line.output_tokens)
        assert end.usage.output_tokens >= len(ids_of(events)) > 0
        assert end.receipt.cost == pytest.approx(line.cost)
        assert end.receipt.gpu_seconds == pytest.approx(line.gpu_seconds)
        chat.cancel()


async def test_who_leaves_while_it_waits_again_pays_for_what_it_got(tmp_path: Path, store_url: str) -> None:
    async with running_stack(tmp_path, redis_url=store_url, pools={"demo": POOL}, queue=QUICK) as stack:
        batch, events, chat = await gave_way(stack)
        batch.cancel()
        await until(lambda: _requests(stack, 1))

        line = await ledger(stack)
        assert line.output_tokens >= len(ids_of(events)) > 0
        assert line.cost == pytest.approx(line.prompt_tokens + line.output_tokens)
        chat.cancel()


async def test_what_is_cancelled_before_it_ran_costs_nothing(tmp_path: Path) -> None:
    """Its receipt says so too, whatever its prompt would have cost."""
    async with running_stack(tmp_path, pools={"demo": POOL}) as stack:
        first = stack.inference().StreamGenerate(stream_request(max_tokens=5_000, ignore_eos=True))
        await first_tokens(first, 1)
        waits = stack.inference().StreamGenerate(stream_request(max_tokens=5_000))
        queued = await waits.read()
        await stack.inference().Cancel(api.CancelRequest(request_id=queued.queued.request_id))
        end = (await collect(waits))[-1].finished
        assert not end.receipt.attempts
        assert 0 == end.receipt.cost
        first.cancel()
        await until(lambda: _requests(stack, 1))


async def test_an_attempt_is_entered_once_where_no_other_follows(tmp_path: Path) -> None:
    """It gave way, was entered, and can't go on with the weights that are offered."""
    async with running_stack(tmp_path, pools={"demo": POOL}, queue=QUICK) as stack:
        batch, _, chat = await gave_way(stack)
        before = (await ledger(stack)).gpu_seconds
        await stack.add_replica(engine=of_group(1, context=4096))
        with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
            await collect(batch)
        await until(lambda: _requests(stack, 1))

        assert before > 0
        assert before == pytest.approx((await ledger(stack)).gpu_seconds)
        chat.cancel()


async def _requests(stack: Stack, number: int) -> bool:
    return (await ledger(stack)).requests == number
