"""Writer of results in the OpenAI batch output format, one object per line. Pure."""

from __future__ import annotations

import json
from typing import Any

from penstock.models import PositionLogprobs, TokenLogprob
from penstock.values.jobs import Job, JobResult
from penstock.values.results import Choice, Completion


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
            "body": _body(job, result, result.completion),
        }
    elif result.error is not None:
        fields["error"] = {"code": result.error.reason.lower(), "message": result.error.message}
    return fields


def _body(job: Job, result: JobResult, completion: Completion) -> dict[str, Any]:
    usage = completion.usage
    return {
        "id": f"{'chatcmpl' if result.chat else 'cmpl'}-{completion.request_id}",
        "object": "chat.completion" if result.chat else "text_completion",
        "created": int(result.ended_at),
        "model": job.model,
        "choices": [(_chat_choice if result.chat else _text_choice)(choice) for choice in completion.choices],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": {"content": [_position(position) for position in choice.logprobs], "refusal": None}
        if choice.logprobs
        else None,
        "finish_reason": choice.finish_reason.value,
    }


def _text_choice(choice: Choice) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs:
        logprobs = {
            "tokens": [_name(position.chosen) for position in choice.logprobs],
            "token_logprobs": [position.chosen.logprob for position in choice.logprobs],
            "top_logprobs": [{_name(token): token.logprob for token in p.top} for p in choice.logprobs],
        }
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason.value,
    }


def _position(position: PositionLogprobs) -> dict[str, Any]:
    top = [{"token": _name(token), "logprob": token.logprob, "bytes": None} for token in position.top]
    chosen = position.chosen
    return {"token": _name(chosen), "logprob": chosen.logprob, "bytes": None, "top_logprobs": top}


def _name(token: TokenLogprob) -> str:
    """Name a token by its id, as vLLM's server does on request. A client has no tokenizer that could give its text."""
    return f"token_id:{token.token_id}"
