"""Errors as google.rpc.Status. Only this file decides what a client sees of an error.

Every status has exactly one ErrorInfo of domain DOMAIN; its reason is the error's stable name.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed marker
from grpc_status import rpc_status

from cluster.errors import (
    AdapterInUseError,
    AnnouncementLimitError,
    AnnouncementNotFoundError,
    BatchUnknownError,
    CancelledError,
    DeadlineError,
    EngineRequestError,
    FileTooLargeError,
    FileUnknownError,
    GenerationFailedError,
    InvalidRequestError,
    JobExistsError,
    JobLimitError,
    JobNotFoundError,
    JobResultsLostError,
    KeyReusedError,
    KeyRevokedError,
    ModelNotFoundError,
    NotInTimeError,
    PenstockError,
    PermissionDeniedError,
    QuarantinedError,
    QueueFullError,
    QueueTimeoutError,
    QuotaExceededError,
    RegistryConflictError,
    RequestError,
    RequestNotFoundError,
    ResponseLimitError,
    ResponseNotFoundError,
    RolloutStateError,
    SlowReaderError,
    TakenOverError,
    TooManyAttemptsError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.wire import duration_to_wire

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

DOMAIN = "penstock.dev"
_MAX_MESSAGE_BYTES = 512
_MAX_FACT_BYTES = 256
_MAX_DETAIL_BYTES = 3_072
"""Largest list of violations. Clients may drop a response with trailers above 8 KiB; base64 and the message, which is
sent twice, take the rest."""

CODES: Mapping[type[PenstockError], int] = {
    InvalidRequestError: code_pb2.INVALID_ARGUMENT,
    EngineRequestError: code_pb2.INVALID_ARGUMENT,
    UnauthenticatedError: code_pb2.UNAUTHENTICATED,
    KeyRevokedError: code_pb2.UNAUTHENTICATED,
    PermissionDeniedError: code_pb2.PERMISSION_DENIED,
    ModelNotFoundError: code_pb2.NOT_FOUND,
    RequestNotFoundError: code_pb2.NOT_FOUND,
    JobNotFoundError: code_pb2.NOT_FOUND,
    FileUnknownError: code_pb2.NOT_FOUND,
    BatchUnknownError: code_pb2.NOT_FOUND,
    FileTooLargeError: code_pb2.INVALID_ARGUMENT,
    ResponseNotFoundError: code_pb2.NOT_FOUND,
    JobResultsLostError: code_pb2.DATA_LOSS,
    KeyReusedError: code_pb2.ALREADY_EXISTS,
    JobExistsError: code_pb2.ALREADY_EXISTS,
    RegistryConflictError: code_pb2.ABORTED,
    AdapterInUseError: code_pb2.FAILED_PRECONDITION,
    AnnouncementLimitError: code_pb2.RESOURCE_EXHAUSTED,
    AnnouncementNotFoundError: code_pb2.NOT_FOUND,
    RolloutStateError: code_pb2.FAILED_PRECONDITION,
    QueueFullError: code_pb2.RESOURCE_EXHAUSTED,
    QuotaExceededError: code_pb2.RESOURCE_EXHAUSTED,
    NotInTimeError: code_pb2.RESOURCE_EXHAUSTED,
    TooManyAttemptsError: code_pb2.RESOURCE_EXHAUSTED,
    JobLimitError: code_pb2.RESOURCE_EXHAUSTED,
    ResponseLimitError: code_pb2.RESOURCE_EXHAUSTED,
    SlowReaderError: code_pb2.RESOURCE_EXHAUSTED,
    UnavailableError: code_pb2.UNAVAILABLE,
    QueueTimeoutError: code_pb2.DEADLINE_EXCEEDED,
    DeadlineError: code_pb2.DEADLINE_EXCEEDED,
    # Not UNAVAILABLE: clients retry that without a check, and output may have been delivered.
    GenerationFailedError: code_pb2.ABORTED,
    TakenOverError: code_pb2.ABORTED,
    QuarantinedError: code_pb2.FAILED_PRECONDITION,
    CancelledError: code_pb2.CANCELLED,
    PenstockError: code_pb2.INTERNAL,
}
"""gRPC status of each error. One that is not named has that of the class it derives from."""
TOO_LATE_CODE: int = code_pb2.DEADLINE_EXCEEDED
"""Status of a NotInTimeError to which no wait would help."""

_log = logging.getLogger(__name__)


def to_status(error: BaseException) -> grpc.Status:
    """Build the status of an error. Text that is not meant for clients is logged under an incident id, and hidden."""
    return rpc_status.to_status(to_rpc_status(error))


async def abort(
    context: ServicerContext[Any, Any], error: BaseException, status: status_pb2.Status | None = None
) -> NoReturn:
    """End a call with the status of an error. `status`: that status where it exists already; building it again would
    give a hidden error another incident id.

    Raises:
        grpc.aio.AbortError: always; but a cancellation or an earlier abort is raised again unchanged.
    """
    if isinstance(error, asyncio.CancelledError | grpc.aio.AbortError):
        raise error
    told = to_status(error) if status is None else rpc_status.to_status(status)
    await context.abort_with_status(told)  # type: ignore[attr-defined]  # missing in the stubs
    raise AssertionError("abort_with_status returned")  # pragma: no cover


def code_of(kind: type[BaseException]) -> int:
    """Return the gRPC status of a class of errors."""
    return next((CODES[each] for each in kind.__mro__ if each in CODES), code_pb2.INTERNAL)


def to_rpc_status(error: BaseException) -> status_pb2.Status:
    """Build the message for the trailers."""
    match error:
        case UnavailableError():
            return _status(error, {}, _retry_after(error.retry_after_s))
        case GenerationFailedError():
            facts = {
                "request_id": error.request_id,
                "delivered_tokens": str(error.delivered_tokens),
                "prompt_tokens": str(error.prompt_tokens),
                "attempts": str(error.attempts),
            }
            return _status(error, facts)
        case TooManyAttemptsError():
            return _status(error, {"limit": str(error.limit)}, _retry_after(error.retry_after_s))
        case RequestError() if code_of(type(error)) != code_pb2.INTERNAL:
            return _request_status(error)
        case EngineRequestError():
            return _hidden(error, "the engine refuses this request")
        case _:
            return _hidden(error, "internal error")


def _request_status(error: RequestError) -> status_pb2.Status:
    match error:
        case InvalidRequestError():
            return _invalid(error)
        case PermissionDeniedError():
            return _status(error, {"tenant": error.tenant, error.subject: error.value})
        case (
            RegistryConflictError()
            | AdapterInUseError()
            | KeyRevokedError()
            | RolloutStateError()
            | AnnouncementLimitError()
        ):
            return _status(error, error.facts)
        case JobLimitError():
            # No RetryInfo: waiting does not help until a job is deleted.
            quota = error_details_pb2.QuotaFailure()
            quota.violations.add(subject=error.what, description=str(error))
            return _status(error, {"bound": error.what, "limit": str(error.limit)}, quota)
        case QueueFullError():
            facts = {"pool": error.pool, "limit": str(error.limit)}
            if error.tenant:
                facts["tenant"] = error.tenant
            return _status(error, facts, _retry_after(error.retry_after_s))
        case QuotaExceededError():
            facts = {"pool": error.pool, "quota": error.quota, "limit": str(error.limit)}
            if error.retry_after_s is None:
                facts["asked"] = str(error.asked)
            if error.used is not None:
                facts["used"] = f"{error.used:.6g}"
            return _status(error, facts, *_quota_details(error))
        case NotInTimeError():
            facts = {"bound": error.bound, "estimate_s": f"{error.wait_s:.3f}"}
            if error.retry_after_s is None:
                return _pack(TOO_LATE_CODE, str(error), error.reason, facts, ())
            return _status(error, facts, _retry_after(error.retry_after_s))
        case _:
            return _status(error, _facts(error))


def _facts(error: RequestError) -> Mapping[str, str]:
    match error:
        case ModelNotFoundError():
            return {"model": error.model}
        case RequestNotFoundError():
            return {"target": error.target}
        case JobNotFoundError() | JobExistsError() | JobResultsLostError():
            return {"job_id": error.job_id}
        case ResponseNotFoundError():
            return {"response_id": error.response_id}
        case KeyReusedError() | TakenOverError():
            return {"request_id": error.request_id}
        case SlowReaderError():
            return {"unread_bytes": str(error.unread_bytes), "limit_bytes": str(error.limit_bytes)}
        case QuarantinedError():
            return {"incident": error.incident}
        case QueueTimeoutError():
            limit = {} if error.limit_s is None else {"limit_s": f"{error.limit_s:.3f}"}
            return {"waited_s": f"{error.waited_s:.3f}", **limit}
        case _:
            return {}


def _status(error: PenstockError, facts: Mapping[str, str], *details: Message) -> status_pb2.Status:
    return _pack(code_of(type(error)), str(error), error.reason, facts, details)


def _invalid(error: InvalidRequestError) -> status_pb2.Status:
    bad = error_details_pb2.BadRequest()
    for violation in error.violations:
        bad.field_violations.add(
            field=_cut(violation.field, _MAX_FACT_BYTES),
            description=_cut(violation.description, _MAX_MESSAGE_BYTES),
        )
    while bad.ByteSize() > _MAX_DETAIL_BYTES:
        bad.field_violations.pop()
    return _status(error, {}, bad)


def _hidden(error: BaseException, text: str) -> status_pb2.Status:
    incident = secrets.token_hex(8)
    reason = error.reason if isinstance(error, PenstockError) else PenstockError.reason
    _log.error(
        "router.incident", exc_info=error, extra={"incident": incident, "reason": reason, "error": type(error).__name__}
    )
    return _pack(code_of(type(error)), f"{text}, incident {incident}", reason, {"incident": incident}, ())


def _pack(
    code: int, message: str, reason: str, facts: Mapping[str, str], details: tuple[Message, ...]
) -> status_pb2.Status:
    metadata = {key: _cut(value, _MAX_FACT_BYTES) for key, value in facts.items()}
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    status = status_pb2.Status(code=code, message=_cut(message, _MAX_MESSAGE_BYTES))
    for detail in (info, *details):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _quota_details(error: QuotaExceededError) -> list[Message]:
    failure = error_details_pb2.QuotaFailure()
    failure.violations.add(
        subject=_cut(f"tenant:{error.tenant}/pool:{error.pool}", _MAX_FACT_BYTES),
        description=_cut(str(error), _MAX_MESSAGE_BYTES),
    )
    # Waiting does not help where the request alone exceeds the quota.
    return [failure] if error.retry_after_s is None else [failure, _retry_after(error.retry_after_s)]


def _retry_after(seconds: float) -> error_details_pb2.RetryInfo:
    return error_details_pb2.RetryInfo(retry_delay=duration_to_wire(max(seconds, 0.0)))


def _cut(text: str, limit: int) -> str:
    data = text.encode()
    return text if len(data) <= limit else f"{data[: limit - 3].decode(errors='ignore')}..."
