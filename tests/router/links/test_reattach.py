"""Links that break and come back: their streams go on, and what was told meanwhile is told again."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.dispatch.streams import SIM
from tests.router.links.parts import LONG, RelayedReplica, golden, read_until
from tests.support.stack import collect, first_tokens, ids_of, request_id_of, running_stack, stream_request
from tests.support.waiting import until


async def test_a_broken_link_is_reattached_and_the_client_notices_nothing(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, sim=SIM) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        expected = await golden(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 20)
        for _ in range(3):
            relay.cut()
            await until(lambda: stack.replicas[0].table.parked == 1)
            relay.mend()
            await until(lambda: stack.replicas[0].table.parked == 0)
        events.extend(await collect(call))

        assert expected == ids_of(events)
        assert events[-1].finished.receipt.exact
        assert 4 <= relay.connections
        await relay.close()


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_cancel_survives_a_broken_link(tmp_path: Path, cut: str) -> None:
    """Given while the link is down, or swallowed by the stream that breaks."""
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 5.0}) as stack:
        relay = await RelayedReplica().install(stack)
        await stack.add_router()
        call = stack.inference().StreamGenerate(stream_request(max_tokens=4_000, ignore_eos=True))
        request_id = request_id_of(await first_tokens(call, 1))
        if cut == "before":
            relay.cut()
            await until(lambda: stack.replicas[0].table.parked == 1)
        else:
            relay.freeze()
        await stack.inference().Cancel(api.CancelRequest(request_id=request_id))
        relay.cut()
        await until(lambda: stack.replicas[0].table.parked == 1)
        relay.mend()
        ended = (await collect(call))[-1].finished

        assert types.FINISH_REASON_CANCELLED == ended.choices[0].finish_reason
        assert ended.usage.output_tokens < 4_000
        await until(lambda: stack.replicas[0].table.sequences == 0)
        await relay.close()


async def test_a_silent_link_is_found_by_its_ping_and_replaced(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, sim={"base_ms": 2.0}) as stack:
        relay = await RelayedReplica().install(stack)
        object.__setattr__(stack.settings.router, "link_ping_s", 0.2)
        await stack.add_router()
        replicas = stack.routers[0].pools["demo"].replicas
        expected = await golden(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 20)
        # Its replica may have lost its lease for a moment.
        await until(lambda: replicas.link("demo-r0") is not None)
        link = replicas.link("demo-r0")
        assert link is not None
        relay.freeze()
        await until(lambda: not link.up)
        relay.cut()
        relay.mend()
        events.extend(await collect(call))

        assert expected == ids_of(events)
        await relay.close()


async def test_a_silent_replica_is_given_up_after_the_grace_although_it_is_connected(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, queue={"attach_grace_s": 0.4}, sim={"base_ms": 2.0}) as stack:
        relay = await RelayedReplica().install(stack)
        object.__setattr__(stack.settings.router, "link_ping_s", 0.2)
        await stack.add_router()
        await read_until(stack.inference().StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True)), 5)
        link = stack.routers[0].pools["demo"].replicas.link("demo-r0")
        assert link is not None
        assert 1 == link.busy
        relay.freeze()
        await until(lambda: link.busy == 0)
        await relay.close()


async def test_acknowledgements_wait_for_the_next_command_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_stack(tmp_path) as stack:
        table = stack.replicas[0].table
        await golden(stack, max_tokens=3)
        await until(lambda: table.retained == 0)
        monkeypatch.setattr("router.links.outbox.LEISURE_S", 3600.0)
        for _ in range(3):
            await golden(stack, max_tokens=3)
            # Each start takes the one before along.
            await until(lambda: table.retained == 1)
        (link,) = stack.routers[0].pools["demo"].replicas._links.values()
        await link.close()
        await until(lambda: table.retained == 0)
        assert 0 == table.orphans
