"""Images on the way to a replica: what they become, and where they are in a prompt."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from cluster.image_files import pixels_of
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.links.ends import WireNews
from router.links.stream import ReplicaStream, open_stream
from tests.router.links.parts import ends_of
from tests.support.pictures import BLUE, RED, picture
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until


async def ask(stack: Stack, *sizes: tuple[int, int]) -> pb.LinkResponse:
    stream = await open_stream(ends_of(stack.replicas[0].address), 5.0)
    question = pb.ExpandImagesRequest(sizes=[pb.ImageSize(width=width, height=height) for width, height in sizes])
    try:
        return await stream.ask(pb.LinkRequest(commands=[pb.LinkCommand(expand_images=question)]))
    finally:
        stream.break_off()


class Router:
    """The end of a link that starts attempts and takes what comes of them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, Any] = {}
        self.refusals: dict[int, pb.Refusal] = {}

    async def start(self, sink: int, ids: list[int], images: list[pb.PromptImage]) -> None:
        stream = await open_stream(ends_of(self.stack.replicas[0].address), 5.0)
        stream.carry(WireNews(self._take, int, int))
        start = pb.Start(sink=sink, request_id=f"r{sink}", attempt="1", prompt_token_ids=ids, images=images)
        start.sampling.max_tokens, start.sampling.ignore_eos = 8, True
        stream.write([pb.LinkCommand(start=start)])
        await until(lambda: sink in self.ends or sink in self.refusals)
        stream.break_off()

    def _take(self, frame: pb.LinkResponse) -> None:
        ids = list(frame.token_ids)
        for sink, count in zip(frame.sinks, frame.token_counts, strict=True):
            taken, ids = ids[:count], ids[count:]
            self.tokens.setdefault(sink, []).extend(taken)
        self.ends.update({end.sink: end for end in frame.ends})
        self.refusals.update({each.sink: each for each in frame.refusals})


async def test_a_replica_says_what_images_become(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        model = stack.replicas[0].identity.model
        answer = (await ask(stack, (28, 28), (57, 29))).expanded_images
        assert [1, 6] == [len(each.token_ids) for each in answer.images]
        assert {model.image_ids[0]} == {token for each in answer.images for token in each.token_ids}
        assert not answer.problem


async def test_a_replica_says_why_it_takes_no_such_images(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        answer = (await ask(stack, *[(28, 28)] * 65)).expanded_images
        assert "at most 64 images" in answer.problem
        assert not answer.images


@pytest.mark.parametrize("sizes", [(), ((0, 5),)])
async def test_a_question_without_sizes_is_rejected(tmp_path: Path, sizes: tuple[tuple[int, int], ...]) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        rejection = (await ask(stack, *sizes)).rejection
        assert pb.REJECTION_REASON_INVALID == rejection.reason
        assert "sizes" in rejection.detail


async def test_a_start_brings_its_images(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        [expanded] = (await ask(stack, (57, 29))).expanded_images.images
        router, ids = Router(stack), list(expanded.token_ids)
        for sink, color in enumerate((RED, RED, BLUE), 1):
            image = pb.PromptImage(data=picture(57, 29, color=color), offset=2, length=len(ids))
            await router.start(sink, [20, 21, *ids, 22], [image])
        assert router.tokens[1] == router.tokens[2] != router.tokens[3]
        assert {8} == set(map(len, router.tokens.values()))
        await router.start(4, [20, 21, *ids, 22], [pb.PromptImage(data=b"no image", offset=2, length=len(ids))])
        assert router.ends[4].invalid_request
        assert "images[0]" in router.ends[4].error
        assert 0 == stack.replicas[0].table.sequences


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([(2, 0)], r"images[0].length: must be at least 1"),
        ([(2, 9)], r"images[0]: ends at token 11, and the prompt has 10"),
        ([(4, 2), (2, 2)], r"images[1].offset: must be at least 6"),
        ([(2, 3), (4, 2)], r"images[1].offset: must be at least 5"),
    ],
    ids=["empty", "outside", "out of order", "overlap"],
)
async def test_images_in_wrong_places_are_refused(tmp_path: Path, places: list[tuple[int, int]], why: str) -> None:
    async with running_stack(tmp_path, routers=0) as stack:
        router = Router(stack)
        images = [pb.PromptImage(data=picture(), offset=offset, length=length) for offset, length in places]
        await router.start(1, [20] * 10, images)
        assert pb.REFUSAL_REASON_INVALID == router.refusals[1].reason
        assert why in router.refusals[1].detail
        assert not router.refusals[1].elsewhere
        assert 0 == stack.replicas[0].table.sequences


async def test_no_other_command_waits_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_now, reads = threading.Event(), threading.Event()

    def held(data: bytes) -> Any:
        reads.set()
        assert read_now.wait(60)
        return pixels_of(data)

    monkeypatch.setattr("deployments.engines.sim.images.pixels_of", held)
    try:
        async with running_stack(tmp_path, routers=0) as stack:
            [expanded] = (await ask(stack, (57, 29))).expanded_images.images
            ids, table = list(expanded.token_ids), stack.replicas[0].table
            router = Router(stack)
            image = pb.PromptImage(data=picture(57, 29), offset=1, length=len(ids))
            looking = asyncio.create_task(router.start(1, [20, *ids, 22], [image]))
            await until(reads.is_set)
            await router.start(2, [20, 21, 22], [])
            assert 8 == len(router.tokens[2])
            assert not looking.done()
            # Its room is taken all the same.
            assert (1, 2 + len(ids)) == (table.sequences, table.prefill_tokens)
            await table.abort([("r1", "1")])
            await looking
            assert types.FINISH_REASON_CANCELLED == router.ends[1].finish_reason
            assert (0, 0) == (table.sequences, table.prefill_tokens)
            assert 1 not in router.tokens
    finally:
        read_now.set()


def test_a_start_with_images_is_a_message_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts that waited for a slow link would else be more together than a message may have."""
    sent: list[pb.LinkRequest] = []
    stream = ReplicaStream()
    monkeypatch.setattr(stream, "send", lambda payload: sent.append(pb.LinkRequest.FromString(payload)))
    plain = [pb.LinkCommand(start=pb.Start(sink=sink)) for sink in (1, 2)]
    shows = [pb.LinkCommand(start=pb.Start(sink=sink, images=[pb.PromptImage(data=b"x")])) for sink in (3, 4)]
    stream.write([*plain, *shows, pb.LinkCommand(ping=pb.Ping(nonce=5)), *plain])
    assert [[1, 2], [3], [4], [0, 1, 2]] == [[each.start.sink for each in one.commands] for one in sent]
