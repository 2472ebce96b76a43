"""Origin of a call: the API that it came by, for records and traces. It goes along with the call's task."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Origin of a call."""

    api: str
    """"grpc", "openai", "anthropic", "responses" or "job"."""


GRPC = CallOrigin("grpc")
JOB = CallOrigin("job")
OPENAI = CallOrigin("openai")
ANTHROPIC = CallOrigin("anthropic")
RESPONSES = CallOrigin("responses")
_ORIGIN = ContextVar("origin", default=GRPC)


def call_origin() -> CallOrigin:
    """Return the origin of the call whose task runs."""
    return _ORIGIN.get()


def enter_call(origin: CallOrigin) -> None:
    """Set the origin of what this task does from now on."""
    _ORIGIN.set(origin)
