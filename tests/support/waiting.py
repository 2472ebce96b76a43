"""Waiting for a condition instead of for the clock."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

_TURNS = 5


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 20.0) -> None:
    """Return as soon as the condition holds; fails the test when it does not within the time."""
    deadline = time.monotonic() + seconds
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(
                f"the condition did not hold within {seconds} s: {inspect.getsource(condition).strip()}"
            )
        await asyncio.sleep(0.005)


async def settled_transports() -> None:
    """Let asyncio finish what it began: an accepted connection reaches its handler, and an aborted one closes its
    socket, some turns of the loop later. Nothing tells when.
    """
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def until_sync(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as the condition holds, for tests without a loop of their own."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"the condition did not hold within {seconds} s: {inspect.getsource(condition).strip()}"
            )
        time.sleep(0.05)
