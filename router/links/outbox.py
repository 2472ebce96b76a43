"""Commands that wait to leave over a link. Several share a message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.internal.v1 import replica_pb2 as pb

LEISURE_S = 0.1
"""How long a command without urgency waits for others: a message with one command costs as much as one with ten."""


class Outbox:
    """Commands for the one task that writes: it calls `batch`, writes what that returns, and calls `wrote`."""

    def __init__(self) -> None:
        self._commands: list[pb.LinkCommand] = []
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        """Set when everything has been written; only `flush` reads it."""

    def __len__(self) -> int:
        return len(self._commands)

    # --- in -----------------------------------------------------------------------------------------------------------

    def send(self, command: pb.LinkCommand) -> None:
        """Send a command now, together with all that wait."""
        self._commands.append(command)
        self._wake.set()

    def send_soon(self, command: pb.LinkCommand) -> None:
        """Send a command that is not urgent: with the next one, or after LEISURE_S."""
        if not self._commands:
            asyncio.get_running_loop().call_later(LEISURE_S, self._wake.set)
        self._commands.append(command)

    def clear(self) -> Sequence[pb.LinkCommand]:
        """Take back the commands that have not left."""
        commands, self._commands = self._commands, []
        return commands

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything has been written; return False where it was not within this time."""
        if not self._commands:
            return True
        self._empty.clear()
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # --- out ----------------------------------------------------------------------------------------------------------

    async def batch(self) -> Sequence[pb.LinkCommand]:
        """Wait for commands that are due, and return all that there are."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._commands:
                return self.clear()

    def wrote(self) -> None:
        """Note that gRPC has the last batch."""
        if not self._commands:
            self._empty.set()
