"""Routers and replicas share a queue: windows, waiting, positions, slow readers, several pools."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from penstock.v1 import admin_pb2
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.dispatch.streams import error_of, move_on, stand
from tests.support.stack import collect, ids_of, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until


async def test_two_routers_together_never_exceed_a_replicas_window(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, replicas=2, sim={"max_num_seqs": 3}) as stack:
        most = [0, 0]

        async def watch() -> None:
            while True:
                for number, replica in enumerate(stack.replicas):
                    most[number] = max(most[number], replica.table.sequences)
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        replies = await asyncio.gather(
            *(stack.inference(i % 2).Generate(request(f"{i}", max_tokens=5, ignore_eos=True)) for i in range(60))
        )
        watcher.cancel()

        assert {5} == {reply.usage.output_tokens for reply in replies}
        assert [3, 3] == most
        assert 2 == len({reply.receipt.attempts[0].replica_id for reply in replies})


async def test_a_waiting_client_hears_its_position_and_then_starts(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"max_num_seqs": 1, "base_ms": 3.0}) as stack:
        first = stack.inference(0).StreamGenerate(stream_request(max_tokens=100_000 // 10, ignore_eos=True))
        await first.read()
        waiting = [stack.inference(i % 2).StreamGenerate(stream_request(max_tokens=2)) for i in range(3)]
        positions = []
        for call in waiting:
            event = await call.read()
            assert event.queued.request_id
            assert event.queued.resume_token
            positions.append(event.queued.position)
        first.cancel()
        for call in waiting:
            events = await collect(call)
            assert "finished" == events[-1].WhichOneof("event")
            assert events[-1].finished.receipt.attempts[0].queue_time.ToTimedelta().total_seconds() > 0

        assert [0, 1, 2] == sorted(positions)


async def test_a_waiting_client_that_goes_away_leaves_the_line(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 3.0}) as stack:
        pool = stack.routers[0].pools["demo"]
        first = stack.inference().StreamGenerate(stream_request(max_tokens=10_000, ignore_eos=True))
        await first.read()
        second = stack.inference().StreamGenerate(stream_request(max_tokens=2))
        await second.read()
        await until(lambda: sum(pool.beat.waiting) == 1)
        second.cancel()
        await until(lambda: sum(pool.beat.waiting) == 0)
        first.cancel()
        await until(lambda: pool.beat.running == 0)


async def test_a_request_that_cannot_start_in_time_is_not_started(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 3.0}) as stack:
        first = stack.inference().StreamGenerate(stream_request(max_tokens=10_000, ignore_eos=True))
        await first.read()
        late = request(max_tokens=2)
        late.queue_timeout.CopyFrom(Duration(nanos=200_000_000))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.inference().Generate(late)
        assert grpc.StatusCode.DEADLINE_EXCEEDED is caught.value.code()
        assert 1 == stack.replicas[0].table.sequences
        first.cancel()


async def test_who_waits_until_the_deadline_is_out_of_reach_hears_of_the_deadline(tmp_path: Path) -> None:
    """The client set no queue timeout, and could not allow a longer one."""
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 3.0}) as stack:
        stack.routers[0].pools["demo"].admission.estimate.run_s = lambda *_: 60.0  # type: ignore[method-assign]
        first = stack.inference().StreamGenerate(stream_request(max_tokens=10_000, ignore_eos=True))
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.inference().Generate(request(max_tokens=2), timeout=60.5)
        assert grpc.StatusCode.DEADLINE_EXCEEDED is caught.value.code()
        reason, facts = error_of(caught.value)
        assert ("NOT_IN_TIME", "deadline") == (reason, facts["bound"])
        first.cancel()


async def test_a_new_replica_wakes_the_queue(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"max_num_seqs": 1, "base_ms": 3.0}) as stack:
        first = stack.inference().StreamGenerate(stream_request(max_tokens=10_000, ignore_eos=True))
        await first.read()
        second = stack.inference().StreamGenerate(stream_request(max_tokens=2))
        assert "queued" == (await second.read()).WhichOneof("event")
        await stack.add_replica()
        assert "demo-r1" == (await collect(second))[-1].finished.receipt.attempts[0].replica_id
        first.cancel()


async def test_the_live_batch_limit_moves_the_window_and_wakes_the_queue(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"max_num_seqs": 8, "base_ms": 3.0}) as stack:
        replica = stack.replicas[0]
        assert 1 == await replica.set_batch_limit(1)
        pool = stack.routers[0].pools["demo"]
        await until(lambda: pool.replicas.records["demo-r0"].windows.sequences == 1)
        calls = [stack.inference().StreamGenerate(stream_request(max_tokens=10_000, ignore_eos=True)) for _ in range(3)]
        await asyncio.gather(*(call.read() for call in calls))
        await until(lambda: replica.table.sequences == 1)
        await replica.set_batch_limit(3)
        await until(lambda: replica.table.sequences == 3)
        for call in calls:
            call.cancel()


async def test_a_draining_replica_finishes_what_it_has_and_gets_nothing_new(tmp_path: Path) -> None:
    async with running_stack(tmp_path, replicas=2, sim={"base_ms": 3.0}) as stack:
        # Until the drain has begun.
        stand(stack)
        calls = [stack.inference().StreamGenerate(stream_request(max_tokens=150, ignore_eos=True)) for _ in range(8)]
        await asyncio.gather(*(call.read() for call in calls))
        victim, other = sorted(stack.replicas, key=lambda each: -each.table.sequences)
        assert victim.table.sequences
        stopping = asyncio.create_task(victim.stop(drain_s=20.0))
        await until(lambda: victim.stopped)
        move_on(stack)
        results = await asyncio.gather(*(collect(call) for call in calls))
        await stopping

        assert {150} == {events[-1].finished.usage.output_tokens for events in results}
        later = await asyncio.gather(*(stack.inference().Generate(request(max_tokens=2)) for _ in range(6)))
        assert {other.plan.replica_id} == {reply.receipt.attempts[0].replica_id for reply in later}
        await until(lambda: victim.plan.replica_id not in stack.routers[0].pools["demo"].replicas.records)


async def test_a_slow_reader_gets_merged_deltas_and_holds_nobody_up(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={"base_ms": 0.5}) as stack:
        # Large log probabilities fill the transport's buffers quickly.
        heavy = {"max_tokens": 6_000, "ignore_eos": True, "logprobs": 20}
        slow = stack.inference().StreamGenerate(stream_request(**heavy))
        first = [await slow.read(), await slow.read()]
        quick = await collect(stack.inference().StreamGenerate(stream_request(max_tokens=50, ignore_eos=True)))
        assert 50 == len(ids_of(quick))
        # So much of it takes a busy machine long.
        await until(lambda: stack.replicas[0].table.sequences == 0, 60)
        events = first + await collect(slow)

        assert 6_000 == len(ids_of(events))
        assert sum(event.HasField("delta") for event in events) < 6_000


async def test_two_models_have_their_own_queues_and_replicas(tmp_path: Path) -> None:
    pools = {"one": sim_pool(max_num_seqs=1), "two": sim_pool(max_num_seqs=1)}
    async with running_stack(tmp_path, pools=pools) as stack:
        blocked = stack.inference().StreamGenerate(stream_request(model="one", max_tokens=10_000, ignore_eos=True))
        await blocked.read()
        reply = await stack.inference().Generate(request(model="two", max_tokens=4, ignore_eos=True))
        models = (await stack.inference().ListModels(api.ListModelsRequest())).models

        assert 4 == reply.usage.output_tokens
        assert ["one", "two"] == [model.name for model in models]
        blocked.cancel()


async def test_status_shows_pools_replicas_and_routers(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, replicas=2) as stack:
        await until(lambda: len(stack.routers[0].pools["demo"].beat.routers) == 2)
        status = await stack.admin().GetClusterStatus(admin_pb2.GetClusterStatusRequest())

        [pool] = status.pools
        assert pool.reachable
        assert {"demo-r0", "demo-r1"} == {replica.replica_id for replica in pool.replicas}
        assert all(replica.linked and replica.state == admin_pb2.REPLICA_STATE_READY for replica in pool.replicas)
        assert {router.router_id for router in stack.routers} == set(pool.router_ids)


def metrics_of(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        return reply.read().decode()


async def test_metrics_of_router_and_replica_count_what_happened(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        await stack.inference().Generate(request(max_tokens=7, ignore_eos=True))
        with pytest.raises(grpc.aio.AioRpcError):
            await stack.inference().Generate(request(temperature=9.0))
        router = await asyncio.to_thread(metrics_of, stack.routers[0].metrics_port)
        assert stack.replicas[0]._metrics_server is not None
        replica = await asyncio.to_thread(metrics_of, stack.replicas[0]._metrics_server.port)

        def value(text: str, start: str) -> float:
            return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(start, line))

        assert 7 == value(router, r'penstock_router_tokens_total\{kind="output"')
        assert 1 == value(router, "penstock_router_ttft_seconds_count")
        assert 1 == value(router, "penstock_router_inter_token_seconds_count")
        assert 1 == value(router, "penstock_router_queue_seconds_count")
        assert 1 == value(router, r"penstock_router_errors_total\{.*INVALID_REQUEST")
        assert "penstock_queue_waiting" in router
        # The warm-up's token counts too.
        assert 8 == value(replica, "penstock_replica_output_tokens_total")
        assert 1 == value(replica, "penstock_replica_prefill_seconds_count")
        for name in ("running", "kv_usage", "batch_limit", "steps_total", "cached_tokens_total"):
            assert f"penstock_replica_{name}" in replica


async def test_metrics_say_which_promises_were_kept(tmp_path: Path) -> None:
    slo = {"interactive": {"ttft_p99_s": 60.0}, "standard": {"ttft_p99_s": 0.001}, "attainment": 0.95}
    async with running_stack(tmp_path, pools={"demo": {**sim_pool(base_ms=5.0), "slo": slo}}) as stack:
        for request_class in (types.REQUEST_CLASS_INTERACTIVE, types.REQUEST_CLASS_STANDARD, types.REQUEST_CLASS_BATCH):
            asked = request(max_tokens=2, ignore_eos=True)
            asked.request_class = request_class
            await stack.inference().Generate(asked)
        text = await asyncio.to_thread(metrics_of, stack.routers[0].metrics_port)

    counts = re.findall(
        r'^penstock_router_slo_choices_total\{class="(\w+)",outcome="(\w+)",pool="demo"\} 1', text, re.M
    )
    assert [("interactive", "met"), ("standard", "ttft")] == sorted(counts)
    # Alerts compare with this; a class without an SLO has none.
    targets = re.findall(r'^penstock_router_slo_attainment\{class="(\w+)",pool="demo"\} (\S+)', text, re.M)
    assert [("interactive", "0.95"), ("standard", "0.95")] == sorted(targets)


async def test_prompts_and_outputs_never_reach_the_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = "xylophone-quince-7731"
    async with running_stack(tmp_path) as stack:
        reply = await stack.inference().Generate(request(secret, max_tokens=30, ignore_eos=True))
        with pytest.raises(grpc.aio.AioRpcError):
            await stack.inference().Generate(request(secret, temperature=9.0))
    logged = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "router.ready" in logged
    assert secret not in logged
    assert reply.choices[0].text not in logged
