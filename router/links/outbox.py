"""Commands that wait to leave over a link. Those of one turn of the loop share a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.internal.v1 import replica_pb2 as pb

LEISURE_S = 0.1
"""How long a command without urgency waits for others: a message with one command costs as much as one with ten."""

Write = Callable[[Sequence[pb.LinkCommand]], None]


class Outbox:
    """Commands for a connection. They wait while there is none, or while it is full."""

    def __init__(self) -> None:
        self._commands: list[pb.LinkCommand] = []
        self._write: Write | None = None
        self._paused = False
        self._due = False
        """Whether the commands leave at the end of this turn."""

    def __len__(self) -> int:
        return len(self._commands)

    # --- in -----------------------------------------------------------------------------------------------------------

    def send(self, command: pb.LinkCommand) -> None:
        """Send a command in this turn, together with all that wait."""
        self._commands.append(command)
        self._wake()

    def send_soon(self, command: pb.LinkCommand) -> None:
        """Send a command that is not urgent: with the next one, or after LEISURE_S."""
        if not self._commands:
            asyncio.get_running_loop().call_later(LEISURE_S, self._wake)
        self._commands.append(command)

    def clear(self) -> Sequence[pb.LinkCommand]:
        """Take back the commands that have not left."""
        commands, self._commands = self._commands, []
        return commands

    # --- out ----------------------------------------------------------------------------------------------------------

    def attach(self, write: Write) -> None:
        """Send what waits, and all that comes, to a connection."""
        self._write = write
        self.resume()

    def detach(self) -> None:
        """Keep what comes: there is no connection."""
        self._write = None

    def pause(self) -> None:
        """Keep what comes until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Send what waits."""
        self._paused = False
        if self._commands:
            self._wake()

    def flush(self) -> None:
        """Send what waits now, unless the connection is full."""
        if self._write is not None and self._commands and not self._paused:
            self._write(self.clear())

    def _wake(self) -> None:
        if not self._due and self._write is not None:
            self._due = True
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        self._due = False
        self.flush()
