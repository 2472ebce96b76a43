"""Generations whose router goes away go on at another one, in both clients."""

import socket

import pytest

from cluster import errors as cluster_errors
from penstock import client as api
from penstock.client import FinishReason, ResumePoint, RetryPolicy, Sampling
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import types_pb2
from tests.penstock.client.events import collect

UNAVAILABLE = cluster_errors.UnavailableError("no", retry_after_s=0.0)


def started(token: bytes, choice: int = 0) -> pb.StreamGenerateResponse:
    return pb.StreamGenerateResponse(started=pb.Started(request_id="r", resume_token=token, choice_index=choice))


def output(offset: int, *ids: int, choice: int = 0) -> pb.StreamGenerateResponse:
    return pb.StreamGenerateResponse(delta=pb.Delta(choice_index=choice, offset=offset, token_ids=ids))


END = pb.StreamGenerateResponse(finished=pb.Finished(request_id="r"))


async def test_a_stream_whose_router_goes_away_goes_on(client, fake):
    """The newest token, and what was received of each choice; breaks follow each other."""
    fake.script = [started(b"t1"), started(b"t2", 1), output(0, 1, 2), output(0, 9, choice=1), UNAVAILABLE]
    fake.resumed_script = [started(b"t3"), output(2, 3), END]
    fake.failures.extend([None, UNAVAILABLE, UNAVAILABLE])
    stream = client.stream("demo", "hi", Sampling(n=2), flush_interval=0.5)

    events = await collect(stream)

    assert [event.token_ids for event in events if isinstance(event, api.Delta)] == [(1, 2), (9,), (3,)]
    first, *again = fake.requests
    assert len(again) == 3
    assert not first.HasField("resume")
    assert [None, "1", "1", "1"] == [metadata.get("penstock-resume") for metadata in fake.metadata]
    for request in again:
        assert (request.resume.resume_token, list(request.resume.received_tokens)) == (b"t2", [2, 1])
        assert (request.generate, request.flush_interval) == (first.generate, first.flush_interval)
    assert stream.resume_point == ResumePoint(b"t3", (3, 1))


@pytest.mark.slow
async def test_a_router_that_never_answers_leaves_a_broken_stream_its_time(connect, fake, port, monkeypatch):
    """It takes connections, as one that is stopped does; whoever waits for it as long as gRPC does has no time left."""
    fake.script = [started(b"t1"), output(0, 1), UNAVAILABLE]
    fake.resumed_script = [output(1, 2), END]
    monkeypatch.setattr("penstock.client.connection.random.randrange", lambda _targets: 0)
    with socket.create_server(("127.0.0.1", 0)) as stuck:
        targets = [f"127.0.0.1:{port}", f"127.0.0.1:{stuck.getsockname()[1]}"]

        events = await collect(connect(targets).stream("demo", "hi"))

    assert [event.token_ids for event in events if isinstance(event, api.Delta)] == [(1,), (2,)]


async def test_a_unary_generation_whose_router_goes_away_goes_on(client, fake):
    """It is not asked for again, because it may still run."""
    fake.broken = UNAVAILABLE
    fake.failures.extend([None, UNAVAILABLE])

    completion = await client.generate("demo", "hi", Sampling(max_tokens=3, n=2))

    assert completion.request_id == "req-1"
    assert [choice.token_ids for choice in completion.choices] == [(0, 1, 2), (0, 1, 2)]
    assert completion.text == "w0 w1 w2 "
    assert (completion.usage.output_tokens, completion.choices[1].finish_reason) == (6, FinishReason.LENGTH)
    unary, *streams = fake.requests
    assert len(streams) == 2
    for request in streams:
        assert request.generate == unary
        assert (request.resume.resume_token, list(request.resume.received_tokens)) == (b"t1", [])


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (types_pb2.FINISH_REASON_CANCELLED, api.CancelledError),
        (types_pb2.FINISH_REASON_DEADLINE, api.DeadlineExceededError),
    ],
)
async def test_a_generation_that_was_stopped_after_its_router_went_away_is_an_error(client, fake, reason, kind):
    fake.broken = UNAVAILABLE
    ends = [pb.ChoiceEnd(index=0, finish_reason=reason, output_tokens=1)]
    fake.script = [output(0, 1), pb.StreamGenerateResponse(finished=pb.Finished(request_id="r", choices=ends))]

    with pytest.raises(kind):
        await client.generate("demo", "hi")


