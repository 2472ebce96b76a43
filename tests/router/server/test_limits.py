"""Quotas, bounded lines and the two time limits, as clients meet them at two routers."""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgpack
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cluster.autoscaler.router_report import unpack_report
from cluster.queue.entries import Mail
from cluster.queue.redis.scripts import load_constants
from cluster.redis.keys import pool_key
from router.dispatch.positions import LEAST_S
from tests.router.dispatch.streams import move_on, stand
from tests.router.dispatch.test_queue_away import SteppedClock
from tests.support.stack import Stack, collect, request, running_stack, stream_request
from tests.support.waiting import until


async def refused(call: Any) -> tuple[grpc.StatusCode, dict[str, Any]]:
    """Return the code of a call that must fail, and its details by type."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    status = rpc_status.from_call(error.value)
    assert status is not None
    found: dict[str, Any] = {}
    for packed in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.QuotaFailure, error_details_pb2.RetryInfo):
            if packed.Is(kind.DESCRIPTOR):
                found[kind.__name__] = kind.FromString(packed.value)
    return error.value.code(), found


def scraped(port: int, name: str) -> tuple[str, float]:
    """Read the count of a router's histogram."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        text = reply.read().decode()
    return text, float(re.findall(rf"^penstock_router_{name}_count.* ([0-9.e+]+)$", text, re.MULTILINE)[0])


def _granted_ever(stack: Stack) -> int:
    """Count the grants of the pool."""
    first = int(load_constants()["P_GRANTED"]) - 1
    record = msgpack.unpackb(stack.store.execute("GET", pool_key("demo", "pool")), raw=True)
    return sum(record[first : first + 3])


def tenant(**quota: Any) -> dict[str, Any]:
    return {"default_tenant": {"quota": quota}}


async def test_a_quota_holds_over_both_routers_and_says_when_to_come_back(tmp_path: Path, store_url: str) -> None:
    async with running_stack(tmp_path, redis_url=store_url, routers=2, sections=tenant(requests_per_minute=4)) as stack:
        for i in range(4):
            await stack.inference(i % 2).Generate(request(max_tokens=2))
        code, details = await refused(stack.inference(1).Generate(request(max_tokens=2)))

        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details["ErrorInfo"].reason == "QUOTA_EXCEEDED"
        assert dict(details["ErrorInfo"].metadata) == {"pool": "demo", "quota": "requests_per_minute", "limit": "4"}
        assert details["QuotaFailure"].violations[0].subject == "tenant:anonymous/pool:demo"
        assert 0 < details["RetryInfo"].retry_delay.ToTimedelta().total_seconds() <= 15


@pytest.mark.parametrize("key", ["", "key"])
@pytest.mark.parametrize(
    "quota",
    [
        {"concurrency": 2},
        {"requests_per_minute": 2},
        {"tokens_per_minute": 120, "mode": "strict"},
    ],
    ids=lambda quota: "-".join(map(str, quota.values())),
)
async def test_more_choices_than_a_quota_ever_allows_are_not_told_to_come_back(
    tmp_path: Path, quota: dict[str, Any], key: str
) -> None:
    """Each alone would be; a job would ask again until it expires."""
    async with running_stack(tmp_path, sections=tenant(**quota)) as stack:
        wanted = request("Hi", max_tokens=40, n=3)
        wanted.idempotency_key = key
        code, details = await refused(stack.inference().Generate(wanted))

        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details["ErrorInfo"].metadata["quota"] == next(iter(quota))
        assert "RetryInfo" not in details


@pytest.mark.parametrize(
    "quota",
    [{"requests_per_minute": 4}, {"tokens_per_minute": 150, "mode": "strict"}, {"tokens_per_minute": 100}],
    ids=lambda quota: "-".join(map(str, quota.values())),
)
async def test_several_choices_get_in_together_at_the_time_that_they_are_told(
    tmp_path: Path, quota: dict[str, Any]
) -> None:
    """One by one, the first would use up what has come back meanwhile, time and again, and be served for nothing."""
    async with running_stack(tmp_path, sections=tenant(**quota)) as stack:
        clock = stack.store.clock = SteppedClock()
        wanted = request("Hi", max_tokens=40, ignore_eos=True, n=3)
        assert 3 == len((await stack.inference().Generate(wanted)).choices)
        await until(lambda: stack.replicas[0].table.sequences == 0)

        _, details = await refused(stack.inference().Generate(wanted))
        assert 3 == _granted_ever(stack)
        clock.ahead_ms += 1 + int(1000 * details["RetryInfo"].retry_delay.ToTimedelta().total_seconds())
        assert 3 == len((await stack.inference().Generate(wanted)).choices)


