"""Errors as Anthropic's clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.http.errors import HttpError

_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Type of an error by its status. Others are `api_error`, or `invalid_request_error` below 500."""


def error_object(error: HttpError, request_id: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}
