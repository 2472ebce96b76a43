"""Origin of a call: the API that it came by and its caller's span. It goes along with the call's task."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace

from cluster.telemetry.tracing.context import TRACE_PARENT, TRACE_STATE, TraceContext, read_trace_parent


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Origin of a call."""

    api: str
    """"grpc", "openai", "anthropic", "responses", "job" or "shadow"."""
    parent: TraceContext | None = None
    """Span of the caller; None where it sent none."""
    submitted_by: str = ""
    """Span of the call that submitted the job of an item, ids of trace and span with a hyphen between them."""


GRPC = CallOrigin("grpc")
OPENAI = CallOrigin("openai")
ANTHROPIC = CallOrigin("anthropic")
RESPONSES = CallOrigin("responses")
_ORIGIN = ContextVar("origin", default=GRPC)


def call_origin() -> CallOrigin:
    """Return the origin of the call whose task runs."""
    return _ORIGIN.get()


def enter_call(origin: CallOrigin) -> None:
    """Set the origin of what this task does from now on."""
    # A variable that is set takes memory for as long as the task lives.
    if _ORIGIN.get() is not origin:
        _ORIGIN.set(origin)


def with_parent(origin: CallOrigin, headers: Iterable[tuple[str, str | bytes]] | None) -> CallOrigin:
    """Return an origin with the span that a caller's headers name. Names of headers are in lower case."""
    parent = state = ""
    for name, value in headers or ():
        if name == TRACE_PARENT:
            parent = str(value)
        elif name == TRACE_STATE:
            state = str(value)
    return with_span(origin, parent, state)


def with_span(origin: CallOrigin, parent: str, state: str) -> CallOrigin:
    """Return an origin with the span of two headers' values; empty where they are not there."""
    found = read_trace_parent(parent, state) if parent else None
    return origin if found is None else replace(origin, parent=found)
