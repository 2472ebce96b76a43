"""Values survive the way to the wire and back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import wire
from penstock.models import (
    Capabilities,
    ConstraintKind,
    FinishReason,
    PositionLogprobs,
    ReplicaState,
    RequestClass,
    SamplingParams,
    StructuralTag,
    StructuredOutput,
    TaggedSchema,
    TokenLogprob,
)
from penstock.v1 import types_pb2

ids = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(-2, 2, width=32)
structured = st.one_of(
    st.builds(StructuredOutput, kind=st.just(ConstraintKind.JSON_SCHEMA), text=texts, best_effort=st.booleans()),
    st.builds(
        StructuredOutput,
        kind=st.sampled_from(
            [kind for kind in ConstraintKind if kind not in (ConstraintKind.CHOICE, ConstraintKind.STRUCTURAL_TAG)]
        ),
        text=texts,
    ),
    st.builds(
        StructuredOutput,
        kind=st.just(ConstraintKind.STRUCTURAL_TAG),
        tag=st.builds(
            StructuralTag,
            structures=st.lists(st.builds(TaggedSchema, begin=texts, schema=texts, end=texts)).map(tuple),
            triggers=st.lists(texts).map(tuple),
        ),
    ),
    st.builds(
        StructuredOutput,
        kind=st.just(ConstraintKind.CHOICE),
        choices=st.lists(texts).map(tuple),
    ),
)
sampling = st.builds(
    SamplingParams,
    max_tokens=ids,
    min_tokens=ids,
    temperature=floats,
    top_p=floats,
    top_k=ids,
    min_p=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=floats,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(texts).map(tuple),
    stop_token_ids=st.lists(ids).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | ids,
    logit_bias=st.dictionaries(ids, floats),
    structured=st.none() | structured,
)
capabilities_values = st.builds(
    Capabilities, *[st.integers(0, 20) if name.startswith("max_") else st.booleans() for name in Capabilities.__slots__]
)
token_logprobs = st.builds(TokenLogprob, token_id=ids, logprob=st.floats(-9999, 0, width=32))


@pytest.mark.slow
@given(sampling)
def test_sampling_parameters_survive_serialization(params: SamplingParams):
    sent = wire.sampling_to_wire(params).SerializeToString()

    assert params == wire.sampling_from_wire(types_pb2.SamplingParams.FromString(sent), max_tokens=-1)


def test_an_empty_message_means_every_default():
    assert SamplingParams(max_tokens=7) == wire.sampling_from_wire(types_pb2.SamplingParams(), max_tokens=7)


def test_what_is_asked_for_again_is_read_once():
    sent = types_pb2.SamplingParams(temperature=0.25, max_tokens=9, stop=["one"])
    first = wire.sampling_from_wire(sent, max_tokens=1)

    assert wire.sampling_from_wire(types_pb2.SamplingParams.FromString(sent.SerializeToString()), max_tokens=1) is first
    sent.stop[0] = "two"
    assert ("two",) == wire.sampling_from_wire(sent, max_tokens=1).stop
    assert 3 == wire.sampling_from_wire(types_pb2.SamplingParams(), max_tokens=3).max_tokens
    assert 4 == wire.sampling_from_wire(types_pb2.SamplingParams(), max_tokens=4).max_tokens


def test_who_changes_a_message_changes_no_other():
    params = SamplingParams(max_tokens=9, stop=("one",))
    wire.sampling_to_wire(params).stop.append("two")

    assert ["one"] == list(wire.sampling_to_wire(params).stop)


def test_biases_are_no_part_of_what_is_remembered():
    """They are left out of the hash, and must not be taken for those of another request."""
    params = [SamplingParams(max_tokens=9, logit_bias={7: bias}) for bias in (0.5, 1.5)]

    assert [0.5, 1.5] == [wire.sampling_to_wire(each).logit_bias[7] for each in params]


def test_zero_is_not_taken_for_unset():
    """Temperature 0 is greedy and logprobs 0 asks for the chosen token only; neither is the default."""
    params = wire.sampling_from_wire(types_pb2.SamplingParams(temperature=0, logprobs=0, seed=0), max_tokens=1)

    assert (params.temperature, params.logprobs, params.seed) == (0.0, 0, 0)


def test_a_constraint_without_content_is_none():
    assert wire.structured_from_wire(types_pb2.StructuredOutput()) is None


@pytest.mark.slow
@given(st.builds(PositionLogprobs, chosen=token_logprobs, top=st.lists(token_logprobs, max_size=5).map(tuple)))
def test_log_probabilities_survive(position: PositionLogprobs):
    assert position == wire.logprobs_from_wire(wire.logprobs_to_wire(position))


@pytest.mark.parametrize(
    ("engine", "sent"), [(-math.inf, -9999), (math.nan, -9999), (-1e9, -9999), (1e-7, 0), (-1.5, -1.5)]
)
def test_log_probabilities_stay_in_their_range(engine: float, sent: float):
    position = wire.logprobs_to_wire(PositionLogprobs(TokenLogprob(1, engine)))

    assert sent == position.chosen.logprob


@pytest.mark.slow
@given(capabilities_values, st.booleans())
def test_capabilities_survive(capabilities: Capabilities, chat: bool):
    sent = wire.capabilities_to_wire(capabilities, chat=chat)

    assert chat == sent.chat
    assert capabilities == wire.capabilities_from_wire(sent)


@pytest.mark.parametrize("request_class", RequestClass)
def test_request_classes_survive(request_class: RequestClass):
    assert request_class is wire.request_class_from_wire(wire.request_class_to_wire(request_class))


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_reasons_survive(reason: FinishReason):
    assert reason is wire.finish_reason_from_wire(wire.finish_reason_to_wire(reason))


@pytest.mark.parametrize("state", ReplicaState)
def test_replica_states_survive(state: ReplicaState):
    assert state is wire.replica_state_from_wire(wire.replica_state_to_wire(state))


def test_unknown_numbers_are_read_on_the_safe_side():
    """A newer peer's finish reason must not look like success, nor its replica state like room for work."""
    assert RequestClass.STANDARD is wire.request_class_from_wire(0)
    assert FinishReason.ERROR is wire.finish_reason_from_wire(99)
    assert ReplicaState.STARTING is wire.replica_state_from_wire(99)
    with pytest.raises(ValueError, match="99"):
        wire.request_class_from_wire(99)


@given(st.floats(-1e9, 1e9))
def test_durations_survive_to_the_nanosecond(seconds: float):
    sent = wire.duration_to_wire(seconds)

    assert sent.seconds * sent.nanos >= 0
    assert abs(sent.nanos) < 10**9
    assert seconds == pytest.approx(wire.duration_from_wire(sent), abs=1e-6, rel=1e-12)


def test_a_duration_rounds_up_into_the_next_second():
    sent = wire.duration_to_wire(0.9999999999)

    assert (sent.seconds, sent.nanos) == (1, 0)


@pytest.mark.parametrize("seconds", [0.0, 1.25, -1.25, 0.9999999999, -1e-12])
def test_a_duration_in_its_place_is_that_which_is_sent_and_is_present(seconds: float):
    found = types_pb2.Receipt()
    wire.set_duration(found.total_time, seconds)
    assert found.HasField("total_time")
    assert wire.duration_to_wire(seconds) == found.total_time
    assert seconds == pytest.approx(wire.duration_from_wire(found.total_time), abs=1e-9)
