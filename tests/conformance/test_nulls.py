"""Null means that a field is absent, for every field; unknown fields are ignored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.target import ASK, CHAT, MARKS, TEXT, Target

pytestmark = MARKS

SHARED = (
    "frequency_penalty ignore_eos logit_bias logprobs max_tokens metadata min_p min_tokens n presence_penalty "
    "repetition_penalty response_format seed service_tier stop stop_token_ids stream stream_options temperature top_k "
    "top_p user"
)
OF_CHAT = (
    "audio chat_template_kwargs function_call functions max_completion_tokens modalities parallel_tool_calls "
    "prediction prompt_cache_key reasoning_effort safety_identifier store tool_choice tools top_logprobs "
    "verbosity web_search_options"
)
OF_TEXT = "best_of echo suffix"
OF_MESSAGES = "content name tool_calls tool_call_id reasoning reasoning_content refusal function_call audio"


@pytest.mark.parametrize("field", [*SHARED.split(), *OF_CHAT.split()])
async def test_a_field_of_a_conversation_may_be_null(target: Target, field: str) -> None:
    await target.ok(CHAT, {**target.chat(max_completion_tokens=4), field: None})


@pytest.mark.parametrize("field", [*SHARED.split(), *OF_TEXT.split()])
async def test_a_field_of_a_text_may_be_null(target: Target, field: str) -> None:
    await target.ok(TEXT, {**target.text(), field: None})


@pytest.mark.parametrize("field", OF_MESSAGES.split())
async def test_a_field_of_a_message_may_be_null(target: Target, field: str) -> None:
    said = {"role": "assistant", "content": "Yes.", field: None}
    if field == "content":
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
        await target.ok(CHAT, target.chat(messages=[*ASK, {**said, "tool_calls": [call]}, result]))
    else:
        await target.ok(CHAT, target.chat(messages=[*ASK, said, *ASK]))


@pytest.mark.parametrize("nothing", [{"content": ""}, {"content": None}, {}], ids=["empty", "null", "absent"])
async def test_a_tool_may_return_nothing(target: Target, nothing: dict[str, Any]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1", **nothing}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    await target.ok(CHAT, target.chat(messages=[*ASK, said, result]))


@pytest.mark.parametrize(
    "field", ["user", "safety_identifier", "prompt_cache_key", "metadata", "store", "vendor_field"]
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_field_that_changes_nothing_is_ignored(target: Target, path: str, field: str) -> None:
    value = {"metadata": {"a": "b"}, "store": False}.get(field, "x")
    await target.ok(path, {**(target.chat() if path == CHAT else target.text()), field: value})
