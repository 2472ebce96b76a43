"""Both clients give plain values, close what they open, and retry only where nothing can be doubled."""

import asyncio
from unittest.mock import Mock

import pytest

from cluster import errors as cluster_errors
from penstock import client as api
from penstock.client import FinishReason, GenerateOptions, Message, ResumePoint, RetryPolicy, Sampling
from penstock.v1 import inference_pb2 as pb
from tests.penstock.client.events import collect, kinds
from tests.support.ports import free_port
from tests.support.waiting import until

UNAVAILABLE = cluster_errors.UnavailableError("no", retry_after_s=0.0)
LATER = cluster_errors.UnavailableError("no", retry_after_s=20.0)
"""Long enough to do something before the next attempt, also on a machine that halts."""
FULL = cluster_errors.QueueFullError("demo", 1, retry_after_s=0.0)


class Reader:
    """Reads a stream in a task; `delta` is set when output has come."""

    def __init__(self, stream) -> None:
        self.delta = asyncio.Event()
        self.events: list[api.Event] = []
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream) -> None:
        async for event in stream:
            self.events.append(event)
            if isinstance(event, api.Delta):
                self.delta.set()


async def test_generate_returns_everything(client):
    completion = await client.generate("demo", "hi", Sampling(max_tokens=2, n=2, logprobs=0))

    assert completion.text == "w0 w1 "
    assert [choice.token_ids for choice in completion.choices] == [(0, 1), (0, 1)]
    assert [choice.finish_reason for choice in completion.choices] == [FinishReason.LENGTH] * 2
    assert [position.chosen.logprob for position in completion.choices[0].logprobs] == [-0.5, -0.5]
    assert completion.usage == api.Usage(prompt_tokens=3, output_tokens=4, cached_tokens=1)
    assert completion.receipt.attempts[0].queue_time == pytest.approx(0.02)
    assert completion.receipt.time_to_first_token == pytest.approx(0.03)
    assert completion.request_id == "req-1"


async def test_two_readers_of_a_stream_share_its_events(client, fake):
    """As threads do that take their work from it; gRPC lets one thread read a call."""
    fake.hold_after = 1
    stream = client.stream("demo", "hi", Sampling(max_tokens=3))
    readers = [Reader(stream)]
    await readers[0].delta.wait()

    readers.append(Reader(stream))
    await asyncio.wait([readers[1].task], timeout=0.1)  # It reads by now, or later.
    fake.release.set()
    await asyncio.gather(*[reader.task for reader in readers])

    events = [event for reader in readers for event in reader.events]
    assert sorted(kinds(events)) == ["Delta", "Delta", "Delta", "Finished", "Queued", "Started"]
    assert [0, 1, 2] == sorted(token for event in events if isinstance(event, api.Delta) for token in event.token_ids)


async def test_a_stream_gives_every_token_once_and_finished_last(client):
    stream = client.stream("demo", "hi", Sampling(max_tokens=3))

    events = await collect(stream)

    assert kinds(events) == ["Queued", "Started", "Delta", "Delta", "Delta", "Finished"]
    assert [token for event in events if isinstance(event, api.Delta) for token in event.token_ids] == [0, 1, 2]
    assert events[-1].choices == (api.ChoiceEnd(0, FinishReason.LENGTH, "", 3),)
    assert stream.request_id == "req-1"
    assert stream.resume_point == ResumePoint(b"t1", (3,))


async def test_everything_a_caller_says_reaches_the_router(client, fake):
    sampling = Sampling(
        max_tokens=5,
        min_tokens=0,
        temperature=0.0,
        top_k=7,
        seed=-1,
        stop=["x"],
        stop_token_ids=[3],
        logit_bias={4: -1.5},
        structured=api.one_of("a", "b"),
    )
    options = GenerateOptions(api.RequestClass.BATCH, 2.5, "key", "poet", "session", continue_final_message=True)

    await client.generate("demo", [Message("user", "hi"), Message("assistant", "he")], sampling, options)

    [sent] = fake.requests
    expected = pb.GenerateRequest(
        model="demo",
        prompt={
            "chat": {
                "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}],
                "continue_final_message": True,
            }
        },
        sampling={
            "max_tokens": 5,
            "min_tokens": 0,
            "temperature": 0.0,
            "top_k": 7,
            "seed": -1,
            "stop": ["x"],
            "stop_token_ids": [3],
            "logit_bias": {4: -1.5},
            "structured_output": {"choice": {"values": ["a", "b"]}},
        },
        request_class="REQUEST_CLASS_BATCH",
        queue_timeout={"seconds": 2, "nanos": 500_000_000},
        idempotency_key="key",
        lora_adapter="poet",
        session_id="session",
    )
    assert sent == expected


