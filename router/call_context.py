"""A call of a client, as the services see it. Each transport brings its own implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from google.protobuf.message import Message

from penstock.v1 import inference_pb2 as api

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

MAX_HEADER_BYTES = 24_576
"""Longest headers of a call over gRPC, and longest single header over HTTP."""


class ClientGoneError(Exception):
    """Error of a write: the client does not listen any more, or the call has ended."""


class DirectStream(Protocol):
    """Way of a stream's output to its connection, outside the coroutine of the call."""

    def can_write(self) -> bool:
        """Return whether a message would leave now, without waiting for an earlier one."""
        ...

    def write_now(self, message: Message) -> None:
        """Send a message while `can_write`.

        Raises:
            ValueError: the transport takes nothing more for this call.
        """
        ...

    def write_text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> None:
        """Send output that is only text while `can_write`: that of one choice, behind its first `offset` tokens.

        Raises:
            ValueError: the transport takes nothing more for this call.
        """
        ...


class CallContext(Protocol):
    """A call in progress. Services write messages of the API; the transport encodes and sends them."""

    gone: bool
    """Whether the client does not listen any more. A caller of `direct` sets it after a ValueError."""

    @property
    def direct(self) -> DirectStream | None:
        """Way past the coroutine of the call; None where this transport has none."""
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


def text_event(choice_index: int, offset: int, token_ids: Sequence[int], text: str) -> api.StreamGenerateResponse:
    """Return the event of output that is only text; `offset` counts the choice's output tokens before it."""
    event = api.StreamGenerateResponse()
    # Filled in place: a finished delta given to the constructor would be copied.
    delta = event.delta
    if choice_index:
        delta.choice_index = choice_index
    delta.text = text
    delta.token_ids.extend(token_ids)
    delta.offset = offset
    return event
