"""Sequences whose images are read, before they enter an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cluster.errors import EngineDeadError, EngineRequestError
from deployments.engines.reading import Reading
from penstock.models import FinishReason


class Sequence:
    def __init__(self) -> None:
        self.sequence_id = "one"
        self.ends: list[tuple[FinishReason, str, bool, bool]] = []
        self.over = asyncio.Event()

    def end(
        self,
        reason: FinishReason,
        *,
        gpu_seconds: float = 0.0,
        error: str = "",
        invalid_request: bool = False,
        engine_died: bool = False,
    ) -> None:
        assert 0.0 == gpu_seconds
        self.ends.append((reason, error, invalid_request, engine_died))
        self.over.set()


def failing(error: Exception) -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        raise error

    return read


async def never() -> str:
    await asyncio.Event().wait()
    return ""


async def entered(_content: str) -> None:
    raise AssertionError("it entered")


async def test_what_was_read_enters() -> None:
    reading, sequence = Reading(), Sequence()
    came: asyncio.Future[tuple[str, bool]] = asyncio.get_running_loop().create_future()

    async def read() -> str:
        return "content"

    async def enter(content: str) -> None:
        came.set_result((content, bool(reading.ids())))

    reading.begin(sequence, read, enter)
    assert ("one",) == reading.ids()
    assert ("content", False) == await came
    assert [] == sequence.ends


@pytest.mark.parametrize(
    ("error", "invalid", "died"),
    [
        (EngineRequestError("a broken file"), True, False),
        (EngineRequestError("not here", elsewhere=True), False, False),
        (EngineDeadError("dead"), False, True),
        (MemoryError("no room"), False, False),
    ],
)
@pytest.mark.parametrize("enters", [False, True])
async def test_a_failure_ends_the_sequence(error: Exception, invalid: bool, died: bool, enters: bool) -> None:
    reading, sequence = Reading(), Sequence()

    async def read() -> str:
        return ""

    async def enter(_content: str) -> None:
        raise error

    reading.begin(sequence, read if enters else failing(error), enter if enters else entered)
    await sequence.over.wait()
    assert [(FinishReason.ERROR, str(error), invalid, died)] == sequence.ends
    assert () == reading.ids()


@pytest.mark.parametrize("turns", [0, 3])
async def test_a_cancel_ends_it_at_once(turns: int) -> None:
    reading, sequence = Reading(), Sequence()
    reading.begin(sequence, never, entered)
    for _ in range(turns):
        await asyncio.sleep(0)
    reading.end(["another", "one"], FinishReason.DEADLINE)
    assert [(FinishReason.DEADLINE, "", False, False)] == sequence.ends
    reading.end(["one"], FinishReason.CANCELLED)
    assert () == reading.ids()
    assert 1 == len(sequence.ends)


async def test_the_death_of_the_engine_ends_all() -> None:
    reading, sequence = Reading(), Sequence()
    reading.begin(sequence, never, entered)
    reading.fail_all("it died", engine_died=True)
    reading.fail_all("again", engine_died=True)
    assert [(FinishReason.ERROR, "it died", False, True)] == sequence.ends
