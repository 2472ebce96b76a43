"""What a router refuses, and what it may not send, are errors of their own kinds, in both clients."""

import copy
import pickle

import grpc
import pytest

from cluster import errors as cluster_errors
from penstock import client as api
from penstock.client import Sampling
from penstock.v1 import inference_pb2 as pb
from tests.penstock.client.events import collect, kinds


@pytest.mark.parametrize(
    ("failure", "kind", "reason", "retry_after"),
    [
        (cluster_errors.InvalidRequestError.of("n", "bad"), api.InvalidArgumentError, "INVALID_REQUEST", None),
        (cluster_errors.ModelNotFoundError("m", []), api.NotFoundError, "MODEL_NOT_FOUND", None),
        (cluster_errors.QueueFullError("p", 1, 60.0), api.QueueFullError, "QUEUE_FULL", 60.0),
        (
            cluster_errors.QuotaExceededError("p", "acme", "concurrency", 1, 60.0),
            api.QuotaExceededError,
            "QUOTA_EXCEEDED",
            60.0,
        ),
        (cluster_errors.KeyReusedError("k", "r"), api.AlreadyExistsError, "IDEMPOTENCY_KEY_REUSED", None),
        (cluster_errors.TakenOverError("r"), api.TakenOverError, "TAKEN_OVER", None),
        (cluster_errors.QueueTimeoutError(1.0), api.DeadlineExceededError, "QUEUE_TIMEOUT", None),
        (cluster_errors.CancelledError(), api.CancelledError, "CANCELLED", None),
        (cluster_errors.NoReplicaError("none", 45.0), api.UnavailableError, "NO_REPLICA", 45.0),
        (cluster_errors.GenerationFailedError("r", 3), api.GenerationFailedError, "GENERATION_FAILED", None),
        (RuntimeError("bug"), api.InternalError, "INTERNAL", None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_every_status_becomes_its_own_error(client, fake, failure, kind, reason, retry_after):
    for call in (lambda: client.generate("demo", "hi"), lambda: collect(client.stream("demo", "hi"))):
        fake.failures.append(failure)
        with pytest.raises(kind) as caught:
            await call()
        assert type(caught.value) is kind
        assert (caught.value.reason, caught.value.retry_after) == (reason, retry_after)

    assert len(fake.requests) == 2


async def test_wrong_fields_are_listed(client):
    with pytest.raises(api.InvalidArgumentError) as caught:
        await client.generate("demo", "hi", Sampling(temperature=9, n=99))

    assert [violation.field for violation in caught.value.violations] == ["sampling.temperature", "sampling.n"]
    assert "99" in caught.value.violations[1].description


async def test_facts_about_an_error_are_kept(client):
    with pytest.raises(api.NotFoundError, match="known models: demo") as caught:
        await client.generate("other", "hi")

    assert caught.value.details.metadata == {"model": "other"}


async def test_an_answer_above_the_clients_own_limit_is_no_full_queue(connect, port):
    """It would be tried again."""
    small = connect(f"127.0.0.1:{port}", channel_options=[("grpc.max_receive_message_length", 10)])

    with pytest.raises(api.PenstockClientError) as caught:
        await small.generate("demo", "hi")

    assert type(caught.value) is api.PenstockClientError
    assert caught.value.reason == "MESSAGE_TOO_LARGE"
    assert "and this client takes 10" in str(caught.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([], "without its last event"),
        ([pb.StreamGenerateResponse(delta=pb.Delta(offset=1, token_ids=[1]))], "continues at token 1, expected 0"),
        (
            [pb.StreamGenerateResponse(delta=pb.Delta(offset=0, token_ids=[1]))] * 2,
            "continues at token 0, expected 1",
        ),
        (
            [pb.StreamGenerateResponse(finished=pb.Finished())] * 2,
            "went on after its last event",
        ),
    ],
    ids=["no finished", "gap", "repeat", "after finished"],
)
async def test_a_stream_that_breaks_its_promise_is_an_error(client, fake, script, message):
    fake.script = script

    with pytest.raises(api.InternalError, match=message) as caught:
        await collect(client.stream("demo", "hi"))

    assert caught.value.reason == "PROTOCOL"


async def test_events_of_a_newer_router_are_passed_over(client, fake):
    fake.script = [pb.StreamGenerateResponse(), pb.StreamGenerateResponse(finished=pb.Finished())]

    assert kinds(await collect(client.stream("demo", "hi"))) == ["Finished"]


def tree(kind: type[Exception]) -> list[type[Exception]]:
    """Return a class with all below it."""
    return [kind, *(each for child in kind.__subclasses__() for each in tree(child))]


def through_pickle(error: Exception) -> Exception:
    return pickle.loads(pickle.dumps(error))  # noqa: S301  # our own


@pytest.mark.parametrize("again", [copy.copy, through_pickle], ids=["copy", "pickle"])
@pytest.mark.parametrize("kind", tree(api.PenstockClientError))
def test_an_error_reaches_another_process_whole(kind, again):
    """A pool of processes waits forever for an error that it can't read."""
    violations = (api.FieldViolation("n", "bad"),)
    details = api.ErrorDetails("WHY", {"pool": "demo"}, violations, 1.5)
    error = kind("the message", grpc.StatusCode.ABORTED, details)
    error.waited_for = api.UnavailableError("away", grpc.StatusCode.UNAVAILABLE)

    got = again(error)

    assert (type(got), str(got), got.code, got.details) == (kind, "the message", grpc.StatusCode.ABORTED, details)
    assert (type(got.waited_for), str(got.waited_for)) == (api.UnavailableError, "away")


def test_an_error_of_a_file_reaches_another_process_whole():
    got = through_pickle(api.BatchFileError(3, "body.n", "is bad"))

    assert (str(got), got.line, got.field, got.problem) == ("line 3: body.n: is bad", 3, "body.n", "is bad")
    assert isinstance(got, api.BodyError)


def test_an_error_of_a_body_reaches_another_process_whole():
    got = through_pickle(api.BodyError("n", "is bad"))

    assert (str(got), got.field, got.problem) == ("n: is bad", "n", "is bad")