async def test_only_what_more_replicas_would_serve_is_demand(tmp_path: Path, store_url: str) -> None:
    async with running_stack(tmp_path, redis_url=store_url, sections=tenant(requests_per_minute=2)) as stack:
        wanted = request(max_tokens=2)
        wanted.idempotency_key = "key"
        for _ in range(3):
            # Once it runs, then its result is kept.
            await stack.inference().Generate(wanted)
        await stack.inference().Generate(request(max_tokens=2))
        for _ in range(5):
            code, details = await refused(stack.inference().Generate(request(max_tokens=2)))
            assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")

        counts = unpack_report(stack.routers[0].pools["demo"].admission.demand.report()).counts
        assert 2 == sum(each.requests for each in counts.values())


async def test_concurrency_is_free_again_after_each_way_to_end(tmp_path: Path, store_url: str) -> None:
    sections = tenant(concurrency=2)
    async with running_stack(
        tmp_path, redis_url=store_url, routers=2, sections=sections, sim={"base_ms": 5.0}
    ) as stack:
        running = [stack.inference(i).StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True)) for i in (0, 1)]
        for call in running:
            await call.read()
        code, details = await refused(stack.inference(0).Generate(request(max_tokens=2)))
        assert (code, details["ErrorInfo"].metadata["quota"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "concurrency")
        for call in running:
            call.cancel()
        await until(lambda: stack.replicas[0].table.sequences == 0)

        async def admitted() -> bool:
            """The other router's release may still be on its way to Redis."""
            try:
                await stack.inference(1).Generate(request(max_tokens=2))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                return False
            return True

        await until(admitted)
        for _ in range(6):
            await stack.inference(1).Generate(request(max_tokens=2))


async def test_a_full_line_is_refused_and_the_running_go_on(tmp_path: Path, store_url: str) -> None:
    queue = {"max_waiting_per_tenant": 3}
    async with running_stack(
        tmp_path, redis_url=store_url, routers=2, queue=queue, sim={"max_num_seqs": 1, "base_ms": 4.0}
    ) as stack:
        first = stack.inference(0).StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        await first.read()
        # It keeps its slot until the refusal.
        stand(stack)
        waiting = [stack.inference(i % 2).StreamGenerate(stream_request(max_tokens=2)) for i in range(3)]
        for call in waiting:
            await call.read()
        code, details = await refused(stack.inference(1).Generate(request(max_tokens=2)))
        move_on(stack)

        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert details["ErrorInfo"].metadata["tenant"] == "anonymous"
        assert "RetryInfo" in details
        for call in (first, *waiting):
            assert (await collect(call))[-1].HasField("finished")


@pytest.mark.parametrize(("n", "reason"), [(2, "QUEUE_FULL"), (1, "NOT_IN_TIME")])
async def test_what_is_refused_for_want_of_room_counts_for_no_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, reason: str
) -> None:
    """Also where it was let in at first: a choice after the first finds no room, or the wait would be too long."""
    sections = tenant(requests_per_minute=3)
    queue = {"max_waiting_per_tenant": 1}
    async with running_stack(tmp_path, queue=queue, sections=sections, sim={"max_num_seqs": 1}) as stack:
        running = stack.inference().StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True))
        await running.read()
        pool = stack.routers[0].pools["demo"]
        monkeypatch.setattr(pool.admission, "wait_s", lambda _choice: 60.0)
        asked = request(max_tokens=2, n=n)
        asked.queue_timeout.FromSeconds(30)
        for _ in range(5):
            _, details = await refused(stack.inference().Generate(asked))
            assert reason == details["ErrorInfo"].reason
            await until(lambda: not len(pool.releases))
        running.cancel()


async def test_what_would_start_too_late_is_refused_at_once(tmp_path: Path, store_url: str) -> None:
    """Once the pool's rate is known, a queue_timeout below the estimated wait is refused with the time to come back."""
    async with running_stack(
        tmp_path, redis_url=store_url, routers=2, sim={"max_num_seqs": 1, "base_ms": 4.0}
    ) as stack:
        crowd = [
            asyncio.ensure_future(stack.inference(i % 2).Generate(request(max_tokens=50, ignore_eos=True)))
            for i in range(60)
        ]
        estimate = stack.routers[0].pools["demo"].admission.estimate
        await until(lambda: (estimate.wait_s(1, 40) or 0) > 1.0 and any(one.done() for one in crowd))
        hasty = request(max_tokens=50, ignore_eos=True)
        hasty.queue_timeout.CopyFrom(Duration(nanos=200_000_000))
        code, details = await refused(stack.inference(0).Generate(hasty))

        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "NOT_IN_TIME")
        assert details["ErrorInfo"].metadata["bound"] == "queue_timeout"
        assert details["RetryInfo"].retry_delay.ToTimedelta().total_seconds() > 0
        # Its answer comes in time on a busy machine, too.
        estimate.ran(10, 50, 0.1, 1000.0)
        late = request(max_tokens=50, ignore_eos=True)
        code, details = await refused(stack.inference(0).Generate(late, timeout=8.0))
        assert details["ErrorInfo"].metadata["bound"] == "deadline"
        for one in crowd:
            one.cancel()


