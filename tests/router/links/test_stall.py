"""A replica or an engine that says nothing is left, and what it ran goes on elsewhere."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import EngineDeadError
from router.links.stream import open_stream
from tests.router.dispatch.streams import LONG, SIM, plain, read_until_resumed, replica_of, resumed_of
from tests.router.dispatch.test_lost_leases import lose_lease
from tests.router.links.parts import RelayedReplica, ends_of, read_until
from tests.support.stack import collect, ids_of, running_stack, stream_request
from tests.support.waiting import until


async def test_a_hung_engine_is_found_by_its_replica(tmp_path: Path) -> None:
    """No token, no step, no answer to an abort: the replica gives the engine up, and stays given up if it recovers."""
    async with running_stack(tmp_path, replicas=2, sim=SIM) as stack:
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        victim = stack.replicas[replica_of(stack, events)]
        engine: Any = victim._engine
        engine._stall_s = 0.3
        engine.wedge()
        events += await read_until_resumed(call)
        engine._moving.set()
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert events[-1].finished.receipt.exact
        assert 0 == victim.table.sequences
        with pytest.raises(Exception, match="no step"):
            await victim.check_health()


async def test_a_replica_that_stood_still_itself_does_not_give_its_engine_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop was blocked for longer than an engine may be without a step: the steps were only not counted."""
    back_at = float("inf")

    async def not_counted_yet() -> None:
        if 0 <= time.monotonic() - back_at < 0.05:
            raise EngineDeadError("no step for 2 s")

    # Router and replica share the loop that is blocked here.
    limits, queue = {"link_ping_s": 30.0}, {"lease_s": 10.0}
    async with running_stack(tmp_path, sim=SIM, queue=queue, router=limits) as stack:
        monkeypatch.setattr(stack.replicas[0]._engine, "check_health", not_counted_yet)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        time.sleep(2.0)  # noqa: ASYNC251 - it blocks the loop on purpose
        back_at = time.monotonic()
        events += await collect(call)

        assert 300 == len(ids_of(events))
        assert 1 == len(events[-1].finished.receipt.attempts)
        await until(lambda: time.monotonic() - back_at > 0.2)
        # It would raise what the replica's own look at its engine had found.
        await stack.replicas[0].check_health()


async def test_a_router_that_stood_still_itself_hears_the_welcome(tmp_path: Path) -> None:
    """The time limit of the opening was over when it went on, and the answer could not have been read yet."""
    async with running_stack(tmp_path, routers=0) as stack:
        asyncio.get_running_loop().call_soon(time.sleep, 1.2)
        stream = await open_stream(ends_of(stack.replicas[0].address), 1.0)
        stream.break_off()


async def test_silence_is_noticed_by_the_router_where_the_replica_does_not(tmp_path: Path) -> None:
    limits = {"token_timeout_s": 0.5, "first_token_timeout_s": 0.5, "link_ping_s": 0.2}
    async with running_stack(tmp_path, replicas=2, sim=SIM, router=limits) as stack:
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        victim = replica_of(stack, events)
        engine: Any = stack.replicas[victim]._engine
        engine._stall_s = math.inf
        engine.wedge()
        events += await read_until_resumed(call)
        # Nothing is sent there until it shows a sign of life: the answer to the abort.
        pool, name = stack.routers[0].pools["demo"], stack.replicas[victim].plan.replica_id
        assert name not in pool.replicas.connected()
        engine._moving.set()
        await until(lambda: name in pool.replicas.connected())
        await until(lambda: stack.replicas[victim].table.sequences == 0)
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert events[-1].finished.receipt.exact


async def test_a_stopped_replica_that_goes_on_is_fenced_and_told_to_stop(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT: the other replica goes on meanwhile; late tokens reach nobody."""
    queue = {"attach_grace_s": 60.0}
    async with running_stack(tmp_path, routers=0, sim=SIM, queue=queue, router={"link_ping_s": 0.2}) as stack:
        relay = await RelayedReplica().install(stack)
        stopped = stack.replicas[0]
        engine: Any = stopped._engine
        await stack.add_router()
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        other = await stack.add_replica()
        with pytest.MonkeyPatch.context() as patch:
            engine.wedge()
            relay.freeze()
            await lose_lease(stack, stopped, patch)
            events += await read_until_resumed(call)
            assert other.plan.replica_id == resumed_of(events)[0].replica_id
            assert 1 == stopped.table.sequences
        engine._moving.set()
        relay.mend()
        # Well within the minute that it would keep parked work.
        await until(lambda: stopped.table.sequences == 0)
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert 2 == len(events[-1].finished.receipt.attempts)
        await relay.close()
