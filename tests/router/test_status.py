"""Every error reaches the client as one google.rpc.Status with the documented code and details."""

import asyncio
import base64
import logging
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from cluster import errors
from penstock.models import FieldViolation
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import inference_pb2_grpc as services
from router.status import DOMAIN, abort, to_rpc_status

CASES = [
    (errors.InvalidRequestError.of("n", "must be 1"), "INVALID_ARGUMENT", "INVALID_REQUEST", {}, "BadRequest"),
    (errors.UnauthenticatedError("who?"), "UNAUTHENTICATED", "UNAUTHENTICATED", {}, None),
    (errors.KeyRevokedError("5d41"), "UNAUTHENTICATED", "KEY_REVOKED", {"key": "5d41"}, None),
    (
        errors.TooManyAttemptsError(60, 1.5),
        "RESOURCE_EXHAUSTED",
        "TOO_MANY_ATTEMPTS",
        {"limit": "60"},
        "RetryInfo",
    ),
    (
        errors.PermissionDeniedError("acme", "model", "m", ["a"]),
        "PERMISSION_DENIED",
        "PERMISSION_DENIED",
        {"tenant": "acme", "model": "m"},
        None,
    ),
    (errors.ModelNotFoundError("m", ["a"]), "NOT_FOUND", "MODEL_NOT_FOUND", {"model": "m"}, None),
    (errors.RequestNotFoundError("r"), "NOT_FOUND", "REQUEST_NOT_FOUND", {"target": "r"}, None),
    (errors.JobNotFoundError("j"), "NOT_FOUND", "JOB_NOT_FOUND", {"job_id": "j"}, None),
    (errors.FileUnknownError("f"), "NOT_FOUND", "FILE_NOT_FOUND", {}, None),
    (errors.BatchUnknownError("b"), "NOT_FOUND", "BATCH_NOT_FOUND", {}, None),
    (errors.FileTooLargeError(200), "INVALID_ARGUMENT", "FILE_TOO_LARGE", {}, None),
    (errors.ResponseNotFoundError("r"), "NOT_FOUND", "RESPONSE_NOT_FOUND", {"response_id": "r"}, None),
    (errors.ResponseLimitError(3, 9), "RESOURCE_EXHAUSTED", "RESPONSE_LIMIT", {}, None),
    (errors.JobExistsError("k", "j"), "ALREADY_EXISTS", "JOB_KEY_REUSED", {"job_id": "j"}, None),
    (
        errors.AdapterInUseError("poet", 2),
        "FAILED_PRECONDITION",
        "ADAPTER_IN_USE",
        {"adapter": "poet", "uses": "2"},
        None,
    ),
    (errors.AnnouncementNotFoundError("x"), "NOT_FOUND", "ANNOUNCEMENT_NOT_FOUND", {}, None),
    (
        errors.AnnouncementLimitError("demo", "autoscale.announced_per_tenant", 16),
        "RESOURCE_EXHAUSTED",
        "ANNOUNCEMENT_LIMIT",
        {"pool": "demo", "bound": "autoscale.announced_per_tenant", "limit": "16"},
        None,
    ),
    (
        errors.RolloutStateError("demo", "another roll-out goes on"),
        "FAILED_PRECONDITION",
        "ROLLOUT_STATE",
        {"pool": "demo"},
        None,
    ),
    (
        errors.RegistryConflictError("tenant", "acme", 3, 4),
        "ABORTED",
        "REGISTRY_CONFLICT",
        {"kind": "tenant", "name": "acme", "version": "4"},
        None,
    ),
    (errors.JobResultsLostError("j", 3, 1), "DATA_LOSS", "JOB_RESULTS_LOST", {"job_id": "j"}, None),
    (
        errors.JobLimitError("max_jobs", 9),
        "RESOURCE_EXHAUSTED",
        "JOB_LIMIT",
        {"bound": "max_jobs", "limit": "9"},
        "QuotaFailure",
    ),
    (
        errors.QueueFullError("p", 9, 2.5),
        "RESOURCE_EXHAUSTED",
        "QUEUE_FULL",
        {"pool": "p", "limit": "9"},
        "RetryInfo",
    ),
    (
        errors.QueueFullError("p", 9, 1.0, tenant="t"),
        "RESOURCE_EXHAUSTED",
        "QUEUE_FULL",
        {"pool": "p", "limit": "9", "tenant": "t"},
        "RetryInfo",
    ),
    (
        errors.QuotaExceededError("p", "t", "concurrency", 3, 1.0),
        "RESOURCE_EXHAUSTED",
        "QUOTA_EXCEEDED",
        {"pool": "p", "quota": "concurrency", "limit": "3"},
        "QuotaFailure RetryInfo",
    ),
    (
        errors.QuotaExceededError("p", "t", "tokens_per_minute", 3, None, 40),
        "RESOURCE_EXHAUSTED",
        "QUOTA_EXCEEDED",
        {"pool": "p", "quota": "tokens_per_minute", "limit": "3", "asked": "40"},
        "QuotaFailure",
    ),
    (
        errors.NotInTimeError("queue_timeout", 3.0, 1.0, 2.0),
        "RESOURCE_EXHAUSTED",
        "NOT_IN_TIME",
        {"bound": "queue_timeout", "estimate_s": "3.000"},
        "RetryInfo",
    ),
    (
        errors.NotInTimeError("deadline", 3.0, 1.0, None),
        "DEADLINE_EXCEEDED",
        "NOT_IN_TIME",
        {"bound": "deadline", "estimate_s": "3.000"},
        None,
    ),
    (
        errors.KeyReusedError("k", "r"),
        "ALREADY_EXISTS",
        "IDEMPOTENCY_KEY_REUSED",
        {"request_id": "r"},
        None,
    ),
    (errors.TakenOverError("r"), "ABORTED", "TAKEN_OVER", {"request_id": "r"}, None),
    (
        errors.SlowReaderError(9, 8),
        "RESOURCE_EXHAUSTED",
        "SLOW_READER",
        {"unread_bytes": "9", "limit_bytes": "8"},
        None,
    ),
    (errors.QuarantinedError("i1", 9.0), "FAILED_PRECONDITION", "QUARANTINED", {"incident": "i1"}, None),
    (errors.QueueTimeoutError(1.5), "DEADLINE_EXCEEDED", "QUEUE_TIMEOUT", {"waited_s": "1.500"}, None),
    (
        errors.QueueTimeoutError(1.5, 0.25),
        "DEADLINE_EXCEEDED",
        "QUEUE_TIMEOUT",
        {"waited_s": "1.500", "limit_s": "0.250"},
        None,
    ),
    (errors.DeadlineError(), "DEADLINE_EXCEEDED", "DEADLINE", {}, None),
    (errors.CancelledError(), "CANCELLED", "CANCELLED", {}, None),
    (errors.UnavailableError("u"), "UNAVAILABLE", "UNAVAILABLE", {}, "RetryInfo"),
    (errors.QueueUnavailableError("q"), "UNAVAILABLE", "QUEUE_UNAVAILABLE", {}, "RetryInfo"),
    (errors.IssuerUnavailableError("i", 1.0), "UNAVAILABLE", "ISSUER_UNAVAILABLE", {}, "RetryInfo"),
    (errors.NoReplicaError("n"), "UNAVAILABLE", "NO_REPLICA", {}, "RetryInfo"),
    (errors.ModelChangedError("r"), "UNAVAILABLE", "MODEL_CHANGED", {}, "RetryInfo"),
    (errors.ShuttingDownError("s"), "UNAVAILABLE", "SHUTTING_DOWN", {}, "RetryInfo"),
    (
        errors.GenerationFailedError("r", 3, 2, 7),
        "ABORTED",
        "GENERATION_FAILED",
        {"request_id": "r", "delivered_tokens": "3", "prompt_tokens": "7", "attempts": "2"},
        None,
    ),
]
HUGE = errors.InvalidRequestError([FieldViolation("é" * 500, "ß" * 2_000)] * 16)
HIDDEN = [
    (errors.EngineRequestError("secret"), "INVALID_ARGUMENT", "ENGINE_REQUEST"),
    (errors.EngineDeadError("secret"), "INTERNAL", "ENGINE_DEAD"),
    (errors.LinkLostError("secret"), "INTERNAL", "LINK_LOST"),
    (errors.PenstockError("secret"), "INTERNAL", "INTERNAL"),
    (KeyError("secret"), "INTERNAL", "INTERNAL"),
]