async def test_tokens_that_a_resumed_stream_repeats_are_an_error(client, fake):
    fake.script = [started(b"t"), output(0, 1, 2), UNAVAILABLE]
    fake.resumed_script = [output(1, 2, 3), END]

    with pytest.raises(api.InternalError, match="continues at token 1, expected 2"):
        await collect(client.stream("demo", "hi"))


MODEL_CHANGED = cluster_errors.ModelChangedError("r")


@pytest.mark.slow
async def test_a_stream_that_waited_while_its_model_changed_starts_anew(client, fake):
    """It never ran, and its token leads nowhere."""
    fake.script = [pb.StreamGenerateResponse(queued=pb.Queued(request_id="r", resume_token=b"t")), MODEL_CHANGED]
    fake.failures.extend([None, UNAVAILABLE])
    stream = client.stream("demo", "hi")
    assert isinstance(await anext(stream), api.Queued)
    fake.script = [started(b"t2"), output(0, 1), END]

    await collect(stream)

    assert [request.HasField("resume") for request in fake.requests] == [False] * 3
    assert stream.resume_point == ResumePoint(b"t2", (1,))


@pytest.mark.slow
async def test_a_unary_generation_whose_model_changed_is_asked_for_again(client, fake):
    fake.broken = MODEL_CHANGED
    fake.failures.extend([None, UNAVAILABLE])

    with pytest.raises(api.UnavailableError, match="model changed"):
        await client.generate("demo", "hi")

    assert {"GenerateRequest"} == {type(request).__name__ for request in fake.requests}
    assert len(fake.requests) == 3


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [([1, 2, 3], {}), ("hi", {"stop_token_ids": [5]}), ("hi", {"logit_bias": {5: 1.0}})],
)
async def test_ids_of_the_caller_are_not_sent_to_another_model(client, fake, prompt, sampling):
    """They mean another text to it, so only the caller can encode them anew."""
    fake.broken = MODEL_CHANGED
    with pytest.raises(api.UnavailableError, match="model changed"):
        await client.generate("demo", prompt, Sampling(**sampling))
    fake.script = [pb.StreamGenerateResponse(queued=pb.Queued(request_id="r", resume_token=b"t")), MODEL_CHANGED]
    with pytest.raises(api.UnavailableError, match="model changed"):
        await collect(client.stream("demo", prompt, Sampling(**sampling)))

    assert ["GenerateRequest", "StreamGenerateRequest"] == [type(request).__name__ for request in fake.requests]


async def test_a_stream_that_can_not_go_on_ends_with_its_error(client, fake):
    fake.script = [started(b"t"), output(0, 1), cluster_errors.GenerationFailedError("r", 1)]
    with pytest.raises(api.GenerationFailedError):
        await collect(client.stream("demo", "hi"))
    fake.script = [started(b""), output(0, 1), UNAVAILABLE]
    with pytest.raises(api.UnavailableError):
        await collect(client.stream("demo", "hi"))

    assert len(fake.requests) == 2


async def test_streams_are_left_to_the_caller_where_it_wants_so(connect, port, fake):
    fake.script = [pb.StreamGenerateResponse(queued=pb.Queued(request_id="r", resume_token=b"t")), UNAVAILABLE]
    client = connect(f"127.0.0.1:{port}", retry=RetryPolicy(resume_for=0.0))
    stream = client.stream("demo", "hi")

    with pytest.raises(api.UnavailableError):
        await collect(stream)

    assert len(fake.requests) == 1
    assert stream.resume_point == ResumePoint(b"t")


async def test_resumed_events_are_passed_on(client, fake):
    fake.script = [
        pb.StreamGenerateResponse(delta=pb.Delta(offset=0, token_ids=[1, 2], text="a")),
        pb.StreamGenerateResponse(resumed=pb.Resumed(offset=2, exact=True, resume_token=b"t2", replica_id="r2")),
        pb.StreamGenerateResponse(delta=pb.Delta(offset=2, token_ids=[3], text="b")),
        pb.StreamGenerateResponse(finished=pb.Finished(request_id="r")),
    ]

    stream = client.stream("demo", "hi")
    events = await collect(stream)

    assert events[1] == api.Resumed(0, 2, True, b"t2", "r2")
    # The token of the lost attempt leads nowhere any more.
    assert stream.resume_point == ResumePoint(b"t2", (3,))
