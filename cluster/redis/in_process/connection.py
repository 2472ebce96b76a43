"""A connection that listens to channels of a Redis in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from redis import exceptions


class Channels(Protocol):
    """What a connection uses of its server."""

    down: bool

    def subscribe(self, channel: str, listener: Callable[[bytes], None]) -> None: ...

    def unsubscribe(self, channel: str, listener: Callable[[bytes], None]) -> None: ...


class InProcessConnection:
    """What a subscription uses of a connection of redis-py. It belongs to the event loop that connects it; messages may
    come from any thread.
    """

    def __init__(self, server: Channels) -> None:
        self._server = server
        self._heard: asyncio.Queue[Any] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: dict[str, Callable[[bytes], None]] = {}

    async def connect(self) -> None:
        """Raise ConnectionError if the server is down."""
        if self._server.down:
            raise exceptions.ConnectionError("it is down")
        self._loop = asyncio.get_running_loop()

    async def send_command(self, name: str, *words: str, **_options: Any) -> None:
        """Send SUBSCRIBE or PING."""
        if self._loop is None:
            raise exceptions.ConnectionError("not connected")
        if name == "SUBSCRIBE":
            for channel in words:
                self._subscribe(channel, self._loop)
        else:
            self._heard.put_nowait([b"pong", b""])

    async def read_response(self, **_options: Any) -> Any:
        """Wait for a message.

        Raises:
            ConnectionError: the connection is closed.
        """
        message = await self._heard.get()
        if message is None:
            raise exceptions.ConnectionError("the connection is closed")
        return message

    async def disconnect(self, **_options: Any) -> None:
        """Stop listening."""
        for channel, listener in self._channels.items():
            self._server.unsubscribe(channel, listener)
        self._channels.clear()
        self._loop = None
        self._heard.put_nowait(None)

    def _subscribe(self, channel: str, loop: asyncio.AbstractEventLoop) -> None:
        def hear(message: bytes) -> None:
            loop.call_soon_threadsafe(self._heard.put_nowait, [b"message", channel.encode(), message])

        self._channels[channel] = hear
        self._server.subscribe(channel, hear)
        self._heard.put_nowait([b"subscribe", channel.encode(), len(self._channels)])
