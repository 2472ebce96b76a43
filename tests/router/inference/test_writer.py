"""What passes the writer's coroutine by, and what does not: a connection that an engine's steps write to directly."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.errors import SlowReaderError
from cluster.queue.entries import Grant, QueueEntry
from cluster.settings import MergingSettings
from cluster.trust.resume_token import ResumeToken
from cluster.trust.secret import ClusterSecret
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import RequestClass
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.generation.generation import Generation
from router.grpc_server.call import Call, CallEndedError
from router.inference.coalescing import Coalescing, StreamCoalescing
from router.inference.idempotency import read_result
from router.inference.keyed_generation import KeyedGeneration
from router.inference.writer import EventWriter
from router.links.placement import Placement
from tests.support.waiting import until


class Connection(Call):
    """Keeps what is written; `busy` has the message before still under way, `dead` has a core that takes nothing."""

    __slots__ = ("awaited", "busy", "dead", "free", "passed")

    def __init__(self) -> None:
        self.passed: list[api.StreamGenerateResponse] = []
        self.awaited: list[api.StreamGenerateResponse] = []
        self.busy = self.dead = self.gone = False
        self.free = asyncio.Event()

    def can_write(self) -> bool:
        return not self.busy and not self.gone

    def write_now(self, message: Any) -> None:
        if self.dead:
            raise ValueError("too many operations")
        self.passed.append(message)

    async def write(self, message: Any) -> None:
        if self.busy:
            await self.free.wait()
        if self.gone:
            raise CallEndedError("the call has ended")
        self.awaited.append(message)


class Scene:
    """One generation in the middle of its stream, and its writer."""

    def __init__(self, indices: tuple[int, ...]) -> None:
        entry = QueueEntry("r", "a", "t", RequestClass.INTERACTIVE, prompt_tokens=1, expected_tokens=1, kv_tokens=1)
        self.choices = [Choice(index, entry, pb.Start(), Mock()) for index in indices]
        link: Any = Mock(replica_id="replica", address="here", output_at=0.0)
        for choice in self.choices:
            choice.run_on(Grant("r", "attempt", "replica"), Placement(link, "group", 0.0, "model"))
            choice.announced = True
        ticket = ResumeToken("r", "p", "t", 1, ())
        secret = ClusterSecret(bytes(32))
        self.generation = Generation(
            ticket, self.choices, secret, "router", lambda _choice: None, arrived_at=0.0, admitted_at=0.0
        )
        self.connection = Connection()
        coalescing = StreamCoalescing(Coalescing(MergingSettings()), None)
        self.writer = EventWriter(self.generation, None, self.connection, coalescing, Mock())
        self.running: asyncio.Task[None] | None = None
        self.offset = 0

    def step(self, token: int, **more: Any) -> None:
        """Bring a token, as a link does."""
        self.choices[0].on_delta(self.offset, [token], f"<{token}>", more.get("logprobs", ()))
        self.offset += 1

    @property
    def direct(self) -> list[int]:
        """Tokens that went straight to the connection."""
        return [token for event in self.connection.passed for token in event.delta.token_ids]

    @property
    def awaited(self) -> list[int]:
        """Tokens that the coroutine wrote."""
        return [token for event in self.connection.awaited for token in event.delta.token_ids]


@asynccontextmanager
async def streaming(*indices: int) -> AsyncIterator[Scene]:
    scene = Scene(indices or (0,))
    task = scene.running = asyncio.create_task(scene.writer.run())
    await until(lambda: scene.choices[0].output.through is not None or len(indices) > 1)
    # Its first look, a turn later, finds nothing.
    for _ in range(2):
        await asyncio.sleep(0)
    yield scene
    if not task.done():
        scene.generation.close()
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_a_grant_has_to_send_leaves_before_the_client_hears_of_it() -> None:
    scene, told = Scene((0,)), list[int]()
    scene.choices[0].announced = False

    async def link() -> None:
        told.append(len(scene.connection.awaited))

    async def call() -> None:
        # A grant came with the answer: the link has been told, and the same turn goes on to the events.
        sent = asyncio.create_task(link())
        await scene.writer.run()
        await sent

    running = asyncio.create_task(call())
    await until(lambda: bool(scene.connection.awaited))
    assert [0] == told
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_plain_output_goes_straight_to_the_connection() -> None:
    async with streaming() as scene:
        for token in (7, 8, 9):
            scene.step(token)
        events = scene.connection.passed
        assert [7, 8, 9] == scene.direct
        assert [(0, "<7>"), (1, "<8>"), (2, "<9>")] == [(event.delta.offset, event.delta.text) for event in events]
        assert not scene.choices[0].output.pending
        assert [7, 8, 9] == list(scene.choices[0].output.history.token_ids)


async def test_collected_output_goes_straight_to_the_connection_as_one_message() -> None:
    async with streaming() as scene:
        scene.generation.collect(3, 60.0)
        scene.step(1)
        scene.step(2)
        assert [] == scene.direct
        scene.step(3)
        assert [(0, [1, 2, 3])] == [(e.delta.offset, list(e.delta.token_ids)) for e in scene.connection.passed]
        # It says anew how the next output should collect.
        scene.step(4)
        assert [1, 2, 3, 4] == scene.direct
        await asyncio.sleep(0)
        assert [] == scene.awaited


async def test_the_time_for_collecting_ends_in_the_connection() -> None:
    async with streaming() as scene:
        scene.generation.collect(1 << 30, 0.01)
        scene.step(1)
        scene.step(2, logprobs=[types.PositionLogprobs()])
        assert [] == scene.direct
        await until(lambda: scene.direct == [1, 2])
        assert 1 == len(scene.connection.passed[0].delta.logprobs)
        assert [] == scene.awaited


async def test_collected_output_waits_for_a_message_under_way() -> None:
    async with streaming() as scene:
        scene.generation.collect(2, 60.0)
        scene.connection.busy = True
        scene.step(1)
        scene.step(2)
        scene.connection.busy = False
        scene.step(3)
        assert [] == scene.direct
        await until(lambda: scene.awaited == [1, 2, 3])


async def test_what_ends_while_output_collects_comes_after_it() -> None:
    async with streaming() as scene:
        scene.generation.collect(9, 60.0)
        scene.step(1)
        scene.choices[0].on_end(pb.AttemptEnd(sink=0, finish_reason=types.FINISH_REASON_LENGTH, output_tokens=1))
        await until(lambda: scene.generation.finished)
        assert ["delta", "finished"] == [event.WhichOneof("event") for event in scene.connection.awaited]
        assert [] == scene.direct


async def test_while_a_message_is_under_way_the_writer_waits_and_nothing_overtakes() -> None:
    async with streaming() as scene:
        scene.connection.busy = True
        scene.step(1)
        scene.connection.busy = False
        scene.step(2)
        assert [] == scene.direct
        await until(lambda: scene.awaited == [1, 2])
        scene.step(3)
        assert [3] == scene.direct


async def test_log_probabilities_go_through_the_writer() -> None:
    async with streaming() as scene:
        scene.step(1, logprobs=[types.PositionLogprobs()])
        assert [] == scene.direct
        await until(lambda: scene.awaited == [1])
        assert 1 == len(scene.connection.awaited[0].delta.logprobs)


async def test_what_is_not_announced_yet_goes_through_the_writer() -> None:
    async with streaming() as scene:
        scene.choices[0].announced = False
        scene.step(1)
        await until(lambda: scene.awaited == [1])
        assert ["started", "delta"] == [event.WhichOneof("event") for event in scene.connection.awaited]
        assert [] == scene.direct


async def test_several_choices_go_through_the_writer() -> None:
    async with streaming(0, 1) as scene:
        scene.step(1)
        await until(lambda: scene.awaited == [1])
        assert [] == scene.direct


async def test_the_index_of_the_choice_goes_along() -> None:
    async with streaming(3) as scene:
        scene.step(1)
        assert [3] == [event.delta.choice_index for event in scene.connection.passed]


async def test_output_that_was_dropped_stays_dropped() -> None:
    async with streaming() as scene:
        scene.choices[0].stop_unread(SlowReaderError(1, 1))
        scene.step(1)
        assert [] == scene.direct


async def test_output_that_was_dropped_before_the_writer_began_stays_dropped() -> None:
    scene = Scene((0,))
    scene.choices[0].stop_unread(SlowReaderError(1, 1))
    scene.generation.write_through(scene.writer)
    assert scene.choices[0].output.through is None


async def test_a_connection_that_takes_nothing_ends_its_call_alone() -> None:
    async with streaming() as scene:
        scene.connection.dead = True
        # The link that brings it has other streams to serve: nothing is raised here.
        scene.step(1)
        assert scene.connection.gone
        scene.step(2)
        gone = scene.running
        assert gone is not None
        with pytest.raises(asyncio.CancelledError):
            await gone


class Keys:
    """Takes what keys keep."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    async def finish(self, _tenant: str, _key: str, _request_id: str, result: bytes) -> None:
        self.kept.append(result)


