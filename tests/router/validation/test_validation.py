"""Every documented bound of a request is enforced, and all violations come at once."""

import hashlib
import math

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import InvalidRequestError
from penstock.models import ConstraintKind, RequestClass, SamplingParams
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import types_pb2
from router.validation import (
    CancelTarget,
    ChatPrompt,
    Message,
    RequestLimits,
    ResumePoint,
    TextPrompt,
    TokenPrompt,
    check_cancel,
    check_count,
    check_get_model,
    check_request,
    check_stream,
)

LIMITS = RequestLimits(max_prompt_bytes=1_024)


def request(**fields) -> pb.GenerateRequest:
    """Build a valid request with some fields replaced."""
    fields.setdefault("prompt", types_pb2.Prompt(text="hi"))
    return pb.GenerateRequest(**{"model": "demo", **fields})


def violations(message: pb.GenerateRequest, limits: RequestLimits = LIMITS) -> dict[str, str]:
    """Return field -> description of what is wrong."""
    try:
        check_request(message, limits)
    except InvalidRequestError as error:
        return {v.field: v.description for v in error.violations}
    return {}


def sampled(**fields) -> dict[str, str]:
    return violations(request(sampling=types_pb2.SamplingParams(**fields)))


def test_a_minimal_request_takes_every_default():
    checked = check_request(request(), LIMITS)

    assert checked.prompt == TextPrompt("hi")
    assert checked.sampling == SamplingParams(max_tokens=0)
    assert checked.n == 1
    assert checked.request_class is RequestClass.STANDARD
    assert checked.queue_timeout_s is None


def test_a_full_request_becomes_plain_values():
    message = request(
        prompt=types_pb2.Prompt(
            chat=types_pb2.ChatPrompt(
                messages=[types_pb2.ChatMessage(role="user", content="hé")], continue_final_message=True
            )
        ),
        sampling=types_pb2.SamplingParams(
            max_tokens=5, n=2, stop=["x"], structured_output=types_pb2.StructuredOutput(regex="a+")
        ),
        request_class="REQUEST_CLASS_BATCH",
        idempotency_key="key 1",
        lora_adapter="poet",
        session_id="s",
    )
    message.queue_timeout.FromMilliseconds(1_500)

    checked = check_request(message, LIMITS)

    assert checked.prompt == ChatPrompt((Message("user", "hé"),), continue_final=True)
    assert checked.sampling.max_tokens == 5
    assert checked.sampling.structured is not None
    assert checked.sampling.structured.kind is ConstraintKind.REGEX
    assert (checked.n, checked.queue_timeout_s) == (2, 1.5)
    assert checked.request_class is RequestClass.BATCH
    assert (checked.idempotency_key, checked.lora_adapter, checked.session_id) == ("key 1", "poet", "s")


def test_all_violations_come_in_one_error():
    message = pb.GenerateRequest(sampling=types_pb2.SamplingParams(temperature=3, top_p=0), session_id="s" * 129)

    assert {"model", "prompt", "sampling.temperature", "sampling.top_p", "session_id"} == set(violations(message))


def test_a_violation_names_limit_and_value():
    assert sampled(temperature=2.1)["sampling.temperature"] == "must be at least 0 and at most 2, got 2.1"
    assert sampled(top_p=0)["sampling.top_p"] == "must be above 0 and at most 1, got 0"
    # The next number in single precision.
    assert sampled(temperature=2.0000002)["sampling.temperature"].startswith(
        "must be at least 0 and at most 2, got 2.00"
    )


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("max_tokens", [1, 2**32 - 1], [0]),
        ("min_tokens", [0, 7], []),
        ("temperature", [0, 2], [-0.001, 2.001, math.nan, math.inf]),
        ("top_p", [0.001, 1], [0, 1.001, -1, math.nan]),
        ("top_k", [0, 2**32 - 1], []),
        ("min_p", [0, 1], [-0.001, 1.001, math.nan]),
        ("presence_penalty", [-2, 2], [-2.001, 2.001, math.nan, -math.inf]),
        ("frequency_penalty", [-2, 2], [-2.001, 2.001, math.nan]),
        ("repetition_penalty", [0.001, 2], [0, -1, 2.001, math.nan]),
        ("seed", [-(2**63), 0, 2**63 - 1], []),
        ("stop", [[], ["x" * 256] * 16], [["x"] * 17]),
        ("stop_token_ids", [[], [1] * 64], [[1] * 65]),
        ("logprobs", [0, 20], [21]),
        ("prompt_logprobs", [0, 20], [21]),
        ("logit_bias", [{}, {1: -100, 2: 100}, dict.fromkeys(range(1024), 1.0)], [dict.fromkeys(range(1025), 1.0)]),
        ("n", [1, 16], [0, 17]),
    ],
)
def test_ranges_of_sampling_parameters(field: str, inside: list, outside: list):
    for value in inside:
        assert sampled(**{field: value}) == {}, value
    for value in outside:
        assert {f"sampling.{field}"} == set(sampled(**{field: value})), value