async def test_an_output_that_goes_on_behind_its_end_reaches_the_router(client, fake):
    await client.generate("demo", "x", Sampling(max_tokens=5, ignore_eos=True))

    assert fake.requests[0].sampling.ignore_eos


async def test_token_prompts_and_stream_options_reach_the_router(client, fake):
    resume = ResumePoint(b"token", (2, 2))

    await collect(client.stream("demo", [5, 6], Sampling(n=2), flush_interval=0.25, resume=resume))

    [sent] = fake.requests
    assert list(sent.generate.prompt.tokens.ids) == [5, 6]
    assert sent.flush_interval.ToMilliseconds() == 250
    assert (sent.resume.resume_token, list(sent.resume.received_tokens)) == (b"token", [2, 2])


async def test_a_resumed_stream_counts_on_from_what_was_received(client):
    stream = client.stream("demo", "hi", Sampling(max_tokens=4), resume=ResumePoint(b"t", (2,)))

    events = await collect(stream)

    assert [event.offset for event in events if isinstance(event, api.Delta)] == [2, 3]
    assert stream.resume_point == ResumePoint(b"t1", (4,))


async def test_leaving_a_stream_cancels_its_call(client, fake):
    fake.hold_after = 1
    async with client.stream("demo", "hi") as stream:
        async for event in stream:
            if isinstance(event, api.Delta):
                break

    await fake.abandoned.wait()
    assert await collect(stream) == []


async def test_a_stream_can_be_closed_under_its_reader(client, fake):
    """The reader sees the end of the iteration, not an error that it did not cause."""
    fake.hold_after = 1
    stream = client.stream("demo", "hi")
    reader = Reader(stream)
    await reader.delta.wait()

    await stream.aclose()

    await reader.task
    assert kinds(reader.events) == ["Queued", "Started", "Delta"]
    await fake.abandoned.wait()


async def test_a_request_can_be_cancelled_by_either_name(client, fake):
    for name in ("request_id", "idempotency_key"):
        fake.hold_after = 1
        stream = client.stream("demo", "hi", options=GenerateOptions(idempotency_key="mine"))
        reader = Reader(stream)
        await reader.delta.wait()

        assert await client.cancel(**{name: stream.request_id if name == "request_id" else "mine"}) == stream.request_id

        await reader.task
        assert reader.events[-1].choices[0].finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "unary"])
async def test_closing_the_client_ends_its_calls_with_an_error(client, fake, streamed):
    """Not silently, which would look like a complete output, and not as if the caller's task had been cancelled."""
    fake.hold_after = 1
    call = collect(client.stream("demo", "hi")) if streamed else client.generate("demo", "hi")
    task = asyncio.create_task(call)
    await fake.asked.wait()

    await client.close()

    with pytest.raises(api.CancelledError):
        await task
    if streamed:
        await fake.abandoned.wait()


async def test_closing_the_client_ends_a_stream_that_waits_for_its_next_attempt(connect, fake, port):
    fake.failures.append(LATER)
    client = connect(f"127.0.0.1:{port}", retry=RetryPolicy(max_attempts=3))
    stream = client.stream("demo", "hi")
    task = asyncio.create_task(collect(stream))
    await fake.asked.wait()
    await until(lambda: stream._call is None)

    await client.close()

    with pytest.raises(api.CancelledError):
        await task


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "unary"])
async def test_closing_the_client_ends_a_wait_at_once(connect, fake, port, streamed):
    fake.failures.append(cluster_errors.UnavailableError("no", retry_after_s=20.0))
    waits = asyncio.Event()
    loop = asyncio.get_running_loop()
    retry = RetryPolicy(on_wait=lambda _seconds, _error: loop.call_soon_threadsafe(waits.set))
    client = connect(f"127.0.0.1:{port}", retry=retry)
    call = collect(client.stream("demo", "hi")) if streamed else client.generate("demo", "hi")
    task = asyncio.create_task(call)
    await waits.wait()

    await client.close()

    with pytest.raises(api.CancelledError):
        async with asyncio.timeout(10):
            await task