@pytest.mark.parametrize("indices", [(0,), (0, 1)])
async def test_who_leaves_during_a_write_does_not_cut_off_what_a_key_keeps(indices: tuple[int, ...]) -> None:
    scene, keys = Scene(indices), Keys()
    keyed = KeyedGeneration(scene.generation, "key", Mock(keys=keys), Mock())
    scene.writer = EventWriter(
        scene.generation, keyed.result, scene.connection, StreamCoalescing(Coalescing(MergingSettings()), None), Mock()
    )
    for choice in scene.choices:
        choice.on_delta(0, [7], "<7>", ())
        choice.on_end(pb.AttemptEnd(finish_reason=types.FINISH_REASON_STOP, output_tokens=1))
    scene.connection.gone = True
    with pytest.raises(asyncio.CancelledError):
        await scene.writer.run()
    assert [] == scene.awaited
    await keyed.settle()

    response, _ = read_result(keys.kept[0])
    assert "r" == response.request_id
    assert [[7]] * len(indices) == [list(choice.token_ids) for choice in response.choices]
    assert [types.FINISH_REASON_STOP] * len(indices) == [choice.finish_reason for choice in response.choices]


async def test_a_place_in_line_is_told_again_after_a_slot_was_lost() -> None:
    async with streaming() as scene:
        scene.step(1)
        [choice] = scene.choices
        choice.ordered("preempt")
        choice.on_end(pb.AttemptEnd(finish_reason=types.FINISH_REASON_CANCELLED))
        assert ChoiceState.WAITING is choice.state
        await until(lambda: any(event.HasField("queued") for event in scene.connection.awaited))


async def test_a_stream_that_waits_keeps_no_event_that_it_has_sent() -> None:
    async with streaming() as scene:
        scene.connection.busy = True
        scene.step(1)
        await until(lambda: not scene.choices[0].output.pending)
        scene.connection.busy = False
        scene.connection.free.set()
        await until(lambda: bool(scene.connection.awaited))
        [sent] = scene.connection.awaited
        # This frame, and the list of what was written.
        await until(lambda: 2 == len([each for each in gc.get_referrers(sent) if each is not scene.connection]))
