"""A call that reaches no router says why and what to do; one that ran out of time names its time. Real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from penstock import AsyncClient, Client, DeadlineExceededError, RetryPolicy, Tls, UnavailableError
from penstock import client as api
from penstock.client.explain import Attempt
from penstock.v1 import jobs_pb2, jobs_pb2_grpc
from penstock.values.errors import ErrorDetails
from tests.penstock.client.events import collect
from tests.penstock.client.fake_router import FakeRouter, serving
from tests.support.certificates import LOOPBACK, Authority
from tests.support.ports import free_port

ONCE = RetryPolicy(max_attempts=1, resume_for=0.0)
AUTHORITY = Authority()
HERE = AUTHORITY.issue("router", *LOOPBACK)
OTHER = Authority("others").issue("client")


def certified() -> grpc.ServerCredentials:
    pair = Authority().issue("router", *LOOPBACK)
    return grpc.ssl_server_credentials([(pair.key, pair.certificate)])


async def failure(client, streamed: bool) -> api.PenstockClientError:
    with pytest.raises(api.PenstockClientError) as told:
        await (collect(client.stream("demo", "x")) if streamed else client.list_models())
    return told.value


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "unary"])
async def test_where_nobody_listens_it_asks_whether_the_cluster_is_up(connect, streamed) -> None:
    target = f"127.0.0.1:{free_port()}"
    told = await failure(connect(target, retry=ONCE), streamed)
    assert (UnavailableError, "UNREACHABLE") == (type(told), told.reason)
    assert str(told).startswith(
        f"{target}: no router listens there. Is the cluster up (`penstock up`), and is this its"
    )
    assert "Connection refused" in str(told)
    assert "connections to all backends" not in str(told)


async def test_a_host_without_an_address_is_said_to_be_none(connect) -> None:
    told = await failure(connect("no-such-host.invalid:50051", retry=ONCE), streamed=False)
    assert "no-such-host.invalid:50051: there is no host of this name" in str(told)


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "unary"])
async def test_a_router_that_expects_tls_is_told_from_one_that_is_down(connect, streamed) -> None:
    async with serving(FakeRouter(), credentials=certified()) as port:
        told = await failure(connect(f"127.0.0.1:{port}", retry=ONCE), streamed)
    assert "if it expects TLS, give `tls=Tls(...)`" in str(told)
    assert "UNREACHABLE" == told.reason


async def test_a_router_without_tls_is_told_from_one_that_is_down(connect, port) -> None:
    told = await failure(connect(f"127.0.0.1:{port}", tls=Tls(), retry=ONCE), streamed=False)
    assert "it does not speak TLS; leave `tls` out" in str(told)


async def test_a_certificate_that_does_not_fit_is_named(connect) -> None:
    async with serving(FakeRouter(), credentials=certified()) as port:
        told = await failure(connect(f"127.0.0.1:{port}", tls=Tls(), retry=ONCE), streamed=False)
    assert "its certificate is not signed by an authority of tls.root_certificates" in str(told)


@pytest.mark.parametrize("shown", [{}, {"certificate_chain": OTHER.certificate, "private_key": OTHER.key}])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "unary"])
async def test_a_router_that_wants_another_certificate_is_asked_for_it(connect, shown, streamed) -> None:
    """Of both, gRPC only says that the connection was closed."""
    credentials = grpc.ssl_server_credentials([(HERE.key, HERE.certificate)], AUTHORITY.pem, True)
    async with serving(FakeRouter(), credentials=credentials) as port:
        told = await failure(connect(f"127.0.0.1:{port}", tls=Tls(AUTHORITY.pem, **shown), retry=ONCE), streamed)
    assert "does it ask for a client's certificate (tls.certificate_chain)?" in str(told)


@pytest.mark.parametrize(
    "tls",
    [
        {"root_certificates": b"no PEM"},
        {"root_certificates": AUTHORITY.pem, "certificate_chain": HERE.certificate, "private_key": b"no PEM"},
        {"root_certificates": AUTHORITY.pem, "certificate_chain": HERE.certificate, "private_key": OTHER.key},
    ],
    ids=["authorities", "key", "no pair"],
)
async def test_a_certificate_that_grpc_cannot_use_is_not_blamed_on_the_router(connect, tls) -> None:
    async with serving(FakeRouter(), credentials=certified()) as port:
        told = await failure(connect(f"127.0.0.1:{port}", tls=Tls(**tls), retry=ONCE), streamed=False)
    assert "gRPC can't use `tls`: a certificate or key of it is not PEM, or the two are no pair." in str(told)


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.generate("demo", "hi", timeout=0.05),
        lambda client: collect(client.stream("demo", "hi", timeout=0.05)),
    ],
    ids=["unary", "stream"],
)
async def test_a_timeout_that_passes_is_named(client, fake, call) -> None:
    fake.hold_after = 1
    with pytest.raises(
        DeadlineExceededError, match=r"^timeout: 0\.05 s passed before 127\.0\.0\.1:\d+ answered$"
    ) as told:
        await call(client)
    assert "DEADLINE" == told.value.reason


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("", "timeout: 2.5 s passed before a:1 answered"),
        ("DEADLINE", "timeout: 2.5 s passed before the output was complete"),
        ("QUEUE_TIMEOUT", "what the router says"),
        ("NOT_IN_TIME", "what the router says"),
    ],
)
def test_only_the_callers_own_deadline_is_called_a_timeout(reason: str, message: str) -> None:
    error = DeadlineExceededError("what the router says", grpc.StatusCode.DEADLINE_EXCEEDED, ErrorDetails(reason))
    assert message == str(Attempt("a:1", tls=False, timeout=2.5).explained(error))


def test_what_a_router_says_stays_as_it_is() -> None:
    error = UnavailableError("draining", grpc.StatusCode.UNAVAILABLE, ErrorDetails("SHUTTING_DOWN", retry_after=1.0))
    assert Attempt("a:1", tls=False, timeout=None).explained(error) is error


def test_a_connection_that_worked_and_broke_is_not_taken_for_a_wrong_setting() -> None:
    error = UnavailableError("Socket closed", grpc.StatusCode.UNAVAILABLE)
    attempt = Attempt("a:1", tls=False, timeout=None)
    assert "TLS" in str(attempt.explained(error))
    assert "a:1: the connection was lost. gRPC says: Socket closed" == str(attempt.explained(error, begun=True))


class _Job(jobs_pb2_grpc.JobServiceServicer):
    """A job whose watches end as gRPC ends them when a router dies."""

    async def WatchJob(  # noqa: N802
        self, request: jobs_pb2.WatchJobRequest, context: Any
    ) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        yield jobs_pb2.WatchJobResponse(job=jobs_pb2.Job(job_id=request.job_id, state=jobs_pb2.JOB_STATE_RUNNING))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


@pytest.mark.parametrize("kind", [AsyncClient, Client])
async def test_a_watch_that_worked_and_broke_is_not_taken_for_a_wrong_setting(kind) -> None:
    server = grpc.aio.server()
    jobs_pb2_grpc.add_JobServiceServicer_to_server(_Job(), server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()

    async def watch() -> None:
        async with AsyncClient(target) as client:
            async for _update in client.watch_job("j", patience=0.0):
                pass

    def watch_in_thread() -> None:
        with Client(target) as client:
            for _update in client.watch_job("j", patience=0.0):
                pass

    with pytest.raises(UnavailableError) as told:
        await (watch() if kind is AsyncClient else asyncio.to_thread(watch_in_thread))
    assert f"{target}: the connection was lost. gRPC says: Socket closed" == str(told.value)
    await server.stop(None)


@pytest.mark.parametrize(
    ("side", "said"),
    [
        ("SERVER: ", "the request has 20 bytes, and a router takes 16 (router.max_message_bytes)"),
        ("CLIENT: ", "the answer of a router has 20 bytes, and this client takes 16"),
    ],
)
def test_a_message_that_is_too_long_is_told_with_both_lengths(side: str, said: str) -> None:
    text = f"{side}Received message larger than max (20 vs. 16)"
    raw = api.PenstockClientError(text, grpc.StatusCode.RESOURCE_EXHAUSTED)
    told = Attempt("a router", tls=False, timeout=None).explained(raw)
    assert ("MESSAGE_TOO_LARGE", said) == (told.reason, str(told))


def test_an_error_of_a_router_keeps_its_own_words() -> None:
    text = "Received message larger than max (20 vs. 16)"
    raw = api.PenstockClientError(text, grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorDetails(reason="QUEUE_FULL"))
    assert raw is Attempt("a router", tls=False, timeout=None).explained(raw)
