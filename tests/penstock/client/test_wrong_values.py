"""Wrong values of a caller: the error names field, limit and value, on both clients, and nothing is sent."""

import datetime
import re

import pytest

import penstock as api
from penstock import GenerateOptions, JobItem, Message, RetryPolicy, Sampling

HALF = "ab\ud83d"
"""Text with half of a surrogate pair, as JSON and JavaScript can have it."""
NOT_UNICODE = "must be Unicode, got half of a surrogate pair, '\\ud83d', at character 2"


def generate(**arguments):
    return lambda client: client.generate(**{"model": "demo", "prompt": "hi", **arguments})


def stream(**arguments):
    return lambda client: anext(aiter(client.stream(**{"model": "demo", "prompt": "hi", **arguments})))


def sampled(**fields):
    return generate(sampling=Sampling(**fields))


def options(**fields):
    return generate(options=GenerateOptions(**fields))


def submit(*items, **arguments):
    return lambda client: client.submit_job(**{"model": "demo", "items": items, **arguments})


def watch(*arguments, **named):
    return lambda client: next_update(client, *arguments, **named)


async def next_update(client, *arguments, **named):
    updates = client.watch_job(*arguments, **named)
    # The facade of the blocking client returns the iterator from a thread.
    if hasattr(updates, "__aiter__"):
        return await anext(updates)
    return next(await updates)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (generate(model=HALF), "model"),
        (generate(prompt=HALF), "prompt.text"),
        (generate(prompt=[Message("user", "hi"), Message("user", HALF)]), "prompt.chat.messages[1].content"),
        (generate(prompt=[Message(HALF, "hi")]), "prompt.chat.messages[0].role"),
        (stream(prompt=HALF), "prompt.text"),
        (sampled(stop=HALF), "sampling.stop[0]"),
        (sampled(stop=("a", HALF)), "sampling.stop[1]"),
        (sampled(structured=api.regex(HALF)), "sampling.structured_output.regex"),
        (sampled(structured=api.grammar(HALF)), "sampling.structured_output.grammar"),
        (sampled(structured=api.json_schema(HALF)), "sampling.structured_output.json_schema"),
        (sampled(structured=api.one_of("a", HALF)), "sampling.structured_output.choice.values[1]"),
        (options(idempotency_key=HALF), "idempotency_key"),
        (options(lora_adapter=HALF), "lora_adapter"),
        (options(session_id=HALF), "session_id"),
        (lambda client: client.cancel(request_id=HALF), "request_id"),
        (lambda client: client.cancel(idempotency_key=HALF), "idempotency_key"),
        (lambda client: client.get_model(HALF), "model"),
        (lambda client: client.count_tokens(HALF, "hi"), "model"),
        (lambda client: client.count_tokens("demo", HALF), "prompt.text"),
        (lambda client: client.usage(tenant=HALF), "tenant"),
        (lambda client: client.usage(pool=HALF), "pool"),
        (lambda client: client.decisions(HALF), "pool"),
        (lambda client: client.set_operating_point(HALF, None), "pool"),
        (submit(model=HALF), "header.model"),
        (submit(idempotency_key=HALF), "header.idempotency_key"),
        (submit(JobItem("a", "hi"), JobItem(HALF, "hi")), "items[1].custom_id"),
        (submit(JobItem("a", HALF)), "items[0].request.prompt.text"),
        (submit(JobItem("a", "hi", Sampling(stop=HALF))), "items[0].request.sampling.stop[0]"),
        (submit(JobItem("a", "hi", session_id=HALF)), "items[0].request.session_id"),
        (lambda client: client.get_job(HALF), "job_id"),
        (lambda client: client.cancel_job(HALF), "job_id"),
        (lambda client: client.delete_job(HALF), "job_id"),
        (lambda client: client.list_jobs(page_token=HALF), "page_token"),
        (watch(HALF), "job_id"),
    ],
)
async def test_half_a_surrogate_pair_is_refused_by_name(connect, port, fake, call, field):
    with pytest.raises(ValueError, match=re.escape(f"{field}: {NOT_UNICODE}")) as caught:
        await call(connect(f"127.0.0.1:{port}"))

    assert (f"{field}: {NOT_UNICODE}", []) == (str(caught.value), fake.requests)


