"""Errors as OpenAI's clients read them: a status, an object, and headers for retries. The text is that of gRPC."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed marker

from cluster.errors import (
    FileUnknownError,
    GenerationFailedError,
    InvalidRequestError,
    JobExistsError,
    KeyReusedError,
    ModelChangedError,
)
from penstock.models import FieldViolation
from penstock.values.objects import BodyError
from router.status import to_rpc_status
from router.validation.lengths import CONTEXT

_STATUSES: Mapping[int, tuple[int, str]] = {
    code_pb2.INVALID_ARGUMENT: (400, "invalid_request_error"),
    code_pb2.FAILED_PRECONDITION: (400, "invalid_request_error"),
    code_pb2.UNAUTHENTICATED: (401, "authentication_error"),
    code_pb2.PERMISSION_DENIED: (403, "permission_error"),
    code_pb2.NOT_FOUND: (404, "not_found_error"),
    code_pb2.ALREADY_EXISTS: (409, "invalid_request_error"),
    code_pb2.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    code_pb2.CANCELLED: (499, "server_error"),
    code_pb2.UNAVAILABLE: (503, "server_error"),
    code_pb2.DEADLINE_EXCEEDED: (504, "server_error"),
}
"""HTTP status and type of an error by its gRPC status. Others are 500."""
_BY_REASON = {
    "ADAPTER_IN_USE": (409, "invalid_request_error"),
    "FILE_TOO_LARGE": (413, "invalid_request_error"),
    "REGISTRY_CONFLICT": (412, "invalid_request_error"),
    "TAKEN_OVER": (409, "invalid_request_error"),
}
"""The same by our reason, where it says more than the gRPC status."""
_CODES = {"MODEL_NOT_FOUND": "model_not_found"}
"""Codes of OpenAI by our reason. Other errors have the reason in small letters."""
_NAMES = {404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED"}
"""gRPC statuses of errors that no service raised, by their HTTP status."""
_KEY, _LAST_EVENT = "Idempotency-Key", "Last-Event-ID"
_OF_KEYS = (JobExistsError.reason, KeyReusedError.reason)
"""Reasons that are about the key."""
_LONGEST_RETRY_S = 120.0
"""OpenAI's client gives up on a longer wait, so it is told not to try."""
_FIELDS = (
    (
        r"^sampling\.structured_output\.structural_tag\.(structures\[\d+\])\.json_schema",
        r"response_format.\1.schema",
    ),
    (r"^sampling\.structured_output\.structural_tag\.", "response_format."),
    (r"^sampling\.structured_output.*", "response_format"),
    (r"^prompt\.chat\.(tools\[\d+\])\.", r"\1.function."),
    (r"^prompt\.tokens\.ids", "prompt"),
    (r"^prompt\.chat\.template_kwargs", "chat_template_kwargs"),
    (r"^prompt\.chat$", "messages"),
    (r"^sampling$", ""),
    (r"^idempotency_key$", _KEY),
    (r"^resume\.received_tokens.*", _LAST_EVENT),
    (r"^probabilities$", "use_activation"),
    (r"^options\.truncation\.max_tokens", "truncate_prompt_tokens"),
    (r"^options\.truncation\.side", "truncation_side"),
    (r"^(?:prompt\.chat|sampling|options)\.", ""),
    (r"^reasoning\.effort", "reasoning_effort"),
    (r"^reasoning\.include", "include_reasoning"),
    (r"^tool_choice\..*", "tool_choice"),
    (r"\.parts(\[\d+\])\.image\b.*", r".content\1"),
    (r"\.parts\b", ".content"),
    (r"(\.tool_calls\[\d+\])\.(name|arguments)", r"\1.function.\2"),
)
"""Patterns in the paths of our fields, and what they are in a body."""


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error that a client sees."""

    status: int
    kind: str
    message: str
    code: str
    field: str | None = None
    """Path of the field in the body that is wrong."""
    retry_after_s: float | None = None
    """Seconds after which a retry makes sense; None where it makes none."""
    rpc: str = ""
    """Name of the gRPC status that stands for it; empty where no service raised it."""

    @property
    def counted(self) -> str:
        """Name of the gRPC status by which metrics count it, as they count calls over gRPC."""
        return self.rpc or _NAMES.get(self.status, "INTERNAL" if self.status >= 500 else "INVALID_ARGUMENT")

    def object(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.field, "code": self.code}}

    def in_stream(self) -> dict[str, Any]:
        """Return the last object of a stream that fails, which has no headers any more."""
        return {"error": {**self.object()["error"], **self.again()}}

    def again(self) -> dict[str, Any]:
        """Return the field that tells a client in seconds when to try again; no field where it makes no sense."""
        return {} if self.retry_after_s is None else {"retry_after": round(self.retry_after_s, 3)}

    def retry_line(self) -> bytes:
        """Return the line of an event that tells a client when to come back; empty where it makes no sense."""
        if self.retry_after_s is None or self.retry_after_s > _LONGEST_RETRY_S:
            return b""
        return f"retry: {math.ceil(1000 * self.retry_after_s)}\n".encode()

    def headers(self) -> dict[str, str]:
        """Return the headers that tell clients whether and when to try again, and how to say who they are."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return {"x-should-retry": "false", "www-authenticate": "Bearer"}
        if self.retry_after_s is None or self.retry_after_s > _LONGEST_RETRY_S:
            again = {"x-should-retry": "false"}
            return again if self.retry_after_s is None else {**again, "retry-after": _whole(self.retry_after_s)}
        return {
            "x-should-retry": "true",
            "retry-after": _whole(self.retry_after_s),
            "retry-after-ms": str(math.ceil(1000 * self.retry_after_s)),
        }


