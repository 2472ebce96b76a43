"""A call of a client, as the services see it. Each transport brings its own implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

from google.protobuf.message import Message

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

MAX_HEADER_BYTES = 24_576
"""Longest headers of a call over gRPC, and longest single header over HTTP."""


class ClientGoneError(Exception):
    """Error of a write: the client does not listen any more, or the call has ended."""


class CallContext(Protocol):
    """A call in progress. Services write messages of the API; the transport encodes and sends them."""

    gone: bool
    """Whether the client does not listen any more. A caller of `write_now` sets it after a ValueError."""

    @property
    def has_write_now(self) -> bool:
        """Whether this transport has `write_now`. If not, `can_write` is always False."""
        ...

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline; None without one."""
        ...

    def invocation_metadata(self) -> Metadata | None:
        """Return the metadata that the client sent."""
        ...

    def peer_address(self) -> str:
        """Return the address that the client calls from, without a port; empty where it has none."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what TLS proved about the client; empty without TLS."""
        ...

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send metadata before the first message. At most once."""
        ...

    def opened(self, request_id: str) -> None:
        """Learn the cluster's id of the request whose events follow."""
        ...

    async def write(self, message: Message) -> None:
        """Send a message of a stream. Waits while the client is slow to read.

        Raises:
            ClientGoneError: the client is gone, or the call has ended.
        """
        ...

    def can_write(self) -> bool:
        """Return whether a message would leave now, without waiting for an earlier one."""
        ...

    def write_now(self, message: Message) -> None:
        """Send a message while `can_write`, outside the coroutine of the call.

        Raises:
            ValueError: the transport takes nothing more for this call.
        """
        ...
