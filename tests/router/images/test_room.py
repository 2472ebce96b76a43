"""Images that a router holds are bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.errors import UnavailableError
from deployments.engines.sim.engine import SimEngine
from penstock.v1 import inference_pb2 as api
from router.images.room import ImageRoom
from tests.router.dispatch.streams import SIM, move_on, read_until_held
from tests.router.images.test_generate import ask, chat, view
from tests.router.inference.test_bad_input import failure
from tests.support.stack import collect, running_stack
from tests.support.waiting import until


def test_room_that_is_given_back_can_be_taken_again() -> None:
    room = ImageRoom(100)
    give_back = room.take(60)
    with pytest.raises(UnavailableError, match="max_images_mb"):
        room.take(41)
    room.take(40)
    for _ in range(2):
        give_back()
    room.take(60)
    assert 100 == room.held


def test_an_empty_room_takes_one_request_of_any_size() -> None:
    room = ImageRoom(100)
    give_back = room.take(1_000)
    with pytest.raises(UnavailableError):
        room.take(1)
    room.take(0)
    give_back()
    assert 0 == room.held


@pytest.mark.asyncio
async def test_a_router_that_holds_many_images_refuses_more_until_a_request_ends(tmp_path: Path) -> None:
    image = view()
    router = {"max_images_mb": 1.5 * len(image) / (1 << 20)}
    async with running_stack(tmp_path, sim=SIM, router=router) as stack:
        call = stack.inference().StreamGenerate(
            api.StreamGenerateRequest(generate=ask("Tell me of", image, max_tokens=200))
        )
        await read_until_held(stack, call, 5)
        code, reason, _violations = await failure(stack.inference().Generate(ask("And of", image)))
        assert (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE") == (code, reason)
        move_on(stack)
        await collect(call)

        async def taken() -> bool:
            try:
                await stack.inference().Generate(ask("And of", image))
            except grpc.aio.AioRpcError:
                return False
            return True

        await until(taken)


@pytest.mark.asyncio
async def test_a_request_whose_result_is_known_gives_its_room_back(tmp_path: Path) -> None:
    image = view()
    router = {"max_images_mb": 1.5 * len(image) / (1 << 20)}
    async with running_stack(tmp_path, router=router) as stack:
        keyed = ask("Tell me of", image)
        keyed.idempotency_key = "once"
        answers = [await stack.inference().Generate(keyed) for _ in range(3)]
        assert 1 == len({answer.request_id for answer in answers})
        await stack.inference().Generate(ask("And of", image))


@pytest.mark.asyncio
async def test_images_that_wait_for_their_tokens_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for a replica then, or for their tenant's turn, as many as there are callers."""
    expand, asked, goes_on = SimEngine.expand_images, asyncio.Event(), asyncio.Event()

    async def held(self: SimEngine, sizes: Any) -> list[tuple[int, ...]]:
        asked.set()
        await goes_on.wait()
        return await expand(self, sizes)

    monkeypatch.setattr(SimEngine, "expand_images", held)
    image = view()
    router = {"max_images_mb": 1.5 * len(image) / (1 << 20)}
    async with running_stack(tmp_path, router=router) as stack:
        first = stack.inference().Generate(ask("Tell me of", image))
        await asked.wait()
        count = api.CountTokensRequest(model="demo", prompt=chat("And of", image))
        for refused in (
            stack.inference().Generate(ask("And of", image)),
            stack.inference().CountTokens(count),
        ):
            code, _reason, _violations = await failure(refused)
            assert grpc.StatusCode.UNAVAILABLE == code
        goes_on.set()
        assert (await first).choices
        assert (await stack.inference().CountTokens(count)).tokens
