"""Calls of grpc.aio's own server, as the services see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from router.call_context import CallContext, ClientGoneError, Metadata
from router.grpc_server.call import Call
from router.grpc_server.connections import host_of


class AioContext:
    """A `CallContext` on grpc.aio's context, which knows no write that leaves at once."""

    __slots__ = ("_context", "gone")

    direct = None
    """grpc.aio has no write that leaves at once."""

    def __init__(self, context: Any) -> None:
        """`context` is a `grpc.aio.ServicerContext`."""
        self._context = context
        self.gone = False

    def time_remaining(self) -> float | None:
        left: float | None = self._context.time_remaining()
        return left

    def invocation_metadata(self) -> Metadata | None:
        metadata: Metadata | None = self._context.invocation_metadata()
        return metadata

    def peer_address(self) -> str:
        return host_of(self._context.peer())

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        found: Mapping[str, Iterable[bytes]] = self._context.auth_context()
        return found

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        await self._context.send_initial_metadata(metadata)

    def opened(self, request_id: str) -> None:
        """Do nothing: events name their request themselves."""

    async def write(self, message: Message) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.InternalError as error:
            # How grpc.aio ends a write that waited for a reader who then left.
            raise ClientGoneError(str(error)) from error


def call_context(context: Any) -> CallContext:
    """Return the context of either server's call as the services see it."""
    return context if isinstance(context, Call) else AioContext(context)