@pytest.mark.parametrize("bias", [100.1, -100.1, math.nan, math.inf])
def test_a_bias_out_of_range_is_named_by_its_token(bias: float):
    assert {"sampling.logit_bias[9]"} == set(sampled(logit_bias={9: bias, 10: 1}))


@pytest.mark.parametrize("text", ["", "x" * 257, "é" * 129])
def test_stop_strings_are_bounded_in_bytes(text: str):
    assert {"sampling.stop[1]"} == set(sampled(stop=["ok", text]))


def test_min_tokens_cannot_exceed_max_tokens():
    assert {"sampling.min_tokens"} == set(sampled(min_tokens=3, max_tokens=2))


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (types_pb2.Prompt(), "prompt"),
        (types_pb2.Prompt(text="x" * 1_025), "prompt.text"),
        (types_pb2.Prompt(text="é" * 513), "prompt.text"),
        (types_pb2.Prompt(tokens=types_pb2.TokenPrompt()), "prompt.tokens.ids"),
        (types_pb2.Prompt(chat=types_pb2.ChatPrompt()), "prompt.chat.messages"),
        (
            types_pb2.Prompt(chat=types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(role="r")] * 1_025)),
            "prompt.chat.messages",
        ),
        (
            types_pb2.Prompt(
                chat=types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(role="r", content="x" * 513)] * 2)
            ),
            "prompt.chat.messages",
        ),
        (
            types_pb2.Prompt(chat=types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(content="x")])),
            "prompt.chat.messages[0].role",
        ),
        (
            types_pb2.Prompt(chat=types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(role="r" * 65)])),
            "prompt.chat.messages[0].role",
        ),
    ],
)
def test_prompts_out_of_bounds(prompt: types_pb2.Prompt, field: str):
    assert {field} == set(violations(request(prompt=prompt)))


def test_prompts_at_their_bounds_pass():
    assert violations(request(prompt=types_pb2.Prompt(text="x" * 1_024))) == {}
    assert violations(request(prompt=types_pb2.Prompt(text=""))) == {}
    checked = check_request(request(prompt=types_pb2.Prompt(tokens=types_pb2.TokenPrompt(ids=[2**32 - 1]))), LIMITS)
    assert checked.prompt == TokenPrompt((2**32 - 1,))


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"model": "m" * 257}, "model"),
        ({"request_class": 77}, "request_class"),
        ({"idempotency_key": "k" * 129}, "idempotency_key"),
        ({"idempotency_key": "tab\t"}, "idempotency_key"),
        ({"idempotency_key": "é"}, "idempotency_key"),
        ({"session_id": "é" * 65}, "session_id"),
        ({"lora_adapter": "a" * 257}, "lora_adapter"),
        ({"queue_timeout": {"seconds": 0}}, "queue_timeout"),
        ({"queue_timeout": {"seconds": -1}}, "queue_timeout"),
        ({"queue_timeout": {"seconds": 1, "nanos": -1}}, "queue_timeout"),
        ({"queue_timeout": {"nanos": 1_000_000_000}}, "queue_timeout"),
        ({"queue_timeout": {"seconds": 2**62}}, "queue_timeout"),
    ],
)
def test_other_fields_out_of_bounds(fields: dict, wrong: str):
    assert {wrong} == set(violations(request(**fields)))