def details(status: status_pb2.Status, kind: type) -> list:
    """Unpack all details of one type."""
    return [kind.FromString(packed.value) for packed in status.details if packed.Is(kind.DESCRIPTOR)]


def code_of(status: status_pb2.Status) -> str:
    return next(code.name for code in grpc.StatusCode if code.value[0] == status.code)


@pytest.mark.parametrize(("error", "code", "reason", "metadata", "detail"), CASES, ids=lambda case: str(case)[:24])
def test_what_the_client_sees(error, code, reason, metadata, detail):
    status = to_rpc_status(error)

    [info] = details(status, error_details_pb2.ErrorInfo)
    assert (code_of(status), status.message) == (code, str(error))
    assert (info.reason, info.domain, dict(info.metadata)) == (reason, DOMAIN, metadata)
    kinds = [packed.TypeName().rpartition(".")[2] for packed in status.details]
    assert kinds == ["ErrorInfo", *(detail or "").split()]


def test_the_cases_cover_every_error_meant_for_clients():
    """A new error without a mapping would reach clients as INTERNAL; this makes that a decision."""

    def leaves(root: type) -> set[type]:
        return {root}.union(*(leaves(child) for child in root.__subclasses__()))

    covered = {type(case[0]) for case in CASES}
    public = leaves(errors.RequestError) | leaves(errors.UnavailableError) | leaves(errors.GenerationFailedError)
    assert public - {errors.RequestError} == covered


