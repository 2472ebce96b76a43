"""Writer of results in the OpenAI batch output format, one object per line. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock.models import PositionLogprobs, TokenLogprob, ToolCall
from penstock.values.jobs import Job, JobResult
from penstock.values.results import Choice, Completion, Usage


def result_line(job: Job, result: JobResult) -> str:
    """Return one result as a line, without its line end."""
    return json.dumps(result_object(job, result), ensure_ascii=False)


def result_object(job: Job, result: JobResult) -> dict[str, Any]:
    """Return the object of a result. A failed item has no response, and its reason is the error's code."""
    fields: dict[str, Any] = {
        "id": f"batch_req_{job.job_id}_{result.index}",
        "custom_id": result.custom_id,
        "response": None,
        "error": None,
    }
    if result.completion is not None:
        fields["response"] = {
            "status_code": 200,
            "request_id": result.completion.request_id,
            "body": completion_object(
                result.completion, model=job.model, created=int(result.ended_at), chat=result.chat
            ),
        }
    elif result.error is not None:
        fields["error"] = {"code": result.error.reason.lower(), "message": result.error.message}
    return fields


def completion_object(completion: Completion, *, model: str, created: int, chat: bool) -> dict[str, Any]:
    """Return a whole answer as OpenAI's server gives it. `created` is in seconds since 1970."""
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{completion.request_id}",
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [(_chat_choice if chat else _text_choice)(choice) for choice in completion.choices],
        "usage": usage_object(completion.usage),
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": message_object(choice),
        "logprobs": chat_logprobs(choice.logprobs),
        "finish_reason": choice.finish_reason.value,
    }


def message_object(choice: Choice) -> dict[str, Any]:
    """Return the message of an answer. The reasoning has two names, because clients look for either."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.tool_calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [call_object(call) for call in choice.tool_calls]
    if choice.reasoning:
        message |= {"reasoning": choice.reasoning, "reasoning_content": choice.reasoning}
    return message


def call_object(call: ToolCall) -> dict[str, Any]:
    """Return a tool call."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _text_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": text_logprobs(choice.logprobs),
        "finish_reason": choice.finish_reason.value,
    }


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any] | None:
    """Return log probabilities in the form of a chat; None where there are none."""
    return {"content": [_position(position) for position in positions], "refusal": None} if positions else None


def text_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any] | None:
    """Return log probabilities in the form of a completion; None where there are none."""
    if not positions:
        return None
    return {
        "tokens": [_name(position.chosen) for position in positions],
        "token_logprobs": [position.chosen.logprob for position in positions],
        "top_logprobs": [{_name(token): token.logprob for token in position.top} for position in positions],
    }


def _position(position: PositionLogprobs) -> dict[str, Any]:
    top = [{"token": _name(token), "logprob": token.logprob, "bytes": None} for token in position.top]
    chosen = position.chosen
    return {"token": _name(chosen), "logprob": chosen.logprob, "bytes": None, "top_logprobs": top}


def _name(token: TokenLogprob) -> str:
    """Name a token by its id, as vLLM's server does on request. A client has no tokenizer that could give its text."""
    return f"token_id:{token.token_id}"
