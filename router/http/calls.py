"""Calls of the services for HTTP requests."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.compression_utils import HAS_BROTLI, HAS_ZSTD

from cluster.errors import PenstockError
from cluster.telemetry.tracing.context import TRACE_PARENT, TRACE_STATE
from penstock.batch.encoding import is_unicode
from penstock.v1 import inference_pb2 as api
from penstock.values.objects import BodyError, shown
from penstock.values.results import Receipt
from router.call_context import CallContext, ClientGoneError
from router.call_origin import ANTHROPIC, OPENAI, RESPONSES, CallOrigin, enter_call, with_span
from router.http.bodies import LAST_EVENT, Asked, read_json
from router.http.context import TOLD, HttpContext
from router.http.errors import HttpError, http_error
from router.http.event_stream import EventEncoder, EventStream, SharedStream
from router.http.openapi.absent import absent
from router.identity import Caller
from router.identity.authenticator import LOOK_S
from router.identity.revocations import seen
from router.inference.servicer import InferenceServicer
from router.metrics import RouterMetrics

_LOG = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
IGNORED = "x-penstock-ignored"
"""Header with the fields of the body that nobody knows."""
_IGNORED_NAME, _IGNORED_CHARACTERS = 200, 2_000
"""Most characters of a name in that header, before they are escaped, and most of all names."""
_JSON_TYPE = "application/json"
_ENCODINGS = ("gzip", "deflate", *(["br"] if HAS_BROTLI else []), *(["zstd"] if HAS_ZSTD else []), "identity")
"""Compressions of a body that are undone before it is read. The libraries for some may be missing."""
BODY_S = 60.0
"""Longest time in seconds until a body has arrived."""
_CALLER = web.RequestKey("caller", tuple[Caller, float])
"""Caller of a request, and when it was authenticated, in monotonic seconds. Routes ask before they read the body, and
again after it. For `LOOK_S` it counts as known, as does a key that was taken out of the keys file.
"""

_FAILED = web.RequestKey("failed", bool)
"""Whether the call of a request was counted as one that failed: a stream fails under the status 200."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ErrorBody = Callable[[HttpError, str], Mapping[str, Any]]
"""Function that returns an error of a request id as the clients of one API read it."""


