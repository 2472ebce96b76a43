"""Callers take turns of the event loop in their order, and others have time between."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from router.turns import LoopTurns


class Turns:
    """Counts turns of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._next()

    def _next(self) -> None:
        self.number += 1
        asyncio.get_running_loop().call_soon(self._next)


async def test_a_turn_lets_so_many_go_on_in_their_order() -> None:
    line, turns = LoopTurns(2), Turns()
    went: list[tuple[int, int]] = []

    async def caller(number: int) -> None:
        await line.wait()
        went.append((number, turns.number))

    await asyncio.gather(*(caller(number) for number in range(7)))
    first = went[0][1]
    assert [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)] == [(n, turn - first) for n, turn in went]
    assert 0 == len(line)


async def test_a_caller_that_leaves_takes_nobodys_turn() -> None:
    line, turns = LoopTurns(1), Turns()
    went: list[int] = []

    async def caller() -> None:
        await line.wait()
        went.append(turns.number)

    tasks = [asyncio.create_task(caller()) for _ in range(4)]
    await asyncio.sleep(0)
    assert 4 == len(line)
    for task in tasks[:3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 1 == len(went)


async def test_a_line_that_was_empty_works_again() -> None:
    line = LoopTurns(3)
    for _ in range(3):
        async with asyncio.timeout(60):
            await line.wait()


async def test_a_line_that_grows_lets_one_go_in_eight_turns() -> None:
    line, turns, tasks = LoopTurns(1), Turns(), list[asyncio.Task[None]]()
    went: list[int] = []

    async def caller() -> None:
        await line.wait()
        went.append(turns.number)

    for _ in range(40):
        tasks += [asyncio.create_task(caller()) for _ in range(2)]
        await asyncio.sleep(0)
    assert 4 <= len(went) <= 5
    assert {8} == {later - earlier for earlier, later in pairwise(went)}
    # Nobody comes any more: one in each turn.
    came = len(went)
    await asyncio.gather(*tasks)
    assert {1} == {later - earlier for earlier, later in pairwise(went[came + 1 :])}
    assert 80 == len(went)
