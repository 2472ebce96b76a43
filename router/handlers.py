"""gRPC handlers of the public methods: decoding, callers and their roles, errors, metrics, one log line per call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2  # type: ignore[import-untyped]  # no py.typed marker

from cluster.errors import CancelledError, InvalidRequestError, PenstockError
from router.call_context import CallContext, ClientGoneError
from router.call_origin import GRPC, enter_call, with_parent
from router.grpc_server import call_context
from router.identity import Caller, Role, minimum_role, require_role
from router.identity.revocations import seen
from router.metrics import RouterMetrics
from router.status import abort, to_rpc_status

_LOG = logging.getLogger(__name__)

Authenticate = Callable[[CallContext], Caller]
"""Function from a call to its caller. Raises UnauthenticatedError or PermissionDeniedError."""


class Malformed:
    """A request that is no valid message. Its call gets a clear error instead of gRPC's INTERNAL."""

    def __init__(self, detail: str) -> None:
        self.detail = detail


def service_handler(
    service: ServiceDescriptor, servicer: object, metrics: RouterMetrics, authenticate: Authenticate
) -> grpc.GenericRpcHandler[Any, Any]:
    """Build the handlers of all methods of a service.

    Each handler calls the method of `servicer` with the RPC's name. The method takes the request, the call's context
    and the caller. Where the client streams, it takes an iterator of requests.
    """
    handlers = {}
    for method in service.methods:
        behaviour = getattr(servicer, method.name)
        name = f"{service.name}/{method.name}"
        build, wrap = grpc.unary_unary_rpc_method_handler, cast("Callable[..., Any]", _unary)
        if method.server_streaming:
            build, wrap = grpc.unary_stream_rpc_method_handler, _stream
        elif method.client_streaming:
            build, wrap = grpc.stream_unary_rpc_method_handler, _upload
        admit = _caller_check(name, minimum_role(service.name, method.name), authenticate)
        handlers[method.name] = build(
            wrap(name, behaviour, metrics, admit),
            request_deserializer=_decoder(GetMessageClass(method.input_type)),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _caller_check(name: str, role: Role, authenticate: Authenticate) -> Authenticate:
    def admit(context: CallContext) -> Caller:
        caller = authenticate(context)
        require_role(caller, role, name)
        return caller

    return admit


def _decoder(message: type[Message]) -> Callable[[bytes], Message | Malformed]:
    def decode(data: bytes) -> Message | Malformed:
        try:
            return message.FromString(data)
        except DecodeError as error:
            # Strings that are not UTF-8 are among them.
            return Malformed(str(error))

    return decode


def _unary(name: str, behaviour: Callable[..., Awaitable[Message]], metrics: RouterMetrics, admit: Authenticate) -> Any:
    async def handle(request: Message | Malformed, context: Any) -> Message:
        began = time.monotonic()
        try:
            call = _entered(context)
            caller = admit(call)
            reply = await behaviour(_checked(request), call, caller)
        except BaseException as error:  # noqa: BLE001 - every outcome is counted; the error is re-raised or sent
            await _fail(name, error, context, metrics, began)
        _count(name, metrics, began, "OK", None)
        return reply

    return handle


def _stream(
    name: str, behaviour: Callable[..., AsyncIterator[None]], metrics: RouterMetrics, admit: Authenticate
) -> Any:
    async def handle(request: Message | Malformed, context: Any) -> None:
        began = time.monotonic()
        try:
            call = _entered(context)
            caller = admit(call)
            work = behaviour(_checked(request), call, caller)
            # A stream lives long: see StreamGenerate, which keeps no request either.
            del request
            await work  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 - every outcome is counted; the error is re-raised or sent
            await _fail(name, error, context, metrics, began)
        _count(name, metrics, began, "OK", None)

    return handle


def _upload(
    name: str, behaviour: Callable[..., Awaitable[Message]], metrics: RouterMetrics, admit: Authenticate
) -> Any:
    async def checked(requests: AsyncIterator[Message | Malformed]) -> AsyncIterator[Message]:
        async for request in requests:
            yield _checked(request)

    async def handle(requests: AsyncIterator[Message | Malformed], context: Any) -> Message:
        began = time.monotonic()
        try:
            call = _entered(context)
            reply = await behaviour(checked(requests), call, admit(call))
        except BaseException as error:  # noqa: BLE001 - every outcome is counted; the error is re-raised or sent
            await _fail(name, error, context, metrics, began)
        _count(name, metrics, began, "OK", None)
        return reply

    return handle


def _entered(context: Any) -> CallContext:
    call = call_context(context)
    enter_call(with_parent(GRPC, call.invocation_metadata()))
    return call


def _checked(request: Message | Malformed) -> Message:
    if isinstance(request, Malformed):
        raise InvalidRequestError.of("", f"the request is not a valid message: {request.detail}")
    return request


async def _fail(name: str, error: BaseException, context: Any, metrics: RouterMetrics, began: float) -> NoReturn:
    error = seen(error)
    if isinstance(error, ClientGoneError | grpc.aio.InternalError):
        # The client left during a write. grpc.aio raises its InternalError then.
        error = asyncio.CancelledError()
    if isinstance(error, asyncio.CancelledError):
        # The client is gone or its deadline has passed. Without this error gRPC would leak memory.
        _count(name, metrics, began, "CANCELLED", CancelledError.reason)
        raise error
    if not isinstance(error, Exception):
        raise error
    reason = error.reason if isinstance(error, PenstockError) else PenstockError.reason
    status = to_rpc_status(error)
    # Count the status that clients see: it tells our faults from wrong requests.
    _count(name, metrics, began, code_pb2.Code.Name(status.code), reason)
    await abort(context, error, status)


def _count(name: str, metrics: RouterMetrics, began: float, code: str, reason: str | None) -> None:
    metrics.call(name, code, reason)
    level = logging.INFO if reason is not None else logging.DEBUG
    if _LOG.isEnabledFor(level):
        seconds = round(time.monotonic() - began, 4)
        _LOG.log(level, "call.ended", extra={"method": name, "code": code, "reason": reason, "seconds": seconds})