class Calls:
    """What the routes of all APIs share: who calls, generations, and errors."""

    def __init__(
        self,
        inference: InferenceServicer,
        authenticate: Callable[[CallContext], Caller],
        metrics: RouterMetrics,
        *,
        keys: Callable[[], bool],
        everybody: bool,
    ) -> None:
        """`keys` returns whether the router knows any API keys, `everybody` is whether callers need none."""
        self.inference = inference
        self._authenticate = authenticate
        self._metrics = metrics
        self._keys = keys
        self.open = everybody
        """Whether everybody who reaches the port may call."""
        self.error_bodies: list[tuple[Callable[[web.Request], bool], ErrorBody]] = []
        """Forms of errors, each with what tells whether it is that of a request. Others are those of OpenAI."""

    def caller(
        self, request: web.Request, stream: EventStream | SharedStream | None = None
    ) -> tuple[HttpContext, Caller]:
        """Return the call of a request, and who makes it. `stream` is its answer, if that is not sent at once.

        Raises:
            UnauthenticatedError: nobody who is known.
        """
        context, now = HttpContext(request, stream, keys=self._keys()), time.monotonic()
        caller, known_at = request.get(_CALLER, (None, 0.0))
        if caller is None or now - known_at > LOOK_S:
            caller = self._authenticate(context)
            request[_CALLER] = caller, now
        return context, caller

    async def generate(self, request: web.Request, generate: api.GenerateRequest) -> api.GenerateResponse:
        """Return a whole answer."""
        return await self.inference.Generate(generate, *self.caller(request))

    def stream(
        self,
        request: web.Request,
        generate: api.StreamGenerateRequest,
        encoder: EventEncoder,
        headers: Callable[[], Mapping[str, str]],
    ) -> Awaitable[web.StreamResponse]:
        """Answer with a stream. An error before its first line is raised; a later one becomes its last line.

        No frame keeps `generate` while the stream goes on, where the caller's does not.
        """
        stream = EventStream(request, encoder, headers, goes_on=bool(generate.generate.idempotency_key))
        return self.answer(request, stream, self.inference.StreamGenerate(generate, *self.caller(request, stream)))

    async def answer(self, request: web.Request, stream: EventStream, work: Awaitable[object]) -> web.StreamResponse:
        """Answer with what some work writes to a stream. Errors as in `stream`."""
        try:
            await work
        except (PenstockError, asyncio.CancelledError) as error:
            told = seen(error)
            if not stream.begun or not isinstance(told, PenstockError):
                raise told from None
            said = _said(request, told)
            self.note(request, said)
            await stream.fail(said)
        except ClientGoneError:
            raise asyncio.CancelledError from None
        finally:
            stream.close()
        return await stream.end()

    def shared_fields(self, asked: Asked) -> dict[str, Any]:
        """Return the fields that whole answers and chunks share."""
        digest = self.inference.digest(asked.generate.model)
        fields: dict[str, Any] = {"system_fingerprint": f"fp_{digest[:16]}" if digest else None}
        return {**fields, "service_tier": asked.tier} if asked.tier else fields

    # --- errors -------------------------------------------------------------------------------------------------------

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer every error in the form of its API, and count the call."""
        parent, state = request.headers.get(TRACE_PARENT, ""), request.headers.get(TRACE_STATE, "")
        enter_call(with_span(_origin(request.path), parent, state))
        try:
            response = await handler(request)
        except asyncio.CancelledError as error:
            if (told := seen(error)) is not error:
                return self._answer(request, _said(request, told))
            if _FAILED not in request:
                self._metrics.call(_name(request), "CANCELLED", None)
            raise
        except web.HTTPException as error:
            # No route, another method, or a body that is too large. A route for an id may fit a path that isn't there.
            if isinstance(error, web.HTTPNotFound | web.HTTPMethodNotAllowed) and (lacks := absent(request.path)):
                return self._answer(request, HttpError(404, "not_found_error", lacks, "not_found"))
            kind = "not_found_error" if error.status == web.HTTPNotFound.status_code else "invalid_request_error"
            code = HTTPStatus(error.status).phrase.lower().replace(" ", "_")
            answer = self._answer(request, HttpError(error.status, kind, _told(request, error), code))
            if isinstance(error, web.HTTPMethodNotAllowed):
                answer.headers["Allow"] = error.headers["Allow"]
            return answer
        except web.RequestPayloadError:
            answer = self._answer(request, http_error(_broken(request)))
            # Where the next request begins can't be told.
            answer.force_close()
            return answer
        except Exception as error:  # noqa: BLE001 - the table of errors hides what is not meant for clients
            return self._answer(request, _said(request, error))
        if _FAILED not in request:
            self._metrics.call(_name(request), "OK", None)
        return response

    def _answer(self, request: web.Request, error: HttpError) -> web.Response:
        request_id = own_id(request) or _new_id()
        self.note(request, error, request_id)
        headers = {**error.headers(), REQUEST_ID: request_id}
        forms = (form for fits, form in self.error_bodies if fits(request))
        form = next(forms, None)
        body = error.object() if form is None else form(error, request_id)
        return web.json_response(body, status=error.status, headers=headers)

    def note(self, request: web.Request, error: HttpError, request_id: str = "") -> None:
        """Count and log an error. `request_id` is the one that the client gets with it."""
        request[_FAILED] = True
        self._metrics.call(_name(request), error.counted, error.code.upper())
        said = {"path": request.path, "status": error.status, "reason": error.code, "request_id": request_id}
        _LOG.info("http.failed", extra=said)

    async def json(self, request: web.Request) -> Mapping[str, Any]:
        """Return the object in the body of a request whose caller is known.

        Raises:
            UnauthenticatedError: nobody who is known; the body is not read then.
            BodyError: there is none.
            web.HTTPRequestTimeout: it does not arrive.
        """
        self.caller(request)
        return await json_body(request)


async def json_body(request: web.Request) -> Mapping[str, Any]:
    """Return the object in a request's body.

    Raises:
        BodyError: there is none.
        web.HTTPRequestTimeout: it does not arrive.
    """
    if request.content_type != _JSON_TYPE:
        # A page in a browser could send any other type to a router on its user's machine without being asked.
        raise BodyError("", f"must have the content type {_JSON_TYPE}, got {content_type(request)}")
    check_encoding(request)
    try:
        async with asyncio.timeout(BODY_S):
            data = await _body(request)
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    return read_json(data)


def content_type(request: web.Request) -> str:
    """Return the content type of a body for an error."""
    return request.content_type[:80] if "Content-Type" in request.headers else "none"


def check_encoding(request: web.Request) -> None:
    """Check that a body is compressed in a way that is known: any other would be read as it came.

    Raises:
        BodyError: it is not.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() not in _ENCODINGS:
        known = ", ".join(_ENCODINGS[:-1])
        raise BodyError("Content-Encoding", f"must be {known} or absent, got {shown(encoding)}")


