"""What a pool gives up for want of replicas, where it is acted on in the queue."""

from __future__ import annotations

import pytest

from cluster.autoscaler.store import Commit
from cluster.models import Windows
from cluster.queue.entries import Settlement
from cluster.queue.heartbeats import ReplicaBeat, RouterBeat
from penstock.models import ReplicaState, RequestClass
from penstock.values.steps import Relief
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.queue.backends import entry

ROOM = Windows(sequences=4, kv_tokens=10**6, prefill_tokens=10**6)


@pytest.mark.parametrize("backend", ["in-process", "redis-7.0"], indirect=True)
@pytest.mark.parametrize("relief", [Relief.LATENCY, Relief.PREEMPT_BATCH, Relief.SHED])
async def test_batch_work_loses_its_reserved_share_and_gets_it_back(backend: Backend, relief: Relief) -> None:
    store, queue = backend.store(), backend.queue()

    async def beat() -> None:
        await queue.heartbeat_replica(ReplicaBeat("r1", b"", ReplicaState.READY, ROOM, ()))
        await queue.heartbeat_router(RouterBeat("A", ("r1",)))

    for _ in range(8):
        await beat()
        backend.clock.advance(1)
    running = [await queue.submit("A", entry(f"i{n}", request_class=RequestClass.INTERACTIVE)) for n in range(4)]
    slots = [(f"i{n}", one.grant.attempt) for n, one in enumerate(running)]
    for n in range(30):
        await queue.submit("A", entry(f"j{n}", request_class=RequestClass.INTERACTIVE))
        await queue.submit("A", entry(f"b{n}", request_class=RequestClass.BATCH))

    async def serve(times: int) -> set[str]:
        """Let so many end, and say which classes came instead."""
        classes = set()
        for _ in range(times):
            name, attempt = slots.pop(0)
            mail = await queue.release("A", name, attempt, Settlement(10))
            slots.extend((grant.request_id, grant.attempt) for grant in mail.grants)
            classes |= {grant.request_id[0] for grant in mail.grants}
        return classes

    # A twentieth of the tokens is batch work's.
    await store.lead("a", 60)
    until_ms = (await queue.observe()).time_ms + 600_000
    await store.commit("a", 1, Commit(b"", 1, relief, until_ms, b"{}", 1))
    given_up = await serve(8)
    await store.commit("a", 1, Commit(b"", 1, Relief.NONE, until_ms, b"{}", 1))
    usual = await serve(8)

    assert ({"j", "b"} if relief is Relief.LATENCY else {"j"}) == given_up
    assert "b" in usual or relief is Relief.LATENCY
