"""gRPC's own binding to its core. It is private and promises nothing between versions: all that we take passes here."""

from __future__ import annotations

from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # missing in the stubs

core: Any = cygrpc

NO_FLAGS = 0
PAST = 1.0
"""A deadline (Unix time) that has passed: poll, and do not wait."""

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
"""What is taken; a version of gRPC without any of it gets grpc.aio."""


def credentials_of(credentials: Any) -> Any:
    """Return what the core takes of a server's credentials."""
    return credentials._credentials


def missing_in(binding: object) -> list[str]:
    """Name what is taken of a binding and is not there."""
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