def _broken(request: web.Request) -> BodyError:
    """Return the error for a body that ends too early, or is not compressed as it says."""
    encoding = request.headers.get("Content-Encoding", "")
    if encoding:
        return BodyError("Content-Encoding", f"must be that of the body, which is no whole {shown(encoding)}")
    return BodyError("", "must be whole, and its chunks well formed")


async def _body(request: web.Request) -> bytes:
    """Return a request's body, which `read` would keep as long as the request, and so as long as its stream.

    Raises:
        web.HTTPRequestEntityTooLarge: it has more bytes than the application takes.
    """
    data, most = bytearray(), request.client_max_size
    # A compressed body then comes in few parts.
    request.content.set_read_chunk_size(most)
    async for part in request.content.iter_any():
        data += part
        if len(data) > most:
            raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=len(data))
    return bytes(data)


def answer_headers(request: web.Request, request_id: str, ignored: Iterable[str]) -> dict[str, str]:
    """Return the headers of an answer. The client's own name of the request goes before ours."""
    headers = {REQUEST_ID: own_id(request) or request_id}
    return {**headers, **ignored_headers(ignored), **request.get(TOLD, {})}


def ignored_headers(names: Iterable[str]) -> dict[str, str]:
    """Return the header that names the fields of a body which were left out; none where there are none.

    A client writes the names, and one that nobody knows in each message of a long chat makes thousands. Many clients
    and proxies refuse an answer with more than 4 or 8 KiB of headers, and every one refuses control characters.
    """
    # In ASCII, because clients read the bytes of a header in different ways.
    written = [ascii(name[:_IGNORED_NAME])[1:-1] + ("..." if len(name) > _IGNORED_NAME else "") for name in names]
    shown, left = "", len(written)
    for name in written:
        longer = f"{shown}, {name}" if shown else name
        if len(longer) > _IGNORED_CHARACTERS:
            break
        shown, left = longer, left - 1
    if left:
        shown += f", and {left} more"
    return {IGNORED: shown} if shown else {}


def timing_headers(receipts: Sequence[Receipt]) -> dict[str, str]:
    """Return how long requests of one call waited and ran, as browsers and OpenAI's clients show it."""
    attempts = [attempt for receipt in receipts for attempt in receipt.attempts]
    parts = {
        "queue": sum(attempt.queue_time for attempt in attempts),
        "prefill": sum(attempt.prefill_time for attempt in attempts),
        "decode": sum(attempt.decode_time for attempt in attempts),
    }
    return {
        "openai-processing-ms": f"{1000 * max(receipt.total_time for receipt in receipts):.0f}",
        "server-timing": ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in parts.items()),
    }


async def name_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Give an answer a request id where it has none."""
    if REQUEST_ID not in response.headers:
        response.headers[REQUEST_ID] = own_id(request) or _new_id()


def _said(request: web.Request, error: BaseException) -> HttpError:
    """Return what the client of a request sees of an error."""
    return http_error(error, came_back=bool(request.headers.get(LAST_EVENT)))


def own_id(request: web.Request) -> str:
    """Return the client's own name of a request; empty where there is none, or none that an answer can repeat."""
    name = request.headers.get(REQUEST_ID, "")
    return name if is_unicode(name) else ""


def _new_id() -> str:
    return secrets.token_hex(12)


def _told(request: web.Request, error: web.HTTPException) -> str:
    """Return what a client is told of an error that no service raised."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{error.reason}: {request.path} takes {error.headers['Allow']}, not {request.method}"
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return f"{error.reason}: a body has at most {request.client_max_size} bytes"
    if isinstance(error, web.HTTPNotFound):
        return f"{error.reason}: there is no {request.path[:200]}{_meant(request)}"
    return error.reason


def _meant(request: web.Request) -> str:
    """Return the path that a client most likely meant, as a question; most often its base URL lacks /v1 or doubles it.
    Empty where there is none.
    """
    parts = [part for part in request.path.split("/") if part]
    bare = "/".join(part for index, part in enumerate(parts) if part != "v1" or index > 1)
    infos = [resource.get_info() for resource in request.app.router.resources()]
    for path in (f"/v1/{bare}", f"/{bare}"):
        for info in infos if path != request.path else ():
            # A route of an id may fit a path that is not there.
            if info.get("path") == path or ("pattern" in info and info["pattern"].fullmatch(path)):
                return f"; did you mean {path[:200]}?"
    return ""


def _name(request: web.Request) -> str:
    """Return the name of a route for metrics; the same for all paths that nobody serves."""
    resource = request.match_info.route.resource
    return f"http {resource.canonical}" if resource is not None else "http"


def _origin(path: str) -> CallOrigin:
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return RESPONSES if path.startswith("/v1/responses") else OPENAI