async def test_cancelling_a_stream_shows_in_its_reader(client, fake):
    fake.hold_after = 1
    stream = client.stream("demo", "hi")
    reader = Reader(stream)
    await reader.delta.wait()

    stream.cancel()

    with pytest.raises(api.CancelledError):
        await reader.task


async def test_a_stream_can_be_cancelled_before_it_is_read(client, fake):
    stream = client.stream("demo", "hi")
    stream.cancel()

    with pytest.raises(api.CancelledError):
        await collect(stream)
    assert fake.requests == []


async def test_a_stream_can_be_cancelled_while_it_waits_for_its_next_attempt(connect, fake, port):
    fake.failures.append(LATER)
    client = connect(f"127.0.0.1:{port}", retry=RetryPolicy(max_attempts=3))
    stream = client.stream("demo", "hi")
    task = asyncio.create_task(collect(stream))
    await fake.asked.wait()
    await until(lambda: stream._call is None)

    stream.cancel()

    with pytest.raises(api.CancelledError):
        await task
    assert len(fake.requests) == 1


async def test_closing_the_client_ends_a_call_that_waits_for_its_next_attempt(connect, fake, port):
    fake.failures.append(LATER)
    client = connect(f"127.0.0.1:{port}", retry=RetryPolicy(max_attempts=3))
    task = asyncio.create_task(client.list_models())
    await fake.asked.wait()

    await client.close()

    with pytest.raises(api.CancelledError):
        await task


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.list_models(),
        lambda client: list(client.stream("demo", "hi")),
        lambda client: list(client.watch_job("demo.1")),
    ],
    ids=["unary", "stream", "watch"],
)
async def test_a_client_that_is_closed_while_a_call_begins_ends_it_like_any(port, call):
    """By another thread: the metadata are asked for between the look whether it is closed and the call."""

    def close():
        client.close()
        return ()

    client = api.Client(f"127.0.0.1:{port}", metadata=close)

    with pytest.raises(api.CancelledError, match="the client was closed"):
        await asyncio.to_thread(call, client)


def test_a_stream_whose_call_breaks_while_it_is_cancelled_is_cancelled():
    looks = [call := Mock(), None]

    class Breaking(api.Stream):
        """One whose reader forgets the call between two looks at it."""

        _call = property(lambda _self: looks.pop(0), lambda _self, _value: None)

    Breaking(Mock(), Mock()).cancel()

    call.cancel.assert_called_once_with()


async def test_a_closed_client_says_so(client):
    await client.close()
    await client.close()

    with pytest.raises(RuntimeError, match="closed"):
        await client.generate("demo", "hi")


async def test_cancel_needs_exactly_one_name(client):
    for names in ({}, {"request_id": "a", "idempotency_key": "b"}):
        with pytest.raises(ValueError, match="exactly one"):
            await client.cancel(**names)


async def test_models_tokens_and_status_are_plain_values(client):
    [model] = await client.list_models()
    status = await client.cluster_status()

    assert model == await client.get_model("demo")
    assert (model.name, model.chat, model.capabilities.min_p, model.lora_adapters) == ("demo", True, False, ("poet",))
    assert await client.count_tokens("demo", "one two") == api.TokenCount(2, (0, 1))
    assert "w5 w6" == await client.detokenize("demo", [5, 6])
    assert status.pools[0].replicas[0].state is api.ReplicaState.READY
    assert status.pools[0].replicas[0].heartbeat_age == pytest.approx(0.25)


