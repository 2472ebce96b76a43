"""Cheap checks of a request on arrival: no tokenizer, no model, no I/O.

Every function collects all violations before it raises InvalidRequestError. Field paths start at the GenerateRequest,
even where it is part of a stream's request, so that clients of both calls read the same paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from penstock.models import ToolChoice, ToolMode
from penstock.v1 import inference_pb2, types_pb2
from penstock.wire import clear_defaults, sampling_from_wire
from router.validation.chat import MAX_EFFORT_BYTES, check_chat, check_tool_choice
from router.validation.fields import (
    MAX_ADAPTER_BYTES,
    MAX_MODEL_BYTES,
    check_class,
    check_duration,
    check_queue_timeout,
)
from router.validation.sampling import check_sampling
from router.validation.values import (
    CancelTarget,
    ChatPrompt,
    CheckedCount,
    CheckedRequest,
    CheckedStream,
    Prompt,
    RequestLimits,
    ResumePoint,
    TextPrompt,
    TokenPrompt,
)
from router.validation.violations import Violations

MAX_KEY_BYTES = 128
MAX_REQUEST_ID_BYTES = 128
MAX_SESSION_BYTES = 128
MAX_DETOKENIZED = 1 << 20
MAX_FLUSH_INTERVAL_S = 10.0
MAX_RESUME_TOKEN_BYTES = 4_096


def check_request(request: inference_pb2.GenerateRequest, limits: RequestLimits) -> CheckedRequest:
    """Check a generation and convert it to plain values.

    Raises:
        InvalidRequestError: names every wrong field with its limit and the value sent.
    """
    found = Violations()
    checked = _check_generate(found, request, limits)
    found.raise_any()
    return checked


def check_stream(request: inference_pb2.StreamGenerateRequest, limits: RequestLimits) -> CheckedStream:
    """Check a streamed generation and convert it to plain values.

    Raises:
        InvalidRequestError: names every wrong field with its limit and the value sent.
    """
    found = Violations()
    if not request.HasField("generate"):
        found.add("generate", "is required")
        found.raise_any()
    generate = _check_generate(found, request.generate, limits)
    flush_interval_s = None
    if request.HasField("flush_interval"):
        flush_interval_s = check_duration(found, "flush_interval", request.flush_interval)
        found.number("flush_interval", flush_interval_s, 0, MAX_FLUSH_INTERVAL_S, unit="s")
    resume = None
    if request.HasField("resume"):
        # An idempotency key identifies the request as well as a resume token does.
        least = 0 if generate.idempotency_key else 1
        found.count("resume.resume_token", len(request.resume.resume_token), least, MAX_RESUME_TOKEN_BYTES, "bytes")
        if found.count("resume.received_tokens", len(request.resume.received_tokens), 0, generate.n):
            resume = ResumePoint(request.resume.resume_token, tuple(request.resume.received_tokens))
    found.raise_any()
    return CheckedStream(generate, flush_interval_s, resume)


def check_count(request: inference_pb2.CountTokensRequest, limits: RequestLimits) -> CheckedCount:
    """Check a token count and convert it to plain values.

    Raises:
        InvalidRequestError: names every wrong field with its limit and the value sent.
    """
    found = Violations()
    found.size("model", request.model, 1, MAX_MODEL_BYTES)
    prompt, _ = _check_asked(found, request, limits)
    if request.HasField("add_special_tokens"):
        if isinstance(prompt, TokenPrompt):
            found.add("add_special_tokens", "must not be set with token ids, which are used as they are")
        else:
            prompt = replace(prompt, special=request.add_special_tokens)
    if request.HasField("add_generation_prompt"):
        begins = request.add_generation_prompt
        if not isinstance(prompt, ChatPrompt):
            found.add("add_generation_prompt", "must be unset without a conversation")
        elif begins and prompt.continue_final:
            found.add("add_generation_prompt", "must not be true with prompt.chat.continue_final_message")
        else:
            prompt = replace(prompt, begins_answer=begins)
    found.raise_any()
    return CheckedCount(request.model, prompt, request.names)


def check_detokenize(request: inference_pb2.DetokenizeRequest) -> tuple[str, Sequence[int]]:
    """Return the model's name and the tokens whose text is asked for.

    Raises:
        InvalidRequestError: the name is missing or too long, or there are too many tokens.
    """
    found = Violations()
    found.size("model", request.model, 1, MAX_MODEL_BYTES)
    found.count("token_ids", len(request.token_ids), 0, MAX_DETOKENIZED)
    found.raise_any()
    return request.model, request.token_ids


def check_get_model(request: inference_pb2.GetModelRequest) -> str:
    """Return the name of the model asked for.

    Raises:
        InvalidRequestError: the name is missing or too long.
    """
    found = Violations()
    found.size("model", request.model, 1, MAX_MODEL_BYTES)
    found.raise_any()
    return request.model


def check_cancel(request: inference_pb2.CancelRequest) -> CancelTarget:
    """Return the request to cancel.

    Raises:
        InvalidRequestError: the target is missing, or no request can have it.
    """
    found = Violations()
    match request.WhichOneof("target"):
        case "request_id":
            found.size("request_id", request.request_id, 1, MAX_REQUEST_ID_BYTES)
        case "idempotency_key" if request.idempotency_key:
            _check_key(found, request.idempotency_key)
        case _:
            found.add("target", "must be one of request_id, idempotency_key")
    found.raise_any()
    return CancelTarget(request.request_id, request.idempotency_key)


def _check_generate(found: Violations, request: inference_pb2.GenerateRequest, limits: RequestLimits) -> CheckedRequest:
    found.size("model", request.model, 1, MAX_MODEL_BYTES)
    prompt, choice = _check_asked(found, request, limits)
    check_sampling(found, "sampling", request.sampling, limits.each)
    queue_timeout_s = None
    if request.HasField("queue_timeout"):
        queue_timeout_s = check_queue_timeout(found, "queue_timeout", request.queue_timeout)
    if request.idempotency_key:
        _check_key(found, request.idempotency_key)
    found.size("lora_adapter", request.lora_adapter, 0, MAX_ADAPTER_BYTES)
    found.size("session_id", request.session_id, 0, MAX_SESSION_BYTES)
    if choice.mode is ToolMode.REQUIRED and request.sampling.HasField("structured_output"):
        found.add("sampling.structured_output", "must not be set with tool_choice REQUIRED, which is a constraint too")
    if (
        request.sampling.structured_output.WhichOneof("constraint") == "structural_tag"
        and request.prompt.chat.tools
        and choice.mode is not ToolMode.NONE
    ):
        found.add(
            "sampling.structured_output.structural_tag",
            "must not be set with tools that the model may call (tool_choice NONE only shows them)",
        )
    return CheckedRequest(
        model=request.model,
        prompt=prompt,
        sampling=sampling_from_wire(request.sampling, max_tokens=0),
        n=request.sampling.n if request.sampling.HasField("n") else 1,
        request_class=check_class(found, "request_class", request.request_class),
        queue_timeout_s=queue_timeout_s,
        idempotency_key=request.idempotency_key,
        lora_adapter=request.lora_adapter,
        session_id=request.session_id,
        digest=_digest(request) if request.idempotency_key else "",
        max_tokens_limit=limits.each.max_tokens,
        max_prompt_logprobs=limits.each.max_prompt_logprobs,
        tool_choice=choice,
        tool_names=tuple(tool.name for tool in request.prompt.chat.tools),
        parallel_tool_calls=not request.HasField("parallel_tool_calls") or request.parallel_tool_calls,
        include_reasoning=not request.reasoning.HasField("include") or request.reasoning.include,
        reasoning_effort=request.reasoning.effort,
    )


def _digest(request: inference_pb2.GenerateRequest) -> str:
    """Return a digest of the request as it came and, after a slash, one without fields that equal their defaults.

    The queue timeout does not count. Both digests are sent, because routers of an earlier version know only the first.
    """
    asked = inference_pb2.GenerateRequest()
    asked.CopyFrom(request)
    asked.ClearField("queue_timeout")
    exact = _hash(asked)
    if asked.request_class == types_pb2.REQUEST_CLASS_STANDARD:
        asked.ClearField("request_class")
    clear_defaults(asked.sampling)
    _clear_chat_defaults(asked)
    for name in ("sampling", "tool_choice", "reasoning"):
        if not getattr(asked, name).ByteSize():
            asked.ClearField(name)
    plain = _hash(asked)
    return exact if exact == plain else f"{exact}/{plain}"


def _clear_chat_defaults(asked: inference_pb2.GenerateRequest) -> None:
    if asked.tool_choice.mode == types_pb2.TOOL_CHOICE_MODE_AUTO:
        asked.tool_choice.ClearField("mode")
    if asked.parallel_tool_calls:
        asked.ClearField("parallel_tool_calls")
    if asked.reasoning.include:
        asked.reasoning.ClearField("include")


def _hash(message: inference_pb2.GenerateRequest) -> str:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:32]


def _check_asked(
    found: Violations,
    request: inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest,
    limits: RequestLimits,
) -> tuple[Prompt, ToolChoice]:
    """Check a prompt together with what decides how it is rendered."""
    choice = check_tool_choice(
        found, "tool_choice", request.tool_choice, (tool.name for tool in request.prompt.chat.tools)
    )
    effort = request.reasoning.effort
    found.size("reasoning.effort", effort, 0, MAX_EFFORT_BYTES)
    if request.prompt.WhichOneof("kind") == "chat":
        chat = request.prompt.chat
        return check_chat(found, "prompt.chat", chat, limits, choice=choice, effort=effort), choice
    if request.prompt.WhichOneof("kind") is not None:
        without = request.reasoning.HasField("include") and not request.reasoning.include
        for name, set_ in (("effort", effort), ("include", without)):
            if set_:
                found.add(f"reasoning.{name}", "is for conversations only")
    return _check_plain(found, "prompt", request.prompt, limits), choice


def _check_plain(found: Violations, field: str, wire: types_pb2.Prompt, limits: RequestLimits) -> Prompt:
    match wire.WhichOneof("kind"):
        case "text":
            found.size(f"{field}.text", wire.text, 0, limits.max_prompt_bytes)
            return TextPrompt(wire.text)
        case "tokens":
            if not wire.tokens.ids:
                found.add(f"{field}.tokens.ids", "must have at least 1 entry, got 0")
            return TokenPrompt(tuple(wire.tokens.ids))
        case _:
            found.add(field, "is required: one of text, chat, tokens")
            return TextPrompt("")


def _check_key(found: Violations, key: str) -> None:
    if found.size("idempotency_key", key, 1, MAX_KEY_BYTES) and not (key.isascii() and key.isprintable()):
        found.add("idempotency_key", "must be printable ASCII")
