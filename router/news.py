"""A flag that one caller waits for."""

from __future__ import annotations

import asyncio


class News:
    """Flag with at most one waiter. asyncio's Event has a line of waiters, which takes 750 bytes while it is empty:
    there is one for each stream.
    """

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Return whether there is something."""
        return self._set

    def set(self) -> None:
        """Say that there is something."""
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Take it back."""
        self._set = False

    async def wait(self) -> None:
        """Wait until there is something.

        Raises:
            RuntimeError: another caller waits.
        """
        if self._set:
            return
        if self._waiter is not None:
            raise RuntimeError("another caller waits for the same news")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