async def test_what_cannot_end_in_time_is_not_started(tmp_path: Path, store_url: str) -> None:
    async with running_stack(tmp_path, redis_url=store_url, sim={"base_ms": 10.0}) as stack:
        # So slow that the answer comes in time on a busy machine, too.
        stack.routers[0].pools["demo"].admission.estimate.ran(10, 100, 0.1, 1000.0)
        late = request(max_tokens=100, ignore_eos=True)
        code, details = await refused(stack.inference().Generate(late, timeout=8.0))
        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "NOT_IN_TIME")
        assert stack.replicas[0].table.sequences == 0


async def test_an_expired_request_is_never_dispatched(tmp_path: Path, store_url: str) -> None:
    async with running_stack(
        tmp_path, redis_url=store_url, routers=2, sim={"max_num_seqs": 1, "base_ms": 4.0}
    ) as stack:
        first = stack.inference(0).StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True))
        await first.read()
        late = request(max_tokens=2)
        late.queue_timeout.CopyFrom(Duration(nanos=300_000_000))
        code, details = await refused(stack.inference(1).Generate(late))
        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "QUEUE_TIMEOUT")
        assert "0.300" == details["ErrorInfo"].metadata["limit_s"]
        assert stack.replicas[0].table.sequences == 1
        first.cancel()


@pytest.mark.alone
async def test_waiting_clients_hear_an_eta_that_comes_true(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The estimate is compared with the wait, here and in the metric."""
    async with running_stack(tmp_path, routers=2, sim={"max_num_seqs": 2, "base_ms": 4.0}) as stack:

        async def one(i: int) -> tuple[list[tuple[float, float]], float, float]:
            loop = asyncio.get_running_loop()
            called = loop.time()
            call = stack.inference(i % 2).StreamGenerate(stream_request(f"{i}", max_tokens=50, ignore_eos=True))
            etas: list[tuple[float, float]] = []
            while not (event := await call.read()).HasField("started"):
                if event.queued.HasField("eta"):
                    etas.append((loop.time(), event.queued.eta.ToTimedelta().total_seconds()))
            started = loop.time()
            await collect(call)
            return etas, started, started - called

        results = await asyncio.gather(*(one(i) for i in range(60)))

        errors = [
            abs(started - (at + eta)) / max(0.5, started - at) for etas, started, _ in results for at, eta in etas
        ]
        assert len(errors) > 20
        median = sorted(errors)[len(errors) // 2]
        record_property("median_relative_eta_error", round(median, 3))
        sys.stdout.write(f"ETA: median relative error {median:.2f} over {len(errors)} events\n")
        assert median < 0.5
        _buckets, metric = await asyncio.to_thread(scraped, stack.routers[0].metrics_port, "eta_error_seconds")
        assert metric > 0
        # Events come about once a second. An event that is read late is nearer to the next one, so they are counted.
        assert all(len(etas) <= 1 + waited / LEAST_S for etas, _, waited in results)


async def test_a_refusal_is_one_call_of_the_queue(tmp_path: Path) -> None:
    """What was never in line is not withdrawn from it: refusals are many just when the pool is busiest."""
    async with running_stack(tmp_path, queue={"max_waiting_per_tenant": 1}, sim={"max_num_seqs": 1}) as stack:
        running = stack.inference().StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True))
        await until(lambda: stack.replicas[0].table.sequences == 1)
        waiting = stack.inference().StreamGenerate(stream_request(max_tokens=5000, ignore_eos=True))
        await waiting.read()
        queue, left = stack.routers[0].pools["demo"]._context.queue, []
        withdraw = queue.withdraw

        async def counted(*arguments: Any, **named: Any) -> Mail:
            left.append(arguments)
            return await withdraw(*arguments, **named)

        queue.withdraw = counted  # type: ignore[method-assign]
        code, details = await refused(stack.inference().Generate(request(max_tokens=2)))
        assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        # The one that waits is withdrawn once, and gets no place that the other one leaves.
        waiting.cancel()
        await until(lambda: len(left) > 0)
        running.cancel()
        await until(lambda: stack.routers[0].pools["demo"].active == 0)
        assert 1 == len(left)