@pytest.mark.parametrize(
    ("constraint", "wrong"),
    [
        ({}, ""),
        ({"json_schema": ""}, ".json_schema"),
        ({"json_schema": "{"}, ".json_schema"),
        ({"json_schema": "[]"}, ".json_schema"),
        ({"json_schema": '{"maximum": NaN}'}, ".json_schema"),
        ({"json_schema": "[" * 60_000}, ".json_schema"),
        ({"json_schema": '{"maximum": ' + "9" * 5_000 + "}"}, ".json_schema"),
        ({"json_schema": '"' + "x" * 65_536 + '"'}, ".json_schema"),
        ({"regex": "a" * 4_097}, ".regex"),
        ({"regex": "a\\"}, ".regex"),
        ({"grammar": ""}, ".grammar"),
        ({"grammar": "x" * 65_537}, ".grammar"),
        ({"choice": {}}, ".choice.values"),
        ({"choice": {"values": ["a", "a"]}}, ".choice.values"),
        ({"choice": {"values": ["a", ""]}}, ".choice.values[1]"),
        ({"choice": {"values": ["x" * 1_025]}}, ".choice.values[0]"),
        ({"choice": {"values": [str(i) for i in range(1_025)]}}, ".choice.values"),
    ],
)
def test_constraints_that_no_engine_can_follow(constraint: dict, wrong: str):
    assert {f"sampling.structured_output{wrong}"} == set(sampled(structured_output=constraint))


@pytest.mark.parametrize(
    "constraint",
    [
        {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}}'},
        {"regex": r"(?i)[]a)(]\)+(?:x|\p{L}{2,3})*?$"},
        {"regex": "(?:a)(?P<year>[0-9]+)"},
        {"grammar": 'root ::= "a"'},
        {"choice": {"values": ["yes", "no"]}},
    ],
)
def test_constraints_that_an_engine_may_follow(constraint: dict):
    """Dialects differ, so only what is wrong in every dialect is refused before the engine sees it."""
    assert sampled(structured_output=constraint) == {}


def test_an_error_stays_small_however_much_is_wrong():
    """The status travels in trailers: one violation per message would make the peer drop the whole response."""
    chat = types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage()] * 1_024)

    with pytest.raises(InvalidRequestError) as caught:
        check_request(request(prompt=types_pb2.Prompt(chat=chat)), LIMITS)

    assert len(caught.value.violations) == 16
    assert caught.value.violations[-1].description.endswith("(and 1008 more violations)")


def test_streams_check_their_own_fields_too():
    message = pb.StreamGenerateRequest(
        generate=request(session_id="s" * 129), resume=pb.Resume(received_tokens=[1, 2]), flush_interval={"seconds": 11}
    )

    with pytest.raises(InvalidRequestError) as caught:
        check_stream(message, LIMITS)

    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["session_id", "flush_interval", "resume.resume_token", "resume.received_tokens"]


def test_a_stream_needs_its_generation():
    with pytest.raises(InvalidRequestError, match="generate: is required"):
        check_stream(pb.StreamGenerateRequest(), LIMITS)


def test_a_stream_becomes_plain_values():
    checked = check_stream(
        pb.StreamGenerateRequest(
            generate=request(),
            flush_interval={"nanos": 20_000_000},
            resume=pb.Resume(resume_token=b"t", received_tokens=[3]),
        ),
        LIMITS,
    )

    assert checked.flush_interval_s == pytest.approx(0.02)
    assert checked.resume == ResumePoint(b"t", (3,))
    assert check_stream(pb.StreamGenerateRequest(generate=request()), LIMITS).resume is None


def test_a_count_may_leave_the_beginning_of_the_answer_out():
    chat = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    going_on = {**chat, "continue_final_message": True}
    for begins in (True, False):
        asked = pb.CountTokensRequest(model="m", prompt={"chat": chat}, add_generation_prompt=begins)
        assert check_count(asked, LIMITS).prompt.begins_answer is begins
    check_count(pb.CountTokensRequest(model="m", prompt={"chat": going_on}, add_generation_prompt=False), LIMITS)
    for prompt in ({"text": "x"}, {"chat": going_on}):
        with pytest.raises(InvalidRequestError, match="add_generation_prompt"):
            check_count(pb.CountTokensRequest(model="m", prompt=prompt, add_generation_prompt=True), LIMITS)


