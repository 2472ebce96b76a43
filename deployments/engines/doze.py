"""The sleep of an engine, and who waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cluster.errors import EngineDeadError


class Doze:
    """Whether an engine sleeps. An engine that fails to fall asleep, or to wake up, counts as dead."""

    def __init__(self) -> None:
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def asleep(self) -> bool:
        """Whether it sleeps, or is about to."""
        return not self._awake.is_set()

    async def sleep(self, fall_asleep: Callable[[], Awaitable[None]]) -> None:
        """Send it to sleep.

        Raises:
            EngineDeadError: it failed.
        """
        self._awake.clear()
        try:
            await fall_asleep()
        except Exception as error:
            raise EngineDeadError(f"the engine did not fall asleep: {error}") from error

    async def wake(self, wake_up: Callable[[], Awaitable[None]]) -> None:
        """Wake it. Nothing happens to an engine that is awake.

        Raises:
            EngineDeadError: it failed.
        """
        if self._awake.is_set():
            return
        try:
            await wake_up()
        except Exception as error:
            raise EngineDeadError(f"the engine did not wake up: {error}") from error
        self._awake.set()

    async def over(self) -> None:
        """Wait until it is awake."""
        await self._awake.wait()