@pytest.mark.parametrize(("error", "code", "reason"), HIDDEN, ids=lambda case: repr(case)[:24])
def test_what_the_client_does_not_see(error, code, reason, caplog):
    """Text that is not meant for clients stays in the log, found again by its incident id."""
    with caplog.at_level(logging.ERROR):
        status = to_rpc_status(error)

    [info] = details(status, error_details_pb2.ErrorInfo)
    [record] = caplog.records
    assert (code_of(status), info.reason) == (code, reason)
    assert "secret" not in str(status)
    assert info.metadata["incident"] in status.message
    assert (record.message, record.incident) == ("router.incident", info.metadata["incident"])
    assert record.exc_info[1] is error


def test_incidents_differ():
    one, other = to_rpc_status(ValueError()), to_rpc_status(ValueError())

    assert one.message != other.message


def test_violations_are_listed_by_field():
    status = to_rpc_status(errors.InvalidRequestError([FieldViolation("a", "bad"), FieldViolation("b[1]", "worse")]))

    [bad] = details(status, error_details_pb2.BadRequest)
    assert [(v.field, v.description) for v in bad.field_violations] == [("a", "bad"), ("b[1]", "worse")]


def test_what_is_wrong_with_a_whole_request_has_no_field_before_it():
    status = to_rpc_status(errors.InvalidRequestError([FieldViolation("", "bad"), FieldViolation("a", "worse")]))

    assert status.message == "bad; a: worse"


@pytest.mark.parametrize(
    ("left_s", "takes_s", "text"),
    [
        (1.0, 3.0, "deadline: 1.0 s is less than the estimated 3.0 s"),
        (0.2961, 0.3042, "deadline: 0.296 s is less than the estimated 0.304 s"),
        (0.998, 1.02, "deadline: 0.998 s is less than the estimated 1.02 s"),
        (0.99, 1.02, "deadline: 0.99 s is less than the estimated 1.0 s"),
        (12.31, 12.34, "deadline: 12.31 s is less than the estimated 12.34 s"),
        (-0.0003, 0.02, "deadline: 0 s is less than the estimated 0.02 s"),
    ],
)
def test_a_request_that_is_too_late_tells_two_different_times(left_s: float, takes_s: float, text: str):
    assert to_rpc_status(errors.NotInTimeError("deadline", takes_s, left_s, None)).message.startswith(f"{text}; ")


def test_retry_info_carries_the_delay():
    [retry] = details(to_rpc_status(errors.QueueFullError("p", 9, 2.5)), error_details_pb2.RetryInfo)

    assert retry.retry_delay.ToMilliseconds() == 2_500


class Refusing(services.InferenceServiceServicer):
    """Ends every call with one error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def Generate(self, request, context):  # noqa: N802
        await abort(context, self._error)

    async def StreamGenerate(self, request, context):  # noqa: N802
        yield pb.StreamGenerateResponse(queued=pb.Queued(request_id="r"))
        await abort(context, self._error)


Refusing.__abstractmethods__ = frozenset()


async def call(error: BaseException) -> list[tuple[grpc.StatusCode, status_pb2.Status]]:
    """Return code and rich status of a unary call, and of a stream that ends after its first event."""
    server = grpc.aio.server()
    services.add_InferenceServiceServicer_to_server(Refusing(error), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    results = []
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = services.InferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as unary:
                await stub.Generate(pb.GenerateRequest())
            stream = stub.StreamGenerate(pb.StreamGenerateRequest())
            assert (await stream.read()).queued.request_id == "r"
            with pytest.raises(grpc.aio.AioRpcError) as streamed:
                await stream.read()
            results = [(caught.value.code(), rpc_status.from_call(caught.value)) for caught in (unary, streamed)]
    finally:
        await server.stop(None)
    return results


async def test_abort_delivers_the_details_in_unary_calls_and_mid_stream():
    for code, status in await call(errors.QueueFullError("p", 9, 2.5)):
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(details(status, error_details_pb2.RetryInfo)) == 1


def test_the_largest_trailers_stay_below_8_kib():
    """Above 8 KiB of metadata gRPC drops some responses, above 16 KiB all."""
    status = to_rpc_status(HUGE)

    assert len(base64.b64encode(status.SerializeToString())) + len(quote(status.message)) < 8_000


async def test_the_largest_status_still_arrives():
    """Trailers above the limit make a peer report RESOURCE_EXHAUSTED instead of the real status."""
    error = HUGE

    for code, status in await call(error):
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        [bad] = details(status, error_details_pb2.BadRequest)
        assert len(bad.field_violations) >= 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), grpc.aio.AbortError()], ids=["cancelled", "aborted"])
async def test_a_call_that_is_already_over_is_not_aborted_again(error):
    with pytest.raises(type(error)) as caught:
        await abort(None, error)

    assert caught.value is error
