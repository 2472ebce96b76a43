"""GPU-seconds of receipts, idle time, starts, drains and losses add up to the replicas' time, whatever breaks."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.v1 import admin_pb2
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.links.parts import kill, newest_token, read_until
from tests.support.keys import Keys, bearer
from tests.support.stack import Stack, collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

GPUS = 2
PRICE = 3.6
"""Per GPU hour, so a thousandth per second."""
POOL = {**sim_pool(base_ms=8.0, max_num_seqs=3, start_s=0.5), "tensor_parallel_size": GPUS, "price_per_gpu_hour": PRICE}
QUEUE = {"preempt_after_s": 0.05, "preempt_quantum_s": 0.1}
KINDS = ("requests", "starting", "idle", "draining", "lost", "running", "standby")


async def totals(stack: Stack, router: int = 0, **metadata: Any) -> dict[str, float]:
    """Return GPU-seconds by kind, of all hours."""
    reply = await stack.admin(router).GetCosts(admin_pb2.GetCostsRequest(pool="demo"), **metadata)
    found = dict.fromkeys(("total", *KINDS), 0.0)
    for line in reply.lines:
        for kind in found:
            time_of = getattr(line, kind)
            found[kind] += time_of.gpu_seconds
            assert time_of.cost == pytest.approx(time_of.gpu_seconds * PRICE / 3600, abs=1e-9)
    return found


class Load:
    """Runs requests of all classes at both routers, and keeps the receipts of those that ended well."""

    def __init__(self, stack: Stack) -> None:
        self.receipts: list[types.Receipt] = []
        self._stack = stack
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, clients: int) -> None:
        self._tasks = [asyncio.create_task(self._run()) for _ in range(clients)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            number = next(self._numbers)
            body = request(f"Question {number % 7}", n=1 + number % 2, max_tokens=20 + number % 50, ignore_eos=True)
            body.request_class = 1 + number % 3
            reply: api.GenerateResponse = await self._stack.inference(number % 2).Generate(body, timeout=60)
            self.receipts.append(reply.receipt)
            if number % 4 == 0:
                # Some time without work.
                await asyncio.sleep(0.1)


async def test_all_gpu_time_is_accounted_for_under_deaths_preemption_and_scaling(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, replicas=2, pools={"demo": POOL}, queue=QUEUE) as stack:
        load = Load(stack)
        paid = 0.0
        load.begin(10)
        await until(lambda: len(load.receipts) > 30)

        third = await stack.add_replica()
        await until(lambda: len(load.receipts) > 80)

        # A death: what runs there is lost, and the receipts that follow are those of other attempts.
        dead = stack.replicas[0]
        await until(lambda: dead.table.sequences > 0)
        await stack.kill_replica(0)
        last_heard = dead._times.told
        assert last_heard is not None
        await until(lambda: dead.plan.replica_id not in stack.routers[0].pools["demo"].replicas.records)
        await until(lambda: len(load.receipts) > 150)

        # A replica that is stopped, and one that takes its place.
        await stack.replicas[1].stop(drain_s=60.0)
        await stack.add_replica()
        await until(lambda: len(load.receipts) > 220)
        await load.stop()
        await until(lambda: not any(replica.table.sequences for replica in stack.replicas[2:]))
        pools = [router.pools["demo"] for router in stack.routers]
        seen = [pool.beat for pool in pools]
        await until(
            lambda: all(pool.beat is not old and not pool.beat.running for pool, old in zip(pools, seen, strict=True))
        )
        await asyncio.gather(*(replica.stop(drain_s=1.0) for replica in stack.replicas[2:]))

        found = await totals(stack)
        usage = (await stack.admin().GetUsage(admin_pb2.GetUsageRequest())).lines
        lease_s = stack.settings.queue.lease_s
        paid = last_heard.total + GPUS * lease_s
        for replica in (stack.replicas[1], third, stack.replicas[3]):
            told = replica._times.told
            assert told is not None
            paid += told.total

    # What the replicas say is their time is what the ledger has, and it is explained to within 1 %.
    assert found["total"] == pytest.approx(paid, rel=0.001)
    assert sum(found[kind] for kind in KINDS) == pytest.approx(found["total"], rel=0.01)
    assert found["running"] == pytest.approx(0.0, abs=0.01 * found["total"])
    # Requests are what the tenants' lines have, and all receipts are in there. The rest belongs to requests that were
    # cancelled at the end.
    assert found["requests"] == pytest.approx(sum(line.gpu_seconds for line in usage))
    assert sum(receipt.gpu_seconds for receipt in load.receipts) <= found["requests"] * 1.0001
    # What the dead replica ran, and its lease, less what was settled after its last heartbeat.
    assert 0 < found["lost"] <= GPUS * (lease_s + 4.0)
    assert found["starting"] >= GPUS * 4 * 0.5
    assert min(found["idle"], found["draining"]) > 0
    preempted = [attempt for receipt in load.receipts for attempt in receipt.attempts[:-1]]
    assert preempted, "no attempt ended before its request"


async def test_a_routers_death_loses_only_what_nobody_goes_on_with(tmp_path: Path) -> None:
    """Four of its eight streams are resumed elsewhere, and the receipts of these have all their work."""
    pool = {**POOL, "sim": {"base_ms": 8.0, "per_token_us": 1.0, "max_num_seqs": 4}}
    async with running_stack(tmp_path, routers=2, replicas=2, pools={"demo": pool}) as stack:
        wanted = [stream_request(f"Question {n}", max_tokens=300, ignore_eos=True) for n in range(8)]
        calls = [stack.inference(0).StreamGenerate(body) for body in wanted]
        begun = await asyncio.gather(*(read_until(call, 40) for call in calls))
        # Waits, and has used nothing.
        waiting = stack.inference(0).StreamGenerate(stream_request(max_tokens=300, ignore_eos=True))
        await until(lambda: stack.routers[0]._inference.open_calls == 9)
        await kill(stack.routers[0])
        waiting.cancel()
        resumed = []
        for body, events in list(zip(wanted, begun, strict=True))[:4]:
            body.resume.resume_token = newest_token(events)
            body.resume.received_tokens.append(sum(len(event.delta.token_ids) for event in events))
            resumed.append(collect(stack.inference(1).StreamGenerate(body)))
        ended = [events[-1].finished.receipt for events in await asyncio.gather(*resumed)]
        # The others run on for the grace, and nobody comes for them.
        await until(lambda: not any(replica.table.sequences for replica in stack.replicas))
        stack.routers.pop(0)
        survivor = stack.routers[0].pools["demo"]
        await until(lambda: survivor.beat.running == 0)
        await asyncio.gather(*(replica.stop(drain_s=1.0) for replica in stack.replicas))
        found = await totals(stack, router=1)

    told = [replica._times.told for replica in stack.replicas]
    assert found["total"] == pytest.approx(sum(times.total for times in told if times is not None), rel=0.001)
    assert sum(found[kind] for kind in KINDS) == pytest.approx(found["total"], rel=0.01)
    assert found["running"] == pytest.approx(0.0, abs=0.01 * found["total"])
    # A receipt has what its first router got too; what runs out the grace at nobody's request is lost.
    assert found["requests"] == pytest.approx(sum(receipt.gpu_seconds for receipt in ended))
    assert found["lost"] > 0.5


async def test_costs_are_for_operators(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.toml")
    sections = {"auth": {"keys_file": str(keys.path)}}
    async with running_stack(tmp_path, pools={"demo": POOL}, sections=sections) as stack:
        await until(lambda: stack.replicas[0]._times.told is not None)
        assert (await totals(stack, metadata=bearer(keys.operator)))["starting"] >= GPUS * 0.5
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stack.admin().GetCosts(admin_pb2.GetCostsRequest(), metadata=bearer(keys.acme))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        days = admin_pb2.GetCostsRequest(first_day="2026-02-01", last_day="2026-01-01")
        with pytest.raises(grpc.aio.AioRpcError) as wrong:
            await stack.admin().GetCosts(days, metadata=bearer(keys.operator))
        assert wrong.value.code() is grpc.StatusCode.INVALID_ARGUMENT
