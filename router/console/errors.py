"""Errors of calls, as the page shows them."""

from __future__ import annotations

from typing import Any

import grpc
from aiohttp import web

from penstock.client import InvalidArgumentError, PenstockClientError
from router.console.answers import answer
from router.console.guard import API, Handler

_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


def status_of(error: PenstockClientError) -> int:
    """Return the HTTP status of a call's error."""
    return _STATUS.get(error.code, 500)


def fields_of(error: PenstockClientError) -> dict[str, Any]:
    """Return what the page shows of a call's error."""
    violations = error.violations if isinstance(error, InvalidArgumentError) else ()
    return {
        "error": str(error.waited_for or error),
        "reason": error.reason or error.code.name,
        "violations": violations,
        "retry_after": error.retry_after,
    }


@web.middleware
async def show_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the error of a call, or of a request that is no good, as JSON."""
    try:
        return await handler(request)
    except PenstockClientError as error:
        return answer(fields_of(error), status_of(error))
    except (TypeError, ValueError, OverflowError) as error:
        # The client's words for arguments, which are the user's.
        return answer({"error": str(error), "reason": "INVALID_REQUEST", "violations": ()}, 400)
    except web.HTTPException as error:
        if not request.path.startswith(API) or error.status < 400:
            raise
        return answer({"error": error.reason, "reason": type(error).__name__, "violations": ()}, error.status)
