"""Links of a router: which ones it has, many streams on one, and a router that has none."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from cluster.errors import LinkError
from cluster.trust.tls import LinkDialer
from penstock.v1 import admin_pb2 as admin
from penstock.v1 import types_pb2 as types
from router.links.replicas import ReplicaSet
from tests.support.flaky import Relay
from tests.support.stack import SECRET, collect, first_tokens, ids_of, request, running_stack, stream_request
from tests.support.waiting import until


async def test_whom_the_registry_does_not_know_is_not_hung_up_on_while_it_is_dialled(tmp_path: Path) -> None:
    """As after a restart of the store: a client that comes back names its replica before that has reported again."""
    async with running_stack(tmp_path, routers=0) as stack:
        replica = stack.replicas[0]
        relay = Relay(replica.address)
        address = await relay.start()
        relay.cut()
        replicas = ReplicaSet(
            "demo", "router-x", SECRET, LinkDialer(None), ping_s=1.0, attach_grace_s=30.0, on_change=int
        )
        reaching = asyncio.create_task(replicas.reach(replica.plan.replica_id, address, 20.0))
        await until(lambda: bool(replicas._links))
        replicas.update([])
        relay.mend()
        link = await reaching
        assert link is not None
        assert link.up
        await replicas.close()
        await relay.close()


async def test_routers_that_stop_leave_no_link_behind(tmp_path: Path) -> None:
    """Heartbeats on their way when a router stops must not dial again."""
    async with running_stack(tmp_path, routers=8, replicas=2, queue={"heartbeat_s": 0.05}) as stack:
        await asyncio.gather(*(router.stop(drain_s=1.0) for router in stack.routers))
        left = [task for task in asyncio.all_tasks() if "ReplicaLink" in repr(task.get_coro())]
        assert left == []


@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_two_thousand_streams_at_once_all_end_well(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"max_num_seqs": 512, "time_scale": 0.0}) as stack:

        async def one(number: int) -> types.FinishReason.ValueType:
            events = await collect(
                stack.inference(number % 2).StreamGenerate(stream_request(f"{number}", max_tokens=3))
            )
            return events[-1].finished.choices[0].finish_reason

        reasons = await asyncio.gather(*(one(number) for number in range(2_000)))
        assert {types.FINISH_REASON_LENGTH, types.FINISH_REASON_STOP} >= set(reasons)
        await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_a_router_that_reaches_no_replica_says_so_and_the_other_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests would wait in a line that nobody serves."""
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 1.0}) as stack:
        replicas = stack.routers[0].pools["demo"].replicas
        await stack.inference(0).Generate(request(max_tokens=2))
        (link,) = replicas._links.values()
        await link._owner.close()
        link._set_up(False)
        await until(lambda: replicas.cut_off_s(time.monotonic()) > 2.0)

        async def says_so() -> bool:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stack.inference(0).Generate(request(max_tokens=2), timeout=5)
            said = str(caught.value.details())
            return "'demo': this router has reached none of the pool's replicas (1) for" in said and (
                caught.value.code() is grpc.StatusCode.UNAVAILABLE
            )

        # Where the replica lost its lease on a busy machine, the time begins again.
        await until(says_so, 60)
        link.down_because = "no route"
        (pool,) = (await stack.admin(0).GetClusterStatus(admin.GetClusterStatusRequest())).pools
        assert [(False, "no route")] == [(each.linked, each.link_error) for each in pool.replicas]
        assert 2 == (await stack.inference(1).Generate(request(max_tokens=2, ignore_eos=True))).usage.output_tokens

        monkeypatch.setattr(link, "up", True)
        await until(lambda: replicas.cut_off_s(time.monotonic()) == 0.0)
        monkeypatch.undo()


async def test_what_waits_at_a_router_that_is_cut_off_is_given_up_and_what_has_output_goes_on(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 5.0, "max_num_seqs": 1}) as stack:
        pool = stack.routers[0].pools["demo"]
        runs = stack.inference(0).StreamGenerate(stream_request(max_tokens=400, ignore_eos=True))
        began = await first_tokens(runs, 3)
        waits = stack.inference(0).StreamGenerate(stream_request("waits", max_tokens=2))
        await until(lambda: pool.active == 2)
        (link,) = pool.replicas._links.values()
        session, link._session = link._session, refuse  # type: ignore[method-assign]
        link._wire.break_off()  # type: ignore[union-attr]
        with pytest.raises(grpc.aio.AioRpcError, match="this router has reached none of the pool's replicas") as caught:
            await collect(waits)
        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        # The other router's client has its place.
        answer = await stack.inference(1).Generate(request("waits", max_tokens=2, ignore_eos=True))
        assert 2 == answer.usage.output_tokens
        link._session = session  # type: ignore[method-assign]
        assert 400 == len(ids_of(began + await collect(runs)))


async def refuse() -> None:
    """Fail to connect."""
    raise LinkError("no way")


async def test_replicas_that_are_gone_cut_nobody_off(tmp_path: Path) -> None:
    """Requests wait for the next one."""
    async with running_stack(tmp_path, sim={"base_ms": 1.0}) as stack:
        replicas = stack.routers[0].pools["demo"].replicas
        await stack.inference(0).Generate(request(max_tokens=2))
        await stack.kill_replica(0)
        await until(lambda: not replicas.records)
        assert 0.0 == replicas.cut_off_s(time.monotonic())
        call = stack.inference().StreamGenerate(stream_request(max_tokens=3, ignore_eos=True))
        assert (await call.read()).HasField("queued")
        await stack.add_replica()
        assert 3 == len(ids_of(await collect(call)))