class WrittenError(Exception):
    """What the services refuse in a request, with the names that its body has for the fields."""

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        self.refused = InvalidRequestError(violations)
        super().__init__(str(self.refused))


def http_error(error: BaseException, *, came_back: bool = False) -> HttpError:
    """Return what a client sees of an error of the services or of the body's reader.

    `came_back`: whether it asked to go on with a stream.
    """
    if isinstance(error, BodyError):
        text = f"{error.field}: {error.problem}" if error.field else f"the body {error.problem}"
        return HttpError(400, "invalid_request_error", text, "invalid_request", error.field or None)
    written = isinstance(error, WrittenError)
    if isinstance(error, WrittenError):
        error = error.refused
    status = to_rpc_status(error)
    reason, violations, retry_after_s = _details(status)
    if reason == ModelChangedError.reason:
        # The clients of HTTP APIs would send the same ids again, which mean another text now.
        retry_after_s = None
    found = error_of(status.code, reason, status.message, violations, name=str if written else in_body)
    if came_back and isinstance(error, GenerationFailedError) and not error.attempts:
        # No engine failed: as a response that is forgotten, what the client comes back to isn't there.
        found = replace(found, status=404, kind="not_found_error", field=_LAST_EVENT, rpc="NOT_FOUND")
    if isinstance(error, FileUnknownError) and error.field:
        found = replace(found, field=error.field)
    return replace(found, retry_after_s=retry_after_s)


def error_of(
    code: int,
    reason: str,
    message: str,
    violations: Sequence[tuple[str, str]],
    *,
    name: Callable[[str], str] | None = None,
) -> HttpError:
    """Return what a client sees of an error that makes no retry.

    Args:
        code: the gRPC status.
        reason: our word for it.
        message: sentence for people.
        violations: paths of our fields that are wrong, and what is wrong with them.
        name: returns what a body calls one of them; `in_body` by default.
    """
    http, kind = _BY_REASON.get(reason) or _STATUSES.get(code, (500, "server_error"))
    field, word = (_KEY if reason in _OF_KEYS else None), _CODES.get(reason, reason.lower())
    if violations:
        named = [((name or in_body)(field), text) for field, text in violations]
        field = named[0][0] or None
        message = "; ".join(f"{where}: {text}" if where else text for where, text in named)
        if CONTEXT in violations[0][1]:
            word = "context_length_exceeded"
    return HttpError(http, kind, message, word, field, rpc=code_pb2.Code.Name(code))


def _details(status: status_pb2.Status) -> tuple[str, list[tuple[str, str]], float | None]:
    reason, violations, retry_after_s = "INTERNAL", [], None
    for detail in status.details:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad):
            violations = [(item.field, item.description) for item in bad.field_violations]
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, violations, retry_after_s


def in_body(field: str) -> str:
    """Return the path of one of our fields in a body."""
    if field.startswith("inputs"):
        return field.replace("inputs", "input", 1).replace(".tokens.ids", "").removesuffix(".text")
    for pattern, name in _FIELDS:
        field = re.sub(pattern, name, field)
    return field


def _whole(seconds: float) -> str:
    return str(math.ceil(seconds))
