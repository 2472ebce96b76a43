"""Writer of results in the OpenAI batch output format, one object per line. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from penstock.batch.embeddings import embeddings_object
from penstock.batch.logprobs import TextLogprobs, chat_logprobs, prompt_logprobs
from penstock.models import ToolCall, Unenforced
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
    elif result.embeddings is not None:
        fields["response"] = {
            "status_code": 200,
            "request_id": result.embeddings.request_id,
            "body": embeddings_object(result.embeddings, model=job.model, created=int(result.ended_at)),
        }
    elif result.error is not None:
        fields["error"] = {"code": result.error.reason.lower(), "message": result.error.message}
    return fields


def completion_object(
    completion: Completion, *, model: str, created: int, chat: bool, tokens_as_ids: bool = False
) -> dict[str, Any]:
    """Return a whole answer as OpenAI's server gives it.

    Args:
        completion: the answer.
        model: as the caller wrote it.
        created: seconds since 1970.
        chat: whether the prompt was a conversation.
        tokens_as_ids: whether the log probabilities of a chat name tokens by their ids.
    """
    found: dict[str, Any] = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{completion.request_id}",
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [
            _chat_choice(choice, as_ids=tokens_as_ids) if chat else _text_choice(choice)
            for choice in completion.choices
        ],
        "usage": usage_object(completion.usage),
    }
    found |= unenforced_fields(completion.unenforced)
    if completion.prompt_logprobs:
        # vLLM's server has them in an answer of a chat, and in each choice of a completion.
        for place in [found] if chat else found["choices"]:
            place["prompt_logprobs"] = prompt_logprobs(completion.prompt_logprobs)
    return found


def unenforced_fields(unenforced: Iterable[Unenforced]) -> dict[str, Any]:
    """Return the field of an answer that names what of its schema was not enforced; no field where all of it was."""
    found = [asdict(each) for each in unenforced]
    return {"unenforced": found} if found else {}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the counts of tokens. Those from a cache are part of the prompt's, which count once for all choices."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": min(usage.cached_tokens, usage.prompt_tokens)},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _chat_choice(choice: Choice, *, as_ids: bool) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": message_object(choice),
        "logprobs": chat_logprobs(choice.logprobs, as_ids=as_ids),
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
        "logprobs": TextLogprobs().lists(choice.logprobs) if choice.logprobs else None,
        "finish_reason": choice.finish_reason.value,
    }