UINT32 = "a whole number, at least 0 and at most 4294967295"
BIASES = f"a mapping: {UINT32}, to a number"
INT64 = "a whole number, at least -9223372036854775808 and at most 9223372036854775807"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (sampled(top_k=-2), ValueError, f"sampling.top_k: must be {UINT32}, got -2"),
        (sampled(top_k=1.5), TypeError, f"sampling.top_k: must be {UINT32}, got 1.5"),
        (sampled(max_tokens=True), TypeError, f"sampling.max_tokens: must be {UINT32}, got True"),
        (sampled(seed=1 << 70), ValueError, f"sampling.seed: must be {INT64}, got 1180591620717411303424"),
        (sampled(temperature="0"), TypeError, "sampling.temperature: must be a number, got '0'"),
        (sampled(temperature=10**400), ValueError, f"sampling.temperature: must be a number, got 1{'0' * 59}..."),
        (sampled(ignore_eos="no"), TypeError, "sampling.ignore_eos: must be True or False, got 'no'"),
        (sampled(stop=5), TypeError, "sampling.stop: must be a sequence of text, got 5"),
        (sampled(stop=("a", 5)), TypeError, "sampling.stop[1]: must be text, got 5"),
        (sampled(stop_token_ids=[1, -1]), ValueError, f"sampling.stop_token_ids[1]: must be {UINT32}, got -1"),
        (sampled(logit_bias={1: 1, "a": 1}), TypeError, f"sampling.logit_bias: must be {BIASES}, got {{'a': 1}}"),
        (sampled(logit_bias=5), TypeError, f"sampling.logit_bias: must be {BIASES}, got 5"),
        (sampled(structured={"regex": "a"}), TypeError, "sampling.structured: must be what json_schema, regex,"),
        (
            sampled(structured=api.one_of(["a", "b"])),
            TypeError,
            "sampling.structured_output.choice.values[0]: must be text, got ['a', 'b']",
        ),
        (generate(prompt=[1, -2]), ValueError, f"prompt.tokens.ids[1]: must be {UINT32}, got -2"),
        (generate(prompt=[1, True]), TypeError, f"prompt.tokens.ids[1]: must be {UINT32}, got True"),
        (generate(prompt=[Message("user", 5)]), TypeError, "prompt.chat.messages[0].content: must be text, got 5"),
        (
            generate(prompt=[{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"t": 1}}]}]),
            ValueError,
            "prompt.chat.messages[0].content[0].cache_control: is not supported",
        ),
        (
            generate(prompt=[{"role": "user", "content": "a", "tool_calls": [1]}]),
            ValueError,
            "prompt.chat.messages[0].tool_calls[0]: must be an object, got 1",
        ),
        (generate(model=5), TypeError, "model: must be text, got 5"),
        (generate(options={"session_id": "a"}), TypeError, "options: must be GenerateOptions, got {'session_id': 'a'}"),
        (generate(timeout="5"), TypeError, "timeout: must be seconds, got '5'"),
        (options(request_class="batch"), TypeError, "request_class: must be a RequestClass, got 'batch'"),
        (options(queue_timeout="5"), TypeError, "queue_timeout: must be seconds, got '5'"),
        (
            options(queue_timeout=1e12),
            ValueError,
            "queue_timeout: must be finite seconds, at most 3.15576e+11, got 1000",
        ),
        (options(queue_timeout=float("nan")), ValueError, "queue_timeout: must be seconds, got nan"),
        (stream(flush_interval=datetime.timedelta(1)), TypeError, "flush_interval: must be seconds, got datetime"),
        (stream(resume="token"), TypeError, "resume: must be a ResumePoint, got 'token'"),
        (stream(resume=api.ResumePoint("t")), TypeError, "resume.resume_token: must be bytes, got 't'"),
        (
            stream(resume=api.ResumePoint(b"t", (3, -1))),
            ValueError,
            f"resume.received_tokens[1]: must be {UINT32}, got -1",
        ),
        (lambda client: client.usage(first_day="2026-01-01"), TypeError, "first_day: must be a datetime.date, got '20"),
        (lambda client: client.decisions(limit=-1), ValueError, f"limit: must be {UINT32}, got -1"),
        (
            lambda client: client.set_operating_point("demo", {}),
            TypeError,
            "operating_point: must be an OperatingPoint",
        ),
        (
            lambda client: client.set_operating_point("demo", api.OperatingPoint(batch=5)),
            TypeError,
            "operating_point.batch: must be a ClassSlo, got 5",
        ),
        (
            lambda client: client.set_operating_point("demo", api.OperatingPoint(price_per_gpu_hour="2")),
            TypeError,
            "operating_point.price_per_gpu_hour: must be a number, got '2'",
        ),
        (
            lambda client: client.set_operating_point("d", api.OperatingPoint(batch=api.ClassSlo(float("inf")))),
            ValueError,
            "operating_point.batch.ttft_p99_s: must be finite seconds",
        ),
        (submit({"custom_id": "a"}), TypeError, "items[0]: must be a JobItem or an EmbedItem, got {'custom_id': 'a'}"),
        (submit(JobItem(5, "hi")), TypeError, "items[0].custom_id: must be text, got 5"),
        (submit(JobItem("a", b"hi")), TypeError, "items[0].request.prompt: must be text, not bytes: decode it"),
        (
            submit(JobItem("a", "hi"), request_class="batch"),
            TypeError,
            "request_class: must be a RequestClass, got 'ba",
        ),
        (submit(JobItem("a", "hi"), run_within="1h"), TypeError, "run_within: must be seconds, got '1h'"),
        (lambda client: client.list_jobs(page_size=-1), ValueError, f"page_size: must be {UINT32}, got -1"),
        (watch("demo.1", resume_token="a"), TypeError, "resume_token: must be bytes, got 'a'"),
        (watch("demo.1", patience="a"), TypeError, "patience: must be seconds, got 'a'"),
    ],
)
async def test_a_value_that_does_not_fit_is_refused_by_name(connect, port, fake, call, kind, message):
    with pytest.raises(kind, match=re.escape(message)) as caught:
        await call(connect(f"127.0.0.1:{port}"))

    assert [] == fake.requests
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"targets": 5}, TypeError, "targets: must be text, or a sequence of texts, got 5"),
        ({"targets": [5]}, TypeError, "targets: must be text, got 5"),
        ({"targets": HALF}, ValueError, f"targets: {NOT_UNICODE}"),
        ({"retry": 5}, TypeError, "retry: must be a RetryPolicy, got 5"),
        ({"api_key": 5}, ValueError, "the API key must be printable ASCII"),
    ],
)
async def test_a_client_names_the_wrong_argument(connect, port, arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        connect(**{"targets": f"127.0.0.1:{port}", **arguments})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [(5, "metadata: must be pairs"), ({"a": "b"}, "metadata: must be pairs"), ([("a", 5)], "the value of 'a' must be")],
)
async def test_wrong_metadata_are_named(connect, port, metadata, message):
    with pytest.raises(TypeError, match=message):
        await connect(f"127.0.0.1:{port}", metadata=lambda: metadata).list_models()