def test_counts_cancels_and_lookups_are_checked():
    assert check_count(pb.CountTokensRequest(model="m", prompt={"text": "x"}), LIMITS).prompt == TextPrompt("x")
    assert check_cancel(pb.CancelRequest(request_id="r")) == CancelTarget(request_id="r")
    assert check_cancel(pb.CancelRequest(idempotency_key="k")) == CancelTarget(idempotency_key="k")
    assert check_get_model(pb.GetModelRequest(model="m")) == "m"
    for check in (
        lambda: check_count(pb.CountTokensRequest(), LIMITS),
        lambda: check_cancel(pb.CancelRequest()),
        lambda: check_cancel(pb.CancelRequest(request_id="")),
        lambda: check_cancel(pb.CancelRequest(idempotency_key="")),
        lambda: check_cancel(pb.CancelRequest(idempotency_key="\n")),
        lambda: check_get_model(pb.GetModelRequest()),
    ):
        with pytest.raises(InvalidRequestError):
            check()


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_any_parsable_request_is_accepted_or_refused_cleanly(body: bytes, constraint: bytes):
    """Nothing but InvalidRequestError leaves validation, whatever bytes a client sends."""
    message = request()
    try:
        message.MergeFromString(body)
        message.sampling.structured_output.MergeFromString(constraint)
    except (DecodeError, UnicodeDecodeError):
        return
    violations(message)


def test_what_may_not_end_has_no_constraint_that_ends():
    """Engines go on without the constraint once its language is complete."""
    constraint = types_pb2.StructuredOutput(choice=types_pb2.ChoiceConstraint(values=["yes"]))

    found = sampled(structured_output=constraint, ignore_eos=True)
    assert {"sampling.ignore_eos"} == set(found)
    assert "structured_output" in found["sampling.ignore_eos"]
    assert {} == sampled(structured_output=constraint, ignore_eos=False)
    assert {} == sampled(structured_output=constraint, min_tokens=5)
    assert {} == sampled(ignore_eos=True)


def digest_of(**fields) -> tuple[str, str]:
    """Return the exact and the plain digest of a request."""
    exact, _, plain = check_request(request(idempotency_key="k", **fields), RequestLimits()).digest.partition("/")
    return exact, plain or exact


@pytest.mark.parametrize(
    "fields",
    [
        {"request_class": types_pb2.REQUEST_CLASS_STANDARD},
        {"sampling": {}},
        {"sampling": {"n": 1}},
        {"sampling": {"min_tokens": 0, "temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0}},
        {"sampling": {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}},
    ],
)
def test_a_written_default_has_another_exact_digest_and_the_same_plain_one(fields):
    (exact, plain), least = digest_of(**fields), digest_of()

    assert exact != least[0]
    assert plain == least[0] == least[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"request_class": types_pb2.REQUEST_CLASS_BATCH},
        {"sampling": {"temperature": 0}},
        {"sampling": {"n": 2}},
        {"sampling": {"seed": 0}},
        {"sampling": {"logprobs": 0}},
        {"sampling": {"max_tokens": 1}},
        {"sampling": {"ignore_eos": True}},
        {"session_id": "s"},
    ],
)
def test_what_changes_the_request_changes_both_digests(fields):
    exact, plain = digest_of(**fields)

    assert exact == plain != digest_of()[0]


def test_the_exact_digest_is_what_earlier_versions_stored():
    sent = request(idempotency_key="k", sampling={"top_p": 1}, queue_timeout=Duration(seconds=3))
    kept = request(idempotency_key="k", sampling={"top_p": 1})

    digest = check_request(sent, RequestLimits()).digest

    assert hashlib.sha256(kept.SerializeToString(deterministic=True)).hexdigest()[:32] == digest.partition("/")[0]
