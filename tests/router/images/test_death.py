"""Output about an image survives deaths as any other output does."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.v1 import inference_pb2 as api
from tests.router.dispatch.streams import SIM, read_until_held, replica_of, resumed_of
from tests.router.images.test_generate import ask, view
from tests.router.links.parts import kill, newest_token, read_until
from tests.support.pictures import BLUE
from tests.support.stack import collect, ids_of, running_stack

pytestmark = pytest.mark.asyncio


async def test_another_replica_goes_on_with_the_same_image(tmp_path: Path) -> None:
    asked = api.StreamGenerateRequest(generate=ask("Tell me of", view(), "and of", view(BLUE), max_tokens=200))
    async with running_stack(tmp_path, replicas=2, sim=SIM) as stack:
        expected = await collect(stack.inference().StreamGenerate(asked))
        call = stack.inference().StreamGenerate(asked)
        events = await read_until_held(stack, call, 20)
        await stack.kill_replica(replica_of(stack, events))
        events += await collect(call)

        assert resumed_of(events)
        assert 200 == len(ids_of(events))
        assert ids_of(expected) == ids_of(events)


async def test_another_router_goes_on_for_a_client_that_sends_the_image_again(tmp_path: Path) -> None:
    asked = ask("Tell me of", view(), max_tokens=200)
    async with running_stack(tmp_path, routers=2, replicas=1, sim=SIM) as stack:
        expected = await collect(stack.inference().StreamGenerate(api.StreamGenerateRequest(generate=asked)))
        begun = await read_until(stack.inference(0).StreamGenerate(api.StreamGenerateRequest(generate=asked)), 20)
        await kill(stack.routers[0])
        received = len(ids_of(begun))
        resume = api.Resume(resume_token=newest_token(begun), received_tokens=[received])
        again = api.StreamGenerateRequest(generate=asked, resume=resume)
        rest = await collect(stack.inference(1).StreamGenerate(again))
        stack.routers.pop(0)
        assert ids_of(expected)[received:] == [token for event in rest for token in event.delta.token_ids]