def test_a_policy_and_certificates_name_the_wrong_field():
    with pytest.raises(TypeError, match=r"retry\.resume_for: must be seconds, got '15'"):
        RetryPolicy(resume_for="15")
    with pytest.raises(TypeError, match=r"retry\.max_attempts: must be a whole number, got 1.5"):
        RetryPolicy(max_attempts=1.5)
    with pytest.raises(TypeError, match=r"tls\.private_key: must be bytes, got str$"):
        api.Tls(private_key="-----BEGIN PRIVATE KEY-----")


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"certificate_chain": b"x"}, "private_key"),
        ({"private_key": b"x"}, "certificate_chain"),
        ({"certificate_chain": b"x", "private_key": b""}, "private_key"),
        ({"certificate_chain": b"", "private_key": b"x"}, "certificate_chain"),
    ],
)
def test_half_a_pair_of_certificate_and_key_is_refused(given, missing):
    """With one, gRPC ends the process when it connects."""
    with pytest.raises(ValueError, match=rf"^tls\.{missing}: certificate_chain and private_key must be given together"):
        api.Tls(**given)
    api.Tls(**{**given, missing: b"x"})


def test_a_schema_that_is_no_json_is_refused():
    with pytest.raises(ValueError, match="json_schema: must be JSON, as text or as a mapping: Object of type set"):
        api.json_schema({"enum": {1, 2}})


async def test_fields_of_a_message_that_change_nothing_are_accepted(connect, port, fake):
    message = {"role": "user", "content": "hi", "tool_calls": [], "annotations": [], "id": "m1", "refusal": None}
    await connect(f"127.0.0.1:{port}").generate("demo", [message])

    assert ["hi"] == [sent.content for sent in fake.requests[0].prompt.chat.messages]
