"""Whatever form a caller gives prompt and sampling, the router gets one request; what is none is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from penstock import GenerateOptions, JobItem, Message, RequestClass, Sampling, SamplingFields
from penstock.client.calls import Asked
from penstock.v1 import inference_pb2 as pb
from penstock.values.requests import prompt_to_proto

HI = {"role": "user", "content": "Hi"}


def asked(sampling: Any = None, options: Any = None, **keywords: Any) -> pb.GenerateRequest:
    return Asked("demo", "x", sampling, options, keywords).request("flush_interval")


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_keywords_are_the_fields_of_sampling() -> None:
    assert get_type_hints(Sampling) == get_type_hints(SamplingFields)
    assert frozenset() == SamplingFields.__required_keys__


@pytest.mark.parametrize(
    "given",
    [
        asked(Sampling(max_tokens=3, temperature=0)),
        asked({"max_tokens": 3, "temperature": 0}),
        asked(max_tokens=3, temperature=0),
        asked(Sampling(max_tokens=9), max_tokens=3, temperature=0),
        asked({"max_tokens": 9}, max_tokens=3, temperature=0),
    ],
    ids=["value", "dictionary", "keywords", "keywords over a value", "keywords over a dictionary"],
)
def test_sampling_in_any_form_is_the_same_request(given: pb.GenerateRequest) -> None:
    assert (3, True, 0.0) == (
        given.sampling.max_tokens,
        given.sampling.HasField("temperature"),
        given.sampling.temperature,
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_token", "did you mean max_tokens?"),
        ("temprature", "did you mean temperature?"),
        ("max_completion_tokens", "give max_tokens"),
        ("time_out", "did you mean timeout?"),
        ("flush_intervall", "did you mean flush_interval?"),
        ("request_class", "give options=GenerateOptions(request_class=...)"),
        ("response_format", "give structured=json_schema(...)"),
        ("xyz", "sampling parameters are max_tokens, min_tokens, "),
    ],
)
def test_an_unknown_keyword_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as told:
        asked(**{name: 1})
    assert f"there is no parameter {name!r}; {hint}" in str(told.value)


def test_an_unknown_field_of_a_dictionary_does_too() -> None:
    with pytest.raises(TypeError, match=r"sampling: there is no parameter 'topp'; did you mean top_p\?"):
        asked({"topp": 1})


@pytest.mark.parametrize("wrong", [3, "max_tokens=3", [("max_tokens", 3)]])
def test_sampling_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError) as told:
        asked(wrong)
    assert f"sampling: must be Sampling or a dictionary of its fields, got {wrong!r}" == str(told.value)


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        [Message("user", "Hi")],
        (Message("user", "Hi"),),
        Message("user", "Hi"),
        HI,
        [HI],
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        [{"role": "user", "content": ["Hi"]}],
        # What the dump of another client's message has beside them.
        [{**HI, "refusal": None, "tool_calls": [], "annotations": []}],
    ],
)
def test_a_message_in_any_form_is_the_same_conversation(prompt: Any) -> None:
    (message,) = prompt_to_proto(prompt).chat.messages
    assert ("user", "Hi") == (message.role, message.content)


def test_forms_of_messages_can_be_mixed() -> None:
    chat = prompt_to_proto([{"role": "system", "content": "Short."}, Message("user", "Hi")]).chat
    assert ["system", "user"] == [message.role for message in chat.messages]


@pytest.mark.parametrize(
    "message",
    [
        Message("user", ("Who?", "Context")),
        {"role": "user", "content": ["Who?", "Context"]},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}, {"type": "input_text", "text": "Context"}]},
        {
            "role": "user",
            "content": [{"type": "output_text", "text": "Who?"}, {"type": "refusal", "refusal": "Context"}],
        },
    ],
)
def test_several_parts_stay_parts(message: Any) -> None:
    (sent,) = prompt_to_proto(message).chat.messages
    assert ("", ["Who?", "Context"]) == (sent.content, [part.text for part in sent.parts])


KINDS = "prompt: must be text, messages (each a Message, or a dictionary with role and content), or token ids, got"


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ([HI, {"role": "user"}], "prompt.chat.messages[1].content: is required"),
        ({"content": "Hi"}, "prompt.chat.messages[0].role: is required"),
        (
            {**HI, "contents": "Hi"},
            "prompt.chat.messages[0].contents: is not supported; did you mean content?",
        ),
        ([{**HI, "tool_calls": [{"id": "1"}]}], "prompt.chat.messages[0].tool_calls[0].function: is required"),
        (
            {"role": "user", "content": 3},
            "prompt.chat.messages[0].content: must be text or a list of parts, got",
        ),
        ({"role": 3, "content": "x"}, "prompt.chat.messages[0].role: must be text, got 3"),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            "prompt.chat.messages[0].content[0].image_url: must be a data URL",
        ),
        ([HI, 3], f"{KINDS} ["),
        ([HI, "text"], f"{KINDS} ["),
        (3, f"{KINDS} 3"),
        (None, f"{KINDS} None"),
    ],
)
def test_what_is_no_prompt_is_refused_with_place_and_value(prompt: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        prompt_to_proto(prompt)
    assert str(error.value).startswith(told)


def test_an_item_takes_the_same_forms_as_a_call() -> None:
    wire = JobItem("a", [HI], {"max_tokens": 3}).to_proto()
    assert (3, "Hi") == (wire.request.sampling.max_tokens, wire.request.prompt.chat.messages[0].content)


def test_every_class_is_a_class_of_the_wire() -> None:
    sent = {asked(options=GenerateOptions(request_class=each)).request_class for each in RequestClass}
    assert len(RequestClass) == len(sent)


def test_values_stay_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Message("user", "Hi").role = "system"  # type: ignore[misc]