@pytest.mark.parametrize("failure", [UNAVAILABLE, FULL], ids=["unavailable", "full"])
async def test_what_is_safe_to_repeat_is_tried_again(client, fake, failure):
    fake.failures.extend([failure, failure])
    assert (await client.generate("demo", "hi")).text
    fake.failures.extend([failure, failure])
    assert kinds(await collect(client.stream("demo", "hi")))[-1] == "Finished"

    assert len(fake.requests) == 6


async def test_attempts_are_bounded(client, fake):
    fake.failures.extend([UNAVAILABLE] * 6)

    with pytest.raises(api.UnavailableError):
        await client.generate("demo", "hi")
    with pytest.raises(api.UnavailableError):
        await collect(client.stream("demo", "hi"))

    assert len(fake.requests) == 6


async def test_a_timeout_ends_calls(client, fake):
    fake.hold_after = 1
    with pytest.raises(api.DeadlineExceededError):
        await client.generate("demo", "hi", timeout=0.05)
    fake.hold_after = 1
    with pytest.raises(api.DeadlineExceededError):
        await collect(client.stream("demo", "hi", timeout=0.05))


async def test_the_clients_own_timeout_is_the_default(connect, port, fake):
    fake.hold_after = 1

    with pytest.raises(api.DeadlineExceededError):
        await connect(f"127.0.0.1:{port}", timeout=0.05).generate("demo", "hi")


async def test_metadata_is_asked_for_at_every_attempt(connect, port, fake):
    keys = iter("abc")
    fake.failures.extend([UNAVAILABLE, None])
    client = connect(f"127.0.0.1:{port}", metadata=lambda: [("authorization", next(keys))])

    await client.generate("demo", "hi")
    await collect(client.stream("demo", "hi"))

    assert [sent["authorization"] for sent in fake.metadata] == ["a", "b", "c"]


async def test_other_routers_are_tried_when_one_is_gone(connect, port):
    client = connect([f"127.0.0.1:{free_port()}", f"127.0.0.1:{port}"])

    for _ in range(4):
        assert (await client.generate("demo", "hi")).text


async def test_a_router_that_is_not_there_is_unavailable(connect):
    client = connect(f"127.0.0.1:{free_port()}")

    with pytest.raises(api.UnavailableError):
        await client.list_models()
    with pytest.raises(api.UnavailableError):
        await collect(client.stream("demo", "hi"))


@pytest.mark.parametrize("targets", [[], "", ["a:1", ""]])
def test_a_client_needs_targets(targets):
    for kind in (api.Client, api.AsyncClient):
        with pytest.raises(ValueError, match="targets: at least one is needed"):
            kind(targets)


async def test_a_prompt_of_mixed_items_is_refused(client):
    with pytest.raises(TypeError, match="prompt: must be text, messages"):
        await client.generate("demo", [Message("user", "hi"), 3])


@pytest.mark.parametrize("prompt", [b"Hello", bytearray(b"Hello"), memoryview(b"Hello")])
async def test_bytes_are_no_token_ids(client, fake, prompt):
    with pytest.raises(TypeError, match=f"text, not {type(prompt).__name__}"):
        await client.generate("demo", prompt)
    assert fake.requests == []


async def test_a_top_k_of_minus_one_is_off_as_vllm_writes_it(client, fake):
    await client.generate("demo", "hi", Sampling(top_k=-1))

    assert (True, 0) == (fake.requests[0].sampling.HasField("top_k"), fake.requests[0].sampling.top_k)


async def test_a_stop_string_alone_is_one(client, fake):
    await client.generate("demo", "hi", Sampling(stop="END"))

    assert fake.requests[0].sampling.stop == ["END"]


async def test_others_run_while_a_large_job_is_put_together():
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def items():
        for number in range(2_000):
            seen.append(turns)
            yield api.JobItem(f"q{number}", "hi")

    seen: list[int] = []
    running = asyncio.create_task(others())
    async with api.AsyncClient(f"127.0.0.1:{free_port()}", retry=RetryPolicy(max_attempts=1)) as client:
        with pytest.raises(api.UnavailableError):
            await client.submit_job("demo", items())
    running.cancel()

    assert len(set(seen)) >= 7
