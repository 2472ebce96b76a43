"""A process that stands still, as on a machine that halts."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TypeVar

Answer = TypeVar("Answer")


async def answered_in_halt(answer: Answer, seconds: float) -> Answer:
    """Let the event loop stand still for so long, and return what came meanwhile. Timers are due then, and the answer
    has not been read.
    """
    loop = asyncio.get_running_loop()
    came: asyncio.Future[Answer] = loop.create_future()
    threading.Timer(seconds / 2, loop.call_soon_threadsafe, (came.set_result, answer)).start()
    loop.call_soon(time.sleep, seconds)
    return await came
