"""Fields that are not supported: what changes nothing is accepted, and what changes answers is never left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import BatchFileError, JobItem, Message, Sampling, read_line

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PLAIN = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def line(url: str = CHAT, **body: Any) -> str:
    prompt = {"messages": [PLAIN]} if url == CHAT else {"prompt": "Hi"}
    return json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": {"model": "demo", **prompt, **body}})


def said(**message: Any) -> str:
    return line(messages=[{**PLAIN, **message}])


@pytest.mark.parametrize(
    "body",
    [
        {"user": "me"}, {"metadata": {"run": "7"}}, {"store": False}, {"service_tier": "auto"},
        {"service_tier": "default"}, {"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"},
        {"functions": []}, {"function_call": "none"}, {"parallel_tool_calls": True}, {"parallel_tool_calls": False},
        {"modalities": ["text"]}, {"prompt_cache_key": "k"}, {"safety_identifier": "s"},
        {"stream": False}, {"stream_options": {"include_usage": True}}, {"echo": False}, {"best_of": 1},
        {"skip_special_tokens": True}, {"spaces_between_special_tokens": True}, {"length_penalty": 1},
        {"length_penalty": 1.0}, {"priority": 0}, {"use_beam_search": False}, {"include_stop_str_in_output": False},
        {"add_generation_prompt": True}, {"add_special_tokens": False}, {"continue_final_message": False},
        {"chat_template_kwargs": {}}, {"documents": []}, {"bad_words": []}, {"suffix": ""}, {"logit_bias": {}},
        {"include_reasoning": True}, {"thinking_token_budget": -1}, {"prediction": {"content": "x"}},
        {"instructions": ""}, {"max_output_tokens": None}, {"logit_bias": []},
        {"stop": []}, {"temperature": None, "frobnicate": None, "tools": None, "reasoning_effort": None},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_value_that_changes_nothing_is_accepted(body: dict[str, Any]) -> None:
    read = read_line(line(**body), 1)

    assert (JobItem("a", [Message("user", "Hi")], Sampling()), ()) == (read.item, read.ignored)


@pytest.mark.parametrize("name", ["max_tokens", "n", "seed", "top_k", "min_tokens", "prompt_logprobs"])
def test_a_whole_number_may_be_written_as_a_decimal(name: str) -> None:
    """JSON has one kind of number, and some languages write all of them so."""
    assert read_line(line(**{name: 3}), 1) == read_line(line(**{name: 3.0}), 1)


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": []}, {"annotations": []}, {"refusal": None, "audio": None, "function_call": None},
        {"reasoning_content": ""}, {"prefix": False}, {"id": "msg_1"},
        {"content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_value_in_a_message_that_changes_nothing_is_accepted(message: dict[str, Any]) -> None:
    read = read_line(said(**message), 1)

    assert ([Message("user", "Hi")], ()) == (read.item.prompt, read.ignored)


@pytest.mark.parametrize("ignore_unknown", [False, True])
@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        (line(url=TEXT, tools=[TOOL]), "body.tools", "must be [] or absent, got "),
        (line(url=TEXT, tool_choice="required"), "body.tool_choice", 'must be "none" or "auto" or absent, got "requ'),
        (line(functions=[{"name": "f"}]), "body.functions", "must be [] or absent, got "),
        (line(function_call={"name": "f"}), "body.function_call", 'must be "none" or "auto" or absent, got {"name": "'),
        (line(url=TEXT, reasoning_effort="high"), "body.reasoning_effort", "is not supported"),
        (line(url=TEXT, enable_thinking=True), "body.enable_thinking", "must be false or absent, got true"),
        (line(url=TEXT, reasoning={"effort": "low"}), "body.reasoning", "must be [] or {} or absent, got "),
        (line(reasoning={"max_tokens": 9}), "body.reasoning.max_tokens", "is not supported"),
        (line(reasoning="low"), "body.reasoning", 'must be an object, got "low"'),
        (line(url=TEXT, thinking={"type": "enabled"}), "body.thinking", "must be [] or {} or absent, got "),
        (line(url=TEXT, include_reasoning=False), "body.include_reasoning", "must be true or absent, got false"),
        (line(url=TEXT, chat_template_kwargs={"a": 1}), "body.chat_template_kwargs", "must be {} or absent"),
        (line(chat_template="{{ x }}"), "body.chat_template", "is not supported"),
        (line(modalities=["text", "audio"]), "body.modalities", 'must be ["text"] or absent, got ["text", "audio"]'),
        (line(skip_special_tokens=False), "body.skip_special_tokens", "must be true or absent, got false"),
        (line(length_penalty=2), "body.length_penalty", "must be 1 or absent, got 2"),
        (line(use_beam_search=True), "body.use_beam_search", "must be false or absent, got true"),
        (line(add_generation_prompt=False), "body.add_generation_prompt", "must be true or absent, got false"),
        (line(bad_words=["x"]), "body.bad_words", 'must be [] or absent, got ["x"]'),
        (line(url=TEXT, suffix="x"), "body.suffix", 'must be "" or absent, got "x"'),
        (line(url=TEXT, echo=True), "body.echo", "must be false or absent, got true"),
        (line(url=TEXT, add_special_tokens=False), "body.add_special_tokens", "must be true or absent, got false"),
        (line(instructions="Be brief."), "body.instructions", 'must be "" or absent, got "Be brief."'),
        (line(url=TEXT, instructions="Hi"), "body.instructions", 'must be "" or absent, got "Hi"'),
        (line(previous_response_id="resp_1"), "body.previous_response_id", 'must be "" or absent, got "resp_1"'),
        (line(conversation={"id": "c"}), "body.conversation", 'must be "" or absent, got {"id": "c"}'),
        (line(max_output_tokens=9), "body.max_output_tokens", "is not supported"),
        (line(url=TEXT, max_completion_tokens=9), "body.max_completion_tokens", "is not supported"),
        (line(url=TEXT, top_logprobs=2), "body.top_logprobs", "must be 0 or absent, got 2"),
        (said(function_call={"name": "f"}), "body.messages[0].function_call", "must be [] or {} or absent, got "),
        (said(prefix=True), "body.messages[0].prefix", "must be false or absent, got true"),
        (
            said(content=[{"type": "input_audio", "input_audio": {}}]),
            "body.messages[0].content[0]",
            "must be text or an image, got a ",
        ),
        (
            said(content=[{"type": "input_image", "file_id": "file-1"}]),
            "body.messages[0].content[0].file_id",
            "is not supported",
        ),
        (
            line(structured_outputs={"regex": "a", "whitespace_pattern": " "}),
            "body.structured_outputs.whitespace_pattern",
            "is not supported",
        ),
    ],
)
def test_what_changes_answers_is_refused_by_name_and_never_left_out(
    text: str, field: str, problem: str, ignore_unknown: bool
) -> None:
    with pytest.raises(BatchFileError) as caught:
        read_line(text, 1, ignore_unknown=ignore_unknown)

    assert field == caught.value.field
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (line(store=True), "body.store"),
        (line(service_tier="flex"), "body.service_tier"),
        (line(priority=3), "body.priority"),
        (line(stream=True), "body.stream"),
        (line(frobnicate=1), "body.frobnicate"),
        (said(content=[{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]),
         "body.messages[0].content[0].cache_control"),
    ],
)  # fmt: skip
def test_what_changes_no_answer_is_refused_and_left_out_on_request(text: str, field: str) -> None:
    with pytest.raises(BatchFileError) as caught:
        read_line(text, 1)
    read = read_line(text, 1, ignore_unknown=True)

    assert field == caught.value.field
    assert (JobItem("a", [Message("user", "Hi")], Sampling()), (field,)) == (read.item, read.ignored)


def test_a_session_and_a_message_to_continue_are_what_they_are_on_vllm() -> None:
    chat = read_line(line(session_id="s", continue_final_message=True, add_generation_prompt=False), 1).item

    assert ("s", True) == (chat.session_id, chat.continue_final_message)
    assert "s" == read_line(line(url=TEXT, session_id="s"), 1).item.session_id
    with pytest.raises(BatchFileError, match="add_generation_prompt: must be false or absent with continue_final"):
        read_line(line(continue_final_message=True, add_generation_prompt=True), 1)


@pytest.mark.parametrize("url", [CHAT, TEXT])
def test_every_default_of_vllms_server_is_accepted(url: str) -> None:
    """Some clients write every field of a request, also where it has its default."""
    module = "chat_completion" if url == CHAT else "completion"
    protocol = pytest.importorskip(f"vllm.entrypoints.openai.{module}.protocol")
    kind = protocol.ChatCompletionRequest if url == CHAT else protocol.CompletionRequest
    defaults = {
        name: field.default
        for name, field in kind.model_fields.items()
        if not field.is_required() and field.default_factory is None and name not in ("model", "prompt")
    }
    assert len(defaults) > 50

    read = read_line(line(url=url, **defaults), 1)

    assert "a" == read.item.custom_id
