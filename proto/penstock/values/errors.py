"""Every error that the client raises for a call.

PenstockClientError            any other status, such as UNIMPLEMENTED
├── UnauthenticatedError       the key or certificate is missing or not valid now
├── PermissionDeniedError      the caller may not use the model, class or method
├── InvalidArgumentError       fields are wrong; carries one violation per field
├── NotFoundError              no such model or request
├── AlreadyExistsError         the idempotency key belongs to another request
├── QueueFullError             the queue is full, or longer than the request may wait; carries when to retry
├── QuotaExceededError         the tenant's quota is used up; carries when to retry
├── UnavailableError           no router answers, or the cluster cannot take the request now
├── DeadlineExceededError      the timeout or the queue timeout passed
├── CancelledError             the request was cancelled, by `cancel` or an operator
├── TakenOverError             another call continues this stream
├── GenerationFailedError      an engine failed and the request could not continue; ask again
└── InternalError              a fault of the cluster, or an answer that breaks the protocol
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed marker

from penstock.models import FieldViolation
from penstock.wire import duration_from_wire

_RESUME_TOKEN_KEY = "penstock-resume-token-bin"  # noqa: S105  # a header's name
MODEL_CHANGED = "MODEL_CHANGED"
"""Reason of a request that waited and never ran: its resume token is useless, and it may be sent again."""
_CANCELLED_HERE = ("Locally cancelled", "Channel closed", "Channel deallocated")
"""Texts of grpc's blocking stack, often in "Stream removed (...)", for calls that its own process cancelled."""
_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """Content of a status beside its code."""

    reason: str = ""
    """A stable word, such as QUEUE_FULL. The client's own words are UNREACHABLE (no router answered), DEADLINE (as
    routers say it), MESSAGE_TOO_LARGE and PROTOCOL; empty for other errors that did not come from a router."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[FieldViolation, ...] = ()
    retry_after: float | None = None
    """Seconds to wait before the next try; None when the router gave none."""


class PenstockClientError(Exception):
    """Root of all errors of calls; raised itself for statuses without a class of their own.

    `waited_for` is the error after which the call was tried for the last time; None where it was tried only once.
    """

    def __init__(self, message: str, code: grpc.StatusCode, details: ErrorDetails | None = None) -> None:
        self.code = code
        self.details = details or ErrorDetails()
        self.waited_for: PenstockClientError | None = None
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle, which by default would call the class with the message alone."""
        return type(self), (*self.args, self.code, self.details), self.__dict__

    @property
    def reason(self) -> str:
        """Stable word for what happened, such as QUEUE_FULL."""
        return self.details.reason

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next try; None when the router gave none."""
        return self.details.retry_after


class InvalidArgumentError(PenstockClientError):
    """Error of a request with wrong fields."""

    @property
    def violations(self) -> tuple[FieldViolation, ...]:
        """Wrong fields: paths and sentences."""
        return self.details.violations


class UnauthenticatedError(PenstockClientError):
    """Error of a caller that the router does not know: no key, or one that is unknown, expired or not valid yet."""


class PermissionDeniedError(PenstockClientError):
    """Error of a known caller that may not do this."""


class NotFoundError(PenstockClientError):
    """Error of a model or request that does not exist."""


class AlreadyExistsError(PenstockClientError):
    """Error of an idempotency key that was used for another request."""


class QueueFullError(PenstockClientError):
    """Error of a queue that was full at every try, or longer than the request may wait."""


class QuotaExceededError(PenstockClientError):
    """Error of a tenant's quota that was used up at every try; `details.metadata` names it and its limit."""


class UnavailableError(PenstockClientError):
    """Error of a cluster that could not take the request, or whose routers did not answer, at every try."""


class DeadlineExceededError(PenstockClientError):
    """Error of a call whose timeout, or whose request's queue timeout, passed."""


class CancelledError(PenstockClientError):
    """Error of a request that was cancelled, by its owner or an operator."""


class TakenOverError(PenstockClientError):
    """Error of a stream to which another call attached, by its idempotency key or resume token."""


class ConflictError(PenstockClientError):
    """A change of an entry that somebody else changed meanwhile (REGISTRY_CONFLICT)."""


class GenerationFailedError(PenstockClientError):
    """Error of a request whose engine failed and that could not continue elsewhere."""


class InternalError(PenstockClientError):
    """Fault of the cluster; the message names an incident that its operators can find."""


class BrokenCallError(Exception):
    """Loss of the router of a unary generation that may still be running. Raised inside the client only."""

    def __init__(self, resume_token: bytes) -> None:
        self.resume_token = resume_token
        super().__init__("the router went away")


_BY_CODE: Mapping[grpc.StatusCode, type[PenstockClientError]] = {
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.ABORTED: GenerationFailedError,
    grpc.StatusCode.INTERNAL: InternalError,
}

_BY_REASON: Mapping[str, type[PenstockClientError]] = {
    "QUOTA_EXCEEDED": QuotaExceededError,
    "TAKEN_OVER": TakenOverError,
    "REGISTRY_CONFLICT": ConflictError,
}


def protocol_error(message: str) -> InternalError:
    """Return the error for an answer that breaks the protocol."""
    return InternalError(message, grpc.StatusCode.INTERNAL, ErrorDetails(reason="PROTOCOL"))


def from_rpc_error(error: grpc.RpcError) -> PenstockClientError:
    """Convert an error that grpc raised, in either of its Python stacks."""
    # Both stacks raise objects that are errors and calls at once; their common base declares no method of a call.
    call: Any = error
    code: grpc.StatusCode = call.code()
    details = _details(call.trailing_metadata() or ())
    kind = _BY_CODE.get(code, PenstockClientError)
    # gRPC itself answers RESOURCE_EXHAUSTED for messages over its size limit; no wait will help there.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and details.retry_after is not None:
        kind = QueueFullError
    text = call.details() or ""
    if code is grpc.StatusCode.CANCELLED and not details.reason and not any(here in text for here in _CANCELLED_HERE):
        # No router sends this status: a server that closes cancels calls that came too late.
        kind = UnavailableError
    kind = _BY_REASON.get(details.reason, kind)
    return kind(text or code.name, code, details)


def resume_token_of(error: grpc.RpcError, failure: PenstockClientError) -> bytes:
    """Return the token that continues a unary generation whose call broke; empty when it has none, or does not run."""
    if not isinstance(failure, UnavailableError) or failure.reason == MODEL_CHANGED:
        return b""
    call: Any = error
    for key, value in call.initial_metadata() or ():
        if key == _RESUME_TOKEN_KEY and isinstance(value, bytes):
            return value
    return b""


def _details(trailers: Iterable[tuple[str, str | bytes]]) -> ErrorDetails:
    for key, value in trailers:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return _unpack(status_pb2.Status.FromString(value))
            except DecodeError:
                break  # A proxy between client and router wrote details of its own; the code still counts.
    return ErrorDetails()


def _unpack(status: Any) -> ErrorDetails:
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    has_retry = False
    for packed in status.details:
        packed.Unpack(info)
        packed.Unpack(bad)
        has_retry = packed.Unpack(retry) or has_retry
    return ErrorDetails(
        reason=info.reason,
        metadata=dict(info.metadata),
        violations=tuple(FieldViolation(v.field, v.description) for v in bad.field_violations),
        retry_after=duration_from_wire(retry.retry_delay) if has_retry else None,
    )
