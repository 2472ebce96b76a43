"""A process that stands still, as on a machine that halts."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

Answer = TypeVar("Answer")


async def answered_in_halt(answer: Answer, seconds: float) -> Answer:
    """Let the event loop stand still for so long, and return what came meanwhile. Timers are due then, and the answer
    has not been read.
    """
    loop = asyncio.get_running_loop()
    came: asyncio.Future[Answer] = loop.create_future()

    def halt() -> None:
        time.sleep(seconds)
        # As a thread does that reads meanwhile. A thread of its own could be late, and answer after the halt.
        loop.call_soon_threadsafe(came.set_result, answer)

    loop.call_soon(halt)
    return await came
