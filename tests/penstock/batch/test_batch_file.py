"""The OpenAI batch file format, both ways."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest

from penstock.client import (
    BatchFileError,
    Choice,
    Completion,
    Job,
    JobItem,
    JobItemError,
    JobResult,
    JobState,
    JobTotals,
    Message,
    Receipt,
    Sampling,
    Usage,
    grammar,
    json_schema,
    one_of,
    read_batch,
    read_line,
    regex,
    result_line,
    result_object,
)
from penstock.models import (
    FinishReason,
    PositionLogprobs,
    RequestClass,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
)

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
URLS = "must be /v1/chat/completions or /v1/completions or /v1/embeddings"


def line(custom_id: str = "a", url: str = CHAT, **body: Any) -> str:
    """Write a line; chat unless told otherwise."""
    base: dict[str, Any] = {"model": "demo", "messages": MESSAGES} if url == CHAT else {"model": "demo", "prompt": "Hi"}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {**base, **body}})


def sampling(url: str = CHAT, **body: Any) -> Sampling:
    """Return what a body is read as."""
    read = read_line(line(url=url, **body), 1).item.sampling
    assert read is not None
    return read


def test_the_example_of_openais_documentation_is_read() -> None:
    text = (
        '{"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": '
        '{"model": "gpt-3.5-turbo-0125", '
        '"messages": [{"role": "system", "content": "You are a helpful assistant."},'
        '{"role": "user", "content": "Hello world!"}],"max_tokens": 1000}}'
    )
    read = read_line(text, 1)
    turns = [Message("system", "You are a helpful assistant."), Message("user", "Hello world!")]
    assert ("gpt-3.5-turbo-0125", JobItem("request-1", turns, Sampling(max_tokens=1000)), ()) == (
        read.model,
        read.item,
        read.ignored,
    )


def test_every_sampling_field_finds_its_place() -> None:
    read = sampling(
        max_completion_tokens=5, temperature=0, top_p=0.5, n=2, seed=-7, stop=["a", "b"], presence_penalty=1,
        frequency_penalty=-1.5, logprobs=True, top_logprobs=3, logit_bias={"7": -100}, top_k=4, min_p=0.1, min_tokens=1,
        repetition_penalty=1.1, stop_token_ids=[2], ignore_eos=True, stream=False, best_of=1,
    )  # fmt: skip
    assert read == Sampling(
        max_tokens=5, temperature=0.0, top_p=0.5, n=2, seed=-7, stop=("a", "b"), presence_penalty=1.0,
        frequency_penalty=-1.5, logprobs=3, logit_bias={7: -100.0}, top_k=4, min_p=0.1, min_tokens=1,
        repetition_penalty=1.1, stop_token_ids=(2,), ignore_eos=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"stop": "x"}, Sampling(stop=("x",))),
        ({"logprobs": True}, Sampling(logprobs=0)),
        ({"logprobs": False}, Sampling()),
        ({"max_tokens": 3, "max_completion_tokens": 3}, Sampling(max_tokens=3)),
        ({"temperature": None, "stop": None, "user": None}, Sampling()),
        ({"response_format": {"type": "text"}}, Sampling()),
        ({"response_format": {"type": "json_object"}}, Sampling(structured=json_schema({"type": "object"}))),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": {"a": 1}}}},
            Sampling(structured=json_schema({"a": 1})),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": None, "schema": {"a": 1}}}},
            Sampling(structured=json_schema({"a": 1})),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"strict": False, "schema": {"a": 1}}}},
            Sampling(structured=json_schema({"a": 1}, best_effort=True)),
        ),
        ({"guided_json": {"a": 1}}, Sampling(structured=json_schema({"a": 1}))),
        ({"guided_regex": "a+"}, Sampling(structured=regex("a+"))),
        ({"guided_grammar": "g"}, Sampling(structured=grammar("g"))),
        ({"guided_choice": ["a", "b"]}, Sampling(structured=one_of("a", "b"))),
        ({"structured_outputs": {"json": {"a": 1}}}, Sampling(structured=json_schema({"a": 1}))),
        ({"structured_outputs": {"json": '{"a": 1}'}}, Sampling(structured=json_schema({"a": 1}))),
        ({"structured_outputs": {"regex": "a+"}}, Sampling(structured=regex("a+"))),
        ({"structured_outputs": {"grammar": "g", "json": None}}, Sampling(structured=grammar("g"))),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Sampling(structured=one_of("a", "b"))),
        ({"structured_outputs": {"json_object": True}}, Sampling(structured=json_schema({"type": "object"}))),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": None}}, Sampling(structured=json_schema({}))),
        ({"top_k": -1}, Sampling(top_k=0)),
        ({"top_p": 0}, Sampling(top_p=1e-6)),
        ({"seed": -1}, Sampling()),
        ({"n": 3, "best_of": 3}, Sampling(n=3)),
    ],
)  # fmt: skip
def test_forms_of_a_field(body: dict[str, Any], expected: Sampling) -> None:
    assert expected == sampling(**body)


def test_completions_take_text_or_ids_and_have_their_own_defaults() -> None:
    assert "Hi" == read_line(line(url=TEXT), 1).item.prompt
    assert [1, 2] == read_line(line(url=TEXT, prompt=[1, 2]), 1).item.prompt
    assert Sampling(max_tokens=16) == sampling(TEXT)
    assert Sampling(max_tokens=9, logprobs=2) == sampling(TEXT, max_tokens=9, logprobs=2)


def test_text_parts_stay_parts() -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "input_text", "text": "Context"}, "the end"]
    read = read_line(line(messages=[{"role": "user", "content": parts}]), 1)
    assert [Message("user", ("What is this?", "Context", "the end"))] == read.item.prompt


def test_a_chat_with_tools_is_read_as_openais_clients_write_it() -> None:
    """Their helpers for pydantic and zod write strict tools and schemas with all that those make."""
    schema = {
        "type": "object",
        "title": "Weather",
        "properties": {"city": {"type": "string", "title": "City"}, "unit": {"anyOf": [{"$ref": "#/$defs/U"}]}},
        "$defs": {"U": {"enum": ["c", "f"], "title": "U", "type": "string"}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    function = {"name": "Weather", "strict": True, "parameters": schema}
    call = {"id": "call_1", "type": "function", "function": {"name": "Weather", "arguments": '{"city": "Oslo"}'}}
    read = read_line(
        line(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "Oslo?", "name": "ann"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [call],
                    "reasoning_content": "Hm.",
                    "refusal": None,
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
            ],
            tools=[{"type": "function", "function": function}],
            tool_choice={"type": "function", "function": {"name": "Weather"}},
            parallel_tool_calls=False,
            reasoning_effort="low",
            include_reasoning=False,
            chat_template_kwargs={"enable_thinking": True},
            documents=[{"title": "a", "text": "b"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "Weather", "strict": True, "schema": schema},
            },
        ),
        1,
    )

    assert ((), Sampling(structured=json_schema(schema))) == (read.ignored, read.item.sampling)
    assert read.item == JobItem(
        "a",
        [
            Message("developer", "Be brief."),
            Message("user", "Oslo?", name="ann"),
            Message("assistant", tool_calls=(ToolCall("call_1", "Weather", '{"city": "Oslo"}'),), reasoning="Hm."),
            Message("tool", "Rain.", tool_call_id="call_1"),
        ],
        read.item.sampling,
        tools=(Tool("Weather", parameters=json.dumps(schema), strict=True),),
        tool_choice=ToolChoice(ToolMode.REQUIRED, ("Weather",)),
        parallel_tool_calls=False,
        reasoning_effort="low",
        include_reasoning=False,
        chat_template_kwargs={"enable_thinking": True},
        documents=({"title": "a", "text": "b"},),
    )


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tool_choice": None, "parallel_tool_calls": False},
    ],
)
def test_a_choice_among_no_tools_is_none(body: dict[str, Any]) -> None:
    assert JobItem("a", [Message("user", "Hi")], Sampling()) == read_line(line(**body), 1).item


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("{", "", "is no JSON: Expecting property name enclosed in double quotes at column 2"),
        ("[1]", "", "must be an object, got [1]"),
        (json.dumps({"method": "POST"}), "custom_id", "is required"),
        (json.dumps({"custom_id": 7}), "custom_id", "must be text, got 7"),
        (json.dumps({"custom_id": "a", "method": "GET"}), "method", 'must be "POST", got "GET"'),
        (line(url="/v1/images"), "url", f"{URLS}, got"),
        (line(url="/v1/responses"), "url", f'{URLS}, got "/v1/responses"; a batch over HTTP'),
        (json.dumps({"custom_id": "a", "method": "POST", "url": CHAT}), "body", "is required"),
        (line(model=""), "body.model", "is required"),
        (line(messages=[]), "body.messages", "must be a list of at least one message, got []"),
        (line(messages=[{"content": "x"}]), "body.messages[0].role", "is required"),
        (line(messages=[{"role": "user", "content": None}]), "body.messages[0].content", "is required"),
        (line(messages=[{"role": "user", "content": [{"type": "audio"}]}]), "body.messages[0].content[0]", "must"),
        (line(messages=[{"role": "user", "content": "x", "nam": "n"}]), "body.messages[0].nam", "is not supported"),
        (line(url=TEXT, prompt=["a", "b"]), "body.prompt", "must be one text or one list of token ids"),
        (line(url=TEXT, prompt=[-1]), "body.prompt", "must be at least 0, got -1"),
        (line(temperature="hot"), "body.temperature", 'must be a number, got "hot"'),
        (line(temperature=True), "body.temperature", "must be a number, got true"),
        (line(max_tokens=1.5), "body.max_tokens", "must be a whole number, got 1.5"),
        (line(max_tokens=-1), "body.max_tokens", "must be at least 1, got -1"),
        (line(seed=2**63), "body.seed", "must be at most 9223372036854775807, got"),
        (line(top_logprobs=3), "body.top_logprobs", "needs logprobs to be true"),
        (line(logprobs=5), "body.logprobs", "must be true or false, got 5"),
        (line(stop=[1]), "body.stop", "must be text or a list of texts, got [1]"),
        (line(stream=True), "body.stream", "must be false or absent, got true"),
        (line(logit_bias={"x": 1}), "body.logit_bias", 'must map token ids to numbers, got {"x": 1}'),
        (line(logit_bias={"7": 10**400}), "body.logit_bias", "must be numbers below 1.8e308, got"),
        (line(logit_bias={"7" * 5000: 1}), "body.logit_bias", "must map token ids to numbers, got"),
        (line(tools=[{}]), "body.tools[0].function", "is required"),
        (line(tool_choice="any"), "body.tool_choice", 'must be one of auto, none, required, got "any"'),
        (line(documents=["x"]), "body.documents[0]", 'must be an object, got "x"'),
        (line(chat_template_kwargs=[1]), "body.chat_template_kwargs", "must be an object, got [1]"),
        (line(reasoning_effort=5), "body.reasoning_effort", "must be text, got 5"),
        (line(best_of=3, n=2), "body.best_of", "must be 1, n or absent, got 3"),
        (line(stream=0), "body.stream", "must be false or absent, got 0"),
        (line(top_k=-2), "body.top_k", "must be at least -1, got -2"),
        (line(structured_outputs={}), "body.structured_outputs", "must have one of json, regex, choice, grammar"),
        (line(structured_outputs={"json": {}, "regex": "a"}), "body.structured_outputs", "must have one of json"),
        (line(structured_outputs={"json": [1]}), "body.structured_outputs.json", "must be an object or text, got [1]"),
        (line(structured_outputs={"structural_tag": "x"}), "body.structured_outputs.structural_tag", "must be JSON"),
        (line(structured_outputs={"regex": "a"}, guided_regex="a"), "body.structured_outputs", "must be absent with"),
        (line(frobnicate=1), "body.frobnicate", "is not supported"),
        (line(response_format={"type": "xml"}), "body.response_format.type", "must be text, json_object"),
        (line(response_format={"type": "json_schema"}), "body.response_format.json_schema.schema", "must be a JSON"),
        (line(guided_choice=["a", True]), "body.guided_choice", 'must be a list of texts, got ["a", true]'),
        (line(guided_choice="a"), "body.guided_choice", 'must be a list of texts, got "a"'),
        (line(guided_regex="a", guided_choice=["b"]), "body.guided_choice", "must be absent with guided_regex"),
        (line().replace("Hi", "\\ud800"), "", "has half of a surrogate pair"),
        ("\ud800" + line(), "", "has half of a surrogate pair, which is no character, at column 1"),
        (line(temperature=10**400), "body.temperature", "must be a number below 1.8e308, got 1000000"),
        (line(seed=0).replace('"seed": 0', '"seed": 1' + "0" * 5000), "", "has a number with too many digits"),
        (line(user=math.nan), "", "has NaN, which is no JSON number"),
        (line(user="7").replace('"7"', "1e999"), "", "has the number 1e999, which is too large"),
        ("[" * 100_000, "", "is nested too deeply"),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_a_wrong_line_says_which_field_and_why(text: str, field: str, problem: str) -> None:
    with pytest.raises(BatchFileError) as caught:
        read_line(text, 12)
    assert (12, field) == (caught.value.line, caught.value.field)
    assert caught.value.problem.startswith(problem)
    assert str(caught.value).startswith("line 12: ")


def test_no_depth_is_worse_than_an_error() -> None:
    """Some can be read and not be written again, for an error or as a schema."""
    for text in (line(stop="deep"), line(guided_json={"a": "deep"})):
        for depth in range(900, 1010):
            with contextlib.suppress(BatchFileError):
                read_line(text.replace('"deep"', '{"a":' * depth + "1" + "}" * depth), 1)


def test_unknown_fields_are_ignored_only_on_request_and_then_listed() -> None:
    messages = [{"role": "user", "content": "x", "nam": "n"}]
    texts = [line("a", x="me", messages=messages), line("b", x="me", response_format={"type": "text", "x": 1})]
    with pytest.raises(
        BatchFileError, match=r"^line 1: body\.messages\[0\]\.nam: is not supported; did you mean name\?"
    ):
        read_batch(texts)
    batch = read_batch(texts, ignore_unknown=True)
    assert {"body.messages[0].nam": 1, "body.x": 2, "body.response_format.x": 1} == batch.ignored


def test_a_file_has_one_model_and_unique_ids() -> None:
    batch = read_batch(["", line("a"), "  \n", line("b") + "\n"])
    assert ("demo", ["a", "b"], {}) == (batch.model, [item.custom_id for item in batch.items], batch.ignored)
    with pytest.raises(BatchFileError, match=r"^line 3: custom_id: 'a' is on line 1 already$"):
        read_batch([line("a"), line("b"), line("a")])
    with pytest.raises(BatchFileError, match=r"^line 2: body\.model: must be 'demo' as on the lines before, got 'x'$"):
        read_batch([line("a"), line("b", model="x")])
    with pytest.raises(BatchFileError, match="the file has no requests"):
        read_batch(["", "\n"])


# --- output -----------------------------------------------------------------------------------------------------------

TOTALS = JobTotals(0, 0, 0, 0, 0)
JOB = Job(
    "demo.1", "demo", JobState.RUNNING, RequestClass.BATCH, "", 1.0, 2.0, None, 9.0, 2, 1, 0, TOTALS, ""
)  # fmt: skip
RECEIPT = Receipt((), 1.0, None, 0.0, 0.0, 0.0, True, "router-1")


def result(*, chat: bool = True, logprobs: tuple[PositionLogprobs, ...] = (), prompt_logprobs: Any = ()) -> JobResult:
    choice = Choice(0, "Hello é", (), logprobs, FinishReason.LENGTH, "")
    return JobResult(
        3, "a", 1700000000.9, chat, Completion("req", (choice,), Usage(5, 2, 1), RECEIPT, prompt_logprobs), None
    )


def test_a_chat_result_has_openais_form() -> None:
    assert {
        "id": "batch_req_demo.1_3",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "req",
            "body": {
                "id": "chatcmpl-req",
                "object": "chat.completion",
                "created": 1700000000,
                "model": "demo",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "Hello é", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "length",
                    }
                ],
                "usage": {
                    "prompt_tokens": 5,
                    "completion_tokens": 2,
                    "total_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 1},
                    "completion_tokens_details": {"reasoning_tokens": 0},
                },
            },
        },
        "error": None,
    } == json.loads(result_line(JOB, result()))
    assert "é" in result_line(JOB, result())
    assert "\n" not in result_line(JOB, result())


def test_a_completion_result_has_openais_form() -> None:
    body = result_object(JOB, result(chat=False))["response"]["body"]
    assert ("cmpl-req", "text_completion") == (body["id"], body["object"])
    assert [{"index": 0, "text": "Hello é", "logprobs": None, "finish_reason": "length"}] == body["choices"]


def test_log_probabilities_have_the_texts_of_their_tokens() -> None:
    token = TokenLogprob(7, -0.5, b" a")
    position = PositionLogprobs(token, (token, TokenLogprob(8, -1.5, b"\xe4")))
    body = result_object(JOB, result(logprobs=(position,)))["response"]["body"]
    [content] = body["choices"][0]["logprobs"]["content"]
    assert (" a", [32, 97], "\\xe4", [0xE4]) == (
        content["token"], content["bytes"], content["top_logprobs"][1]["token"], content["top_logprobs"][1]["bytes"]
    )  # fmt: skip
    text = result_object(JOB, result(chat=False, logprobs=(position,)))["response"]["body"]["choices"][0]["logprobs"]
    assert {
        "tokens": [" a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{" a": -0.5, "bytes:\\xe4": -1.5}],
        "text_offset": [0],
    } == text


def test_the_log_probabilities_of_a_prompt_are_where_vllm_has_them() -> None:
    found = [PositionLogprobs(TokenLogprob(7, -9999.0, b"a")), PositionLogprobs(TokenLogprob(8, -1.0, b"b"), rank=4)]
    item = result(prompt_logprobs=tuple(found))
    expected = [None, {"8": {"logprob": -1.0, "rank": 4, "decoded_token": "b"}}]
    assert expected == result_object(JOB, item)["response"]["body"]["prompt_logprobs"]
    text = result(chat=False, prompt_logprobs=tuple(found))
    assert expected == result_object(JOB, text)["response"]["body"]["choices"][0]["prompt_logprobs"]


def test_a_failed_item_has_an_error_and_no_response() -> None:
    failed = JobResult(0, "a", 1.0, True, None, JobItemError(3, "INVALID_REQUEST", "prompt: is too long"))
    assert {
        "id": "batch_req_demo.1_0",
        "custom_id": "a",
        "response": None,
        "error": {"code": "invalid_request", "message": "prompt: is too long"},
    } == result_object(JOB, failed)
