from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from deployments.engines.vllm.pump import OutputPump
from tests.support.waiting import until

DEAD = b"dead"


class _Resources:
    """Stands in for vLLM's: closes the socket as vLLM does, then cancels the task that reads it."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self.output_socket = socket
        self.output_queue_task: asyncio.Task[None] | None = None
        self.engine_dead = False

    def validate_alive(self, frames: list[zmq.Frame]) -> None:
        if frames[0].bytes == DEAD:
            self.engine_dead = True
            raise ValueError("the engine says so")

    def close(self) -> None:
        self.output_socket.close(linger=0)
        assert self.output_queue_task is not None
        self.output_queue_task.cancel()


class _Client:
    """Stands in for vLLM's client; a message is its kind and a word."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self.resources = _Resources(socket)
        self.utility_results: dict[int, asyncio.Future[str]] = {}
        self.decoder = self

    def decode(self, frames: list[zmq.Frame]) -> Any:
        kind, word = frames[0].bytes.decode().split(":")
        utility = None
        if kind in ("answer", "failure"):
            result = SimpleNamespace(result=word)
            utility = SimpleNamespace(call_id=1, failure_message=word if kind == "failure" else None, result=result)
        return SimpleNamespace(
            utility_output=utility,
            outputs=[word] if kind == "tokens" else [],
            scheduler_stats=word if kind == "stats" else None,
        )

    def _format_exception(self, error: Exception) -> Exception:
        return RuntimeError("dead") if self.resources.engine_dead else error


class _Setup:
    """A pump on a real socket, and the engine's end of it."""

    def __init__(self, context: zmq.asyncio.Context, address: str) -> None:
        pulling = context.socket(zmq.PULL)
        pulling.bind(address)
        self.engine: zmq.Socket[bytes] = zmq.Socket(context, zmq.PUSH)
        self.engine.connect(address)
        self.client = _Client(pulling)
        self.got: list[Any] = []
        self.errors: list[str] = []
        self.pump = OutputPump(self.client, self._take, lambda error: self.errors.append(str(error)))

    def _take(self, outputs: Any) -> None:
        if outputs.outputs == ["bad"]:
            raise ValueError("bad output")
        self.got.append(outputs.outputs or outputs.scheduler_stats)

    def send(self, *messages: str | bytes) -> None:
        for message in messages:
            self.engine.send(message.encode() if isinstance(message, str) else message)

    def ask(self) -> asyncio.Future[str]:
        call: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.client.utility_results[1] = call
        return call


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[_Setup]:
    context = zmq.asyncio.Context()
    setup = _Setup(context, "inproc://engine")
    yield setup
    setup.pump.close()
    setup.engine.close(linger=0)
    setup.client.resources.output_socket.close(linger=0)
    context.term()


async def test_messages_come_in_order_however_many_wait(setup: _Setup) -> None:
    setup.send(*(f"tokens:{n}" for n in range(100)), "stats:idle", "nothing:at all", "tokens:last")
    await until(lambda: setup.got[-1:] == [["last"]])
    assert [*([str(n)] for n in range(100)), "idle", ["last"]] == setup.got
    setup.send("tokens:later")
    await until(lambda: setup.got[-1] == ["later"])
    assert [] == setup.errors


async def test_what_waits_does_not_keep_others_from_their_turn(setup: _Setup) -> None:
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(setup.got))
        if len(setup.got) < 100:
            asyncio.get_running_loop().call_soon(turn)

    setup.send(*(f"tokens:{n}" for n in range(100)))
    turn()
    await until(lambda: turns[-1] == 100)
    assert all(after - before <= 8 for before, after in itertools.pairwise(turns))


async def test_utility_calls_get_their_answers(setup: _Setup) -> None:
    call = setup.ask()
    setup.send("answer:yes")
    assert "yes" == await call
    call = setup.ask()
    setup.send("failure:no such method")
    with pytest.raises(RuntimeError, match="no such method"):
        await call
    call = setup.ask()
    call.cancel()
    setup.send("answer:too late", "answer:twice", "tokens:after")
    await until(lambda: setup.got == [["after"]])
    assert [] == setup.errors


async def test_a_dead_engine_fails_what_waits_once(setup: _Setup) -> None:
    call = setup.ask()
    setup.send("tokens:last", DEAD, "tokens:never")
    with pytest.raises(RuntimeError, match="dead"):
        await call
    setup.client.resources.close()
    await until(lambda: setup.errors == ["dead"])
    assert [["last"]] == setup.got


async def test_a_socket_that_vllm_closes_is_the_end(setup: _Setup) -> None:
    setup.client.resources.engine_dead = True
    setup.client.resources.close()
    await until(lambda: setup.errors == ["dead"])


async def test_an_error_in_the_output_is_the_end(setup: _Setup) -> None:
    setup.send("tokens:good", "tokens:bad", "tokens:never")
    await until(lambda: setup.errors == ["bad output"])
    assert [["good"]] == setup.got


async def test_nothing_follows_a_close(setup: _Setup) -> None:
    setup.send("tokens:waiting")
    setup.pump.close()
    setup.pump.close()
    setup.client.resources.close()
    guard = setup.client.resources.output_queue_task
    assert guard is not None
    await until(guard.done)
    assert ([], []) == (setup.got, setup.errors)
