"""Clients that do not read: what is kept for them is bounded, per stream and in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from cluster.errors import SlowReaderError
from penstock.v1 import inference_pb2 as api
from penstock.v1 import inference_pb2_grpc
from router.generation.slow_readers import WORTH_FOLLOWING, SlowReaders
from tests.router.dispatch.streams import error_of, move_on, stand
from tests.router.links.parts import newest_token
from tests.support.stack import Stack, collect, first_tokens, ids_of, running_stack, stream_request
from tests.support.waiting import until

KB = 1 << 10
HEAVY = {"max_tokens": 20_000, "ignore_eos": True, "logprobs": 20}
"""Output that is much for its number of tokens."""


@dataclass(eq=False)
class Reader:
    """Acts a choice with so much unread."""

    unread_bytes: int
    error: SlowReaderError | None = None
    entry: Any = field(default_factory=lambda: SimpleNamespace(request_id="r"))

    @property
    def output(self) -> Any:
        return SimpleNamespace(pending_bytes=self.unread_bytes)

    def stop_unread(self, error: SlowReaderError) -> None:
        self.error, self.unread_bytes = error, 0


def kept(*sizes: int, total: int = 1_000 * KB) -> tuple[list[Reader], SlowReaders]:
    readers = [Reader(size * KB) for size in sizes]
    choices: Any = {str(number): reader for number, reader in enumerate(readers)}
    return readers, SlowReaders(choices, 300 * KB, total)


def test_a_stream_with_more_than_one_may_keep_ends() -> None:
    readers, slow = kept(10, 301, 300)
    slow.look()
    assert [None, 300 * KB, None] == [reader.error and reader.error.limit_bytes for reader in readers]
    assert (1, 310 * KB) == (slow.stopped, slow.unread)


def test_of_too_much_in_all_the_largest_end() -> None:
    readers, slow = kept(200, 290, 100, 250, total=400 * KB)
    slow.look()
    assert [False, True, False, True] == [reader.error is not None for reader in readers]
    assert 300 * KB == slow.unread


def test_the_bound_on_all_holds_where_it_is_below_that_of_one() -> None:
    readers, slow = kept(50, 90, total=100 * KB)
    slow.look()
    assert [None, 100 * KB] == [reader.error and reader.error.limit_bytes for reader in readers]


def test_what_ended_unread_still_counts_until_its_call_is_gone() -> None:
    _readers, slow = kept(total=400 * KB)
    ended: list[Any] = [Reader(250 * KB), Reader(260 * KB), Reader(WORTH_FOLLOWING)]
    for reader in ended:
        slow.follow(reader)
    slow.look()
    assert [None, 400 * KB, None] == [reader.error and reader.error.limit_bytes for reader in ended]
    del ended[:]
    slow.look()
    assert 0 == slow.unread


@asynccontextmanager
async def unread(
    tmp_path: Path, streams: int, n: int = 1, **router: Any
) -> AsyncIterator[tuple[Stack, list[Any], list[api.StreamGenerateResponse]]]:
    """Open streams with much in them, over one channel, and read the first event of each only."""
    # A client's own gRPC would read ahead, by megabytes where the network is fast.
    options = (
        ("grpc.http2.lookahead_bytes", 64 * KB),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
    async with running_stack(tmp_path, sim={"base_ms": 3.0, "max_num_seqs": 4}, router=router) as stack:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{stack.routers[0].port}", options=options)
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [stub.StreamGenerate(stream_request(**HEAVY, n=n)) for _ in range(streams)]
        yield stack, calls, await asyncio.gather(*(call.read() for call in calls))
        await channel.close()


async def test_a_client_that_never_reads_is_ended_and_hears_it_when_it_reads(tmp_path: Path) -> None:
    """Its engine work is aborted long before its output is complete, and the neighbour notices nothing."""
    async with unread(tmp_path, 3, max_unread_mb=0.1) as (stack, calls, _firsts):
        slow = stack.routers[0].pools["demo"].slow_readers
        await until(lambda: slow.stopped == 3)
        await until(lambda: stack.replicas[0].table.sequences == 0)
        quick = await collect(stack.inference().StreamGenerate(stream_request(max_tokens=50, ignore_eos=True)))
        assert 50 == len(ids_of(quick))

        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await collect(call)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED is failed.value.code()
            assert "SLOW_READER" == error_of(failed.value)[0]
        assert 0 == slow.unread


async def test_output_that_a_call_leaves_unread_counts_after_another_call_took_over(tmp_path: Path) -> None:
    """Else a client that takes its own streams over and reads none fills the router's memory. The bound takes the
    output, and the call still says that its request goes on.
    """
    async with unread(tmp_path, 1) as (stack, (first,), begun):
        pool = stack.routers[0].pools["demo"]
        slow, (old,) = pool.slow_readers, pool.choices.values()
        await until(lambda: slow.unread > 100 * KB)
        stand(stack)
        wanted = stream_request(**HEAVY)
        wanted.resume.CopyFrom(api.Resume(resume_token=newest_token(begun), received_tokens=[0]))
        second = stack.inference().StreamGenerate(wanted)
        await first_tokens(second, old.tokens)
        await until(lambda: old not in pool.choices.values())
        slow.look()
        assert 100 * KB < old.output.pending_bytes <= slow.unread

        slow._per_stream = KB
        slow.look()
        assert 0 == old.output.pending_bytes
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await collect(first)
        assert "TAKEN_OVER" == error_of(failed.value)[0]
        second.cancel()
        move_on(stack)


async def test_a_failed_choice_ends_the_others_though_their_client_reads_nothing(tmp_path: Path) -> None:
    """The request can't become whole, and engines have better work than the rest of it."""
    async with unread(tmp_path, 1, n=2) as (stack, (call,), _firsts):
        pool = stack.routers[0].pools["demo"]
        await until(lambda: pool.slow_readers.unread > 64 * KB)
        next(iter(pool.choices.values())).stop_unread(SlowReaderError(64 * KB, 64 * KB))
        await until(lambda: pool.active == 0)
        assert 0 == stack.replicas[0].table.sequences

        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await collect(call)
        assert "SLOW_READER" == error_of(failed.value)[0]


async def test_a_client_that_hangs_up_while_a_write_waits_for_it_is_no_incident(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with unread(tmp_path, 2) as (stack, calls, _firsts):
        slow = stack.routers[0].pools["demo"].slow_readers
        await until(lambda: slow.unread > 64 * KB)
        for call in calls:
            call.cancel()
        await until(lambda: stack.replicas[0].table.sequences == 0)
        await until(lambda: stack.routers[0].pools["demo"].active == 0)
    assert [] == [record for record in caplog.records if record.message == "router.incident"]
