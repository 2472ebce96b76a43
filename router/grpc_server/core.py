"""gRPC's binding to its core, which is private and may change with any version. All uses of it pass through here."""

from __future__ import annotations

from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # missing in the stubs

core: Any = cygrpc

NO_FLAGS = 0
PAST = 1.0
"""Deadline in the past (Unix time): with it a poll does not wait."""

_NEEDED = {
    "Call": ("peer", "start_server_batch"),
    "CompletionQueue": ("poll", "shutdown"),
    "CompletionType": ("operation_complete", "queue_shutdown"),
    "ReceiveCloseOnServerOperation": ("cancelled",),
    "ReceiveMessageOperation": ("message",),
    "SendInitialMetadataOperation": (),
    "SendMessageOperation": (),
    "SendStatusFromServerOperation": (),
    "Server": ("add_http2_port", "cancel_all_calls", "register_completion_queue", "request_call", "shutdown", "start"),
    "auth_context": (),
}
"""Names that the server uses. With a version of gRPC that lacks one of them the router uses grpc.aio."""


def credentials_of(credentials: Any) -> Any:
    """Return the core's object inside a server's credentials."""
    return credentials._credentials


def missing_in(binding: object) -> list[str]:
    """Return the names of _NEEDED that a binding lacks."""
    return [
        ".".join((name, *method))
        for name, methods in _NEEDED.items()
        for method in ((), *((each,) for each in methods))
        if not _has(binding, (name, *method))
    ]


def _has(thing: object, path: tuple[str, ...]) -> bool:
    for name in path:
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True
