"""Responses over the end of connections and routers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from cluster.responses.contract import ResponseClaim, ResponseName
from router.http.responses.events import UNENDED
from router.http.responses.pieces import Piece, PieceKind, pack_pieces
from router.http.responses.stored import StoredRequest
from router.identity import ANONYMOUS
from router.server import Router
from tests.cluster.queue.backends import flush
from tests.cluster.queue.servers import Server
from tests.router.http.responses.conftest import HTTP, TOOL, call, pool_with_tools, sdk
from tests.router.links.parts import kill
from tests.support.keys import Keys
from tests.support.stack import Stack, request, running_stack
from tests.support.stores import USUAL
from tests.support.waiting import until

TOKENS = 300
ASK: dict[str, Any] = {
    "model": "demo",
    "input": "What is Penstock?",
    "max_output_tokens": TOKENS,
    "extra_body": {"ignore_eos": True, "seed": 7},
}


@pytest.fixture
def server(redis_servers: dict[str, Server]) -> Server:
    found = redis_servers[USUAL]
    flush(found)
    return found


@pytest_asyncio.fixture
async def stack(tmp_path: Path, server: Server) -> AsyncIterator[Stack]:
    """Two routers."""
    sim, queue = {"base_ms": 8.0, "max_num_seqs": 8}, {"attach_grace_s": 10.0}
    async with running_stack(tmp_path, router=HTTP, routers=2, redis_url=server.url, sim=sim, queue=queue) as running:
        yield running


async def whole(stack: Stack) -> str:
    """Return the text of an undisturbed response."""
    async with sdk(stack, 1) as client:
        return (await client.responses.create(**ASK, store=False)).output_text


async def murder(stack: Stack, number: int = 0) -> None:
    """End a router as SIGKILL would, with its connections and its responses."""
    router: Router = stack.routers[number]
    assert router.http is not None
    runs = router.http._runs
    # Nothing more is said to Redis.
    await runs.store.close()
    server = router.http._runner.server
    assert server is not None
    for connection in list(server.connections):
        if connection.transport is not None:
            connection.transport.abort()
    await runs._owner.close()
    await router.http._runner.cleanup()
    await kill(router)
    stack.routers.pop(number)


def said(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def read(events: Any, deltas: int) -> list[Any]:
    """Read some deltas."""
    found: list[Any] = []
    async for event in events:
        found.append(event)
        if sum(each.type == "response.output_text.delta" for each in found) == deltas:
            break
    return found


def response_id(events: list[Any]) -> str:
    return str(events[0].response.id)


async def rest(client: openai.AsyncOpenAI, events: list[Any]) -> list[Any]:
    """Read what follows after some events, as a client that comes back."""
    after = events[-1].sequence_number
    stream = await client.responses.retrieve(response_id(events), stream=True, starting_after=after)
    found = [event async for event in stream]
    assert all(event.sequence_number > after for event in found)
    return found


@pytest.mark.parametrize("background", [True, False])
async def test_a_response_goes_on_at_another_router_after_the_death_of_its_own(stack: Stack, background: bool) -> None:
    plain = await whole(stack)
    async with sdk(stack, 0) as client, sdk(stack, 1) as other:
        events = await read(await client.responses.create(**ASK, background=background, stream=True), 10)
        assert 0 < len(said(events)) < len(plain)

        await murder(stack)

        more = await rest(other, events)
        assert said(events) + said(more) == plain
        assert more[-1].type == "response.incomplete"
        assert more[-1].response.output_text == plain
        assert more[-1].response.usage.output_tokens == TOKENS
        assert await other.responses.retrieve(response_id(events)) == more[-1].response


@pytest.mark.parametrize("background", [True, False])
async def test_reasoning_and_calls_go_on_after_the_death_of_a_router(
    tmp_path: Path, server: Server, background: bool
) -> None:
    ask: dict[str, Any] = {"model": "demo", "input": "Hi", "tools": [TOOL], "stream": True, "background": background}
    pools, queue = {"demo": pool_with_tools(tmp_path, base_ms=15.0)}, {"attach_grace_s": 10.0}
    async with (
        running_stack(tmp_path, router=HTTP, routers=2, redis_url=server.url, pools=pools, queue=queue) as stack,
        sdk(stack, 0) as client,
        sdk(stack, 1) as other,
    ):
        events: list[Any] = []
        async for event in await client.responses.create(**ask):
            events.append(event)
            if event.type == "response.function_call_arguments.delta":
                break
        await murder(stack)
        events += await rest(other, events)
        assert events[-1].type == "response.completed"
        again = [e async for e in await other.responses.retrieve(response_id(events), stream=True)]
        assert written(events) == written(again)
        assert [item.type for item in events[-1].response.output] == [
            *("reasoning", "message", "function_call", "function_call")
        ]


def written(events: list[Any]) -> tuple[dict[int, str], list[tuple[str, int]]]:
    """Return what the deltas say by item, and the other events with their numbers."""
    texts: dict[int, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
    return texts, [(e.type, e.sequence_number) for e in events if not e.type.endswith(".delta")]


async def test_a_background_response_ends_although_its_router_dies_and_nobody_asks(stack: Stack) -> None:
    plain = await whole(stack)
    async with sdk(stack, 0) as client, sdk(stack, 1) as other:
        begun = await asyncio.gather(*(client.responses.create(**ASK, background=True) for _ in range(6)))
        await until(lambda: stack.replicas[0].table.sequences == 6)
        await murder(stack)

        async def has_ended(name: str) -> bool:
            return (await other.responses.retrieve(name)).status not in ("queued", "in_progress")

        for each in begun:
            await until(lambda each=each: has_ended(each.id))
            found = await other.responses.retrieve(each.id)
            assert (found.status, found.output_text) == ("incomplete", plain)
    await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_a_stream_that_was_cut_off_goes_on_at_any_router(stack: Stack) -> None:
    plain = await whole(stack)
    async with sdk(stack, 0) as client, sdk(stack, 1) as other:
        stream = await client.responses.create(**ASK, stream=True)
        events = await read(stream, 10)
        await stream.close()
        await asyncio.sleep(0.3)  # so that output comes in between; nothing is asserted about it
        again = await other.responses.retrieve(
            response_id(events), stream=True, starting_after=events[-1].sequence_number
        )
        events += await read(again, 5)
        await again.close()
        events += await rest(client, events)
        assert said(events) == plain
        assert events[-1].response.output_text == plain


async def test_readers_at_all_routers_are_told_the_same(stack: Stack) -> None:
    async with sdk(stack, 0) as client, sdk(stack, 1) as other:
        begun = await client.responses.create(**ASK, background=True)
        readers = [[event async for event in await each.responses.retrieve(begun.id, stream=True)] for each in ()]
        streams = [await each.responses.retrieve(begun.id, stream=True) for each in (client, other, client, other)]

        async def all_of(stream: Any) -> list[Any]:
            return [event async for event in stream]

        readers = await asyncio.gather(*map(all_of, streams))
        numbers = [[e.sequence_number for e in events if "delta" not in e.type] for events in readers]
        assert all(each == numbers[0] for each in numbers)
        assert len({said(events) for events in readers}) == 1
        assert len({events[-1].response.output_text for events in readers}) == 1


async def test_a_router_that_stops_leaves_its_responses_to_others(stack: Stack) -> None:
    plain = await whole(stack)
    async with sdk(stack, 0) as client, sdk(stack, 1) as other:
        begun = await client.responses.create(**ASK, background=True)
        await until(lambda: stack.replicas[0].table.sequences == 1)
        first = stack.routers.pop(0)
        await first.stop(drain_s=0.2)
        events = [event async for event in await other.responses.retrieve(begun.id, stream=True)]
        assert said(events) == plain


async def test_a_stream_that_nobody_comes_back_for_ends(tmp_path: Path, server: Server) -> None:
    sim, queue = {"base_ms": 8.0}, {"attach_grace_s": 0.5}
    async with (
        running_stack(tmp_path, router=HTTP, redis_url=server.url, sim=sim, queue=queue) as stack,
        sdk(stack) as client,
    ):
        stream = await client.responses.create(**{**ASK, "max_output_tokens": 4_000}, stream=True)
        events = await read(stream, 10)
        await stream.close()
        await until(lambda: stack.replicas[0].table.sequences == 0, 20)

        async def ended() -> bool:
            return (await client.responses.retrieve(response_id(events))).status == "cancelled"

        await until(ended)
        found = await client.responses.retrieve(response_id(events))
        assert found.output_text.startswith(said(events))


async def test_a_response_whose_output_is_lost_is_not_spliced(stack: Stack, tmp_path: Path) -> None:
    """Its router and its replica die together, and the next run says something else."""
    # Long, so that it is under way when they die, also on a busy machine.
    ask = {**ASK, "extra_body": {"ignore_eos": True}, "temperature": 1.0, "max_output_tokens": 3 * TOKENS}
    async with sdk(stack, 0) as client, sdk(stack, 1) as other:
        events = await read(await client.responses.create(**ask, background=True, stream=True), 10)
        await asyncio.gather(stack.kill_replica(0), murder(stack))
        await stack.add_replica()
        more = await rest(other, events)
        assert more[-1].type in ("response.failed", "response.incomplete")
        if more[-1].type == "response.failed":
            assert more[-1].response.error.message.startswith("the output that clients may have read is lost")
        else:
            assert more[-1].response.output_text == said(events) + said(more)


async def test_a_long_response_whose_output_is_lost_fails_with_all_that_readers_have(stack: Stack) -> None:
    """Its journal is longer than what one call of the store reads."""
    http = stack.routers[0].http
    assert http is not None
    store, name = http._runs.store, ResponseName(ANONYMOUS.tenant, f"resp_{'0' * 32}")
    generate = request()
    generate.idempotency_key = name.response_id
    base = {"id": name.response_id, "object": "response", "created_at": int(time.time()), "background": True, **UNENDED}
    claim = ResponseClaim(name, "token")
    assert await store.create(claim, StoredRequest(generate.SerializeToString(), base, [], "").packed(), leased=True)
    for number in range(600):
        chunk = pack_pieces([Piece(PieceKind.TEXT, f"{number} ")])
        assert await store.note(claim, 1, number, chunk, started=True)
    await store.release(claim)
    async with sdk(stack, 1) as client:
        events: list[Any] = [each async for each in await client.responses.retrieve(name.response_id, stream=True)]
    assert events[-1].type == "response.failed"
    assert events[-1].response.output[0].content[0].text == "".join(f"{number} " for number in range(600))
    assert said(events) == events[-1].response.output[0].content[0].text


async def test_other_tenants_know_nothing_of_a_response(tmp_path: Path, server: Server) -> None:
    keys = Keys(tmp_path / "keys.toml")
    sections = {"auth": {"keys_file": str(tmp_path / "keys.toml")}}
    async with running_stack(tmp_path, router=HTTP, redis_url=server.url, sections=sections) as stack:
        async with sdk(stack, key=keys.acme) as client:
            found = await client.responses.create(model="demo", input="Hi", max_output_tokens=2)
            assert await client.responses.retrieve(found.id) == found
        for path, method in (("", "GET"), ("", "DELETE"), ("/cancel", "POST"), ("/input_items", "GET")):
            headers = {"authorization": f"Bearer {keys.other}"}
            status, _, _ = await call(stack, method, f"/v1/responses/{found.id}{path}", headers=headers)
            assert status == 404
        async with sdk(stack, key=keys.other) as stranger:
            with pytest.raises(openai.BadRequestError, match="must name a stored response"):
                await stranger.responses.create(model="demo", input="Hi", previous_response_id=found.id)
