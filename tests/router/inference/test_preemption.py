"""Batch work gives way to interactive work and goes on from its tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.support.stack import (
    Stack,
    collect,
    first_tokens,
    ids_of,
    request,
    request_id_of,
    running_stack,
    stream_request,
    text_of,
)

QUICK = {"preempt_after_s": 0.1, "preempt_quantum_s": 0.2}
LONG = 900
"""Tokens of a request that still runs when another one comes, also on a busy machine."""
SIM = {"base_ms": 5.0, "max_num_seqs": 1}


def of_class(kind: Any, tokens: int, prompt: str = "What is Penstock?", **sampling: Any) -> api.StreamGenerateRequest:
    wanted = stream_request(prompt, max_tokens=tokens, ignore_eos=True, **sampling)
    wanted.generate.request_class = kind
    return wanted


async def undisturbed(stack: Stack, wanted: api.StreamGenerateRequest) -> list[api.StreamGenerateResponse]:
    return await collect(stack.inference().StreamGenerate(wanted))


async def test_the_output_is_that_of_an_undisturbed_run(tmp_path: Path, store_url: str) -> None:
    await gives_way_unseen(tmp_path, store_url, {})


@pytest.mark.parametrize("sampling", [{"logprobs": 2}, {"stop": ["zzzz"]}, {"presence_penalty": 0.5}], ids=str)
async def test_so_it_is_with_every_kind_of_sampling(tmp_path: Path, sampling: dict[str, Any]) -> None:
    await gives_way_unseen(tmp_path, "", sampling)


async def gives_way_unseen(tmp_path: Path, store_url: str, sampling: dict[str, Any]) -> None:
    """Have a generation give way, and compare it with an undisturbed one."""
    async with running_stack(tmp_path, redis_url=store_url, routers=2, sim=SIM, queue=QUICK) as stack:
        wanted = of_class(types.REQUEST_CLASS_BATCH, LONG, **sampling)
        plain = await undisturbed(stack, wanted)

        batch = stack.inference(0).StreamGenerate(wanted)
        begun = await first_tokens(batch, 60)
        chat = await stack.inference(1).Generate(of_class(types.REQUEST_CLASS_INTERACTIVE, 5, "Hi").generate)
        events = [*begun, *(await collect(batch))]

        assert chat.usage.output_tokens == 5
        assert ids_of(events) == ids_of(plain)
        assert text_of(events) == text_of(plain)
        [resumed] = [event.resumed for event in events if event.HasField("resumed")]
        end = events[-1].finished
        assert 60 <= resumed.offset < LONG
        assert (resumed.exact, end.receipt.exact) == (True, True)
        assert (end.usage.output_tokens, end.choices[0].output_tokens) == (LONG, LONG)
        one, two = end.receipt.attempts
        assert one.output_tokens + two.output_tokens == LONG
        assert end.receipt.gpu_seconds == pytest.approx(one.gpu_seconds + two.gpu_seconds)
        if "logprobs" in sampling:
            assert sum(len(event.delta.logprobs) for event in events) == LONG


async def test_sampled_output_says_that_it_is_another_draw(tmp_path: Path, store_url: str) -> None:
    async with running_stack(tmp_path, redis_url=store_url, sim=SIM, queue=QUICK) as stack:
        batch = stack.inference().StreamGenerate(of_class(types.REQUEST_CLASS_BATCH, 500, temperature=1.0))
        begun = await first_tokens(batch, 60)
        await stack.inference().Generate(of_class(types.REQUEST_CLASS_INTERACTIVE, 5).generate)
        events = [*begun, *(await collect(batch))]

        assert len(ids_of(events)) == 500
        assert not events[-1].finished.receipt.exact


async def test_a_cancelled_request_does_not_come_back(tmp_path: Path, store_url: str) -> None:
    async with running_stack(tmp_path, redis_url=store_url, sim=SIM, queue=QUICK) as stack:
        batch = stack.inference().StreamGenerate(of_class(types.REQUEST_CLASS_BATCH, 5000))
        begun = await first_tokens(batch, 60)
        chat = stack.inference().StreamGenerate(of_class(types.REQUEST_CLASS_INTERACTIVE, 2000))
        while not (await chat.read()).HasField("delta"):
            pass
        # The batch request waits for its second slot.
        await stack.inference().Cancel(api.CancelRequest(request_id=request_id_of(begun)))
        events = await collect(batch)

        assert events[-1].finished.choices[0].finish_reason == types.FINISH_REASON_CANCELLED
        chat.cancel()


async def test_many_give_way_and_all_come_back(tmp_path: Path, store_url: str) -> None:
    """Four batch streams, a burst of chats, two routers: every stream is whole, and nobody gave way more than twice."""
    sim = {"base_ms": 4.0, "max_num_seqs": 4}
    async with running_stack(tmp_path, redis_url=store_url, routers=2, sim=sim, queue=QUICK) as stack:
        wanted = [of_class(types.REQUEST_CLASS_BATCH, 400, f"Item {i}") for i in range(4)]
        plain = [ids_of(events) for events in await asyncio.gather(*(undisturbed(stack, one) for one in wanted))]
        batch = [asyncio.ensure_future(_collected(stack, i % 2, one)) for i, one in enumerate(wanted)]
        for burst in range(3):
            await asyncio.sleep(0.3)  # time for the batch to have its quantum; nothing is asserted about it
            chats = [
                stack.inference(i % 2).Generate(of_class(types.REQUEST_CLASS_INTERACTIVE, 10, f"{burst}{i}").generate)
                for i in range(6)
            ]
            assert [reply.usage.output_tokens for reply in await asyncio.gather(*chats)] == [10] * 6
        done = await asyncio.gather(*batch)

        assert [ids_of(events) for events in done] == plain
        receipts = [events[-1].finished.receipt for events in done]
        # On a machine that stands still for a lease, attempts are lost too.
        kept = [sum(not each.lost_time.ToNanoseconds() for each in receipt.attempts) for receipt in receipts]
        assert max(kept) <= 3, receipts
        assert sum(kept) > 4


async def _collected(stack: Stack, router: int, wanted: api.StreamGenerateRequest) -> list[Any]:
    return await collect(stack.inference(router).StreamGenerate(wanted))


async def test_the_default_leaves_ordinary_traffic_alone(tmp_path: Path, store_url: str) -> None:
    async with running_stack(
        tmp_path, redis_url=store_url, sim={"base_ms": 5.0, "max_num_seqs": 1}, queue=QUICK
    ) as stack:
        first = asyncio.ensure_future(_collected(stack, 0, of_class(types.REQUEST_CLASS_STANDARD, 150)))
        chat = await stack.inference().Generate(request(max_tokens=2))
        assert chat.usage.output_tokens >= 1
        assert len((await first)[-1].finished.receipt.attempts) == 1
