"""Checks of a request that depend on its model: context, vocabulary, engines and adapters."""

from __future__ import annotations

from dataclasses import fields, replace

from cluster.errors import InvalidRequestError
from cluster.models import ModelInfo
from penstock.models import ModelTask, SamplingParams, ToolMode
from router.validation.lengths import no_room, prompt_too_long
from router.validation.values import ChatPrompt, CheckedRequest, ResumePoint, TokenPrompt
from router.validation.violations import Violations, shown

_SHOWN_ADAPTERS = 8
_DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}
_SEED_RANGE = 1 << 64
_LACKS = "is not supported by this model; its operator can set {} for the pool, sim.answer if its engine is simulated"


def resolve(checked: CheckedRequest, model: ModelInfo, prompt_tokens: int) -> tuple[SamplingParams, int]:
    """Return the parameters with max_tokens filled in, and the number of choices.

    Raises:
        InvalidRequestError: the prompt leaves no room in the context, an id is outside the vocabulary, the adapter is
            unknown, or the pool's engines lack a feature. The error names every problem.
    """
    found = Violations()
    params = _settle_lengths(found, checked, model, prompt_tokens)
    _check_vocabulary(found, checked, model.vocabulary_size, model.max_context_tokens)
    _check_capabilities(found, checked.sampling, model)
    _check_prompt_logprobs(found, checked, prompt_tokens)
    _check_chat(found, checked, model)
    check_adapter(found, "lora_adapter", checked.lora_adapter, model.lora_adapters)
    found.raise_any()
    return params, checked.n


def check_generates(model: ModelInfo | None) -> None:
    """Check that a model generates, where it is known.

    Raises:
        InvalidRequestError: it embeds or classifies.
    """
    if model is not None and model.task is not ModelTask.GENERATE:
        raise InvalidRequestError.of(
            "model", f"must have the task 'generate' for this call, and it has {model.task.value!r}"
        )


def check_received(resume: ResumePoint, max_tokens: int) -> None:
    """Check the number of tokens that a client says it has of each choice. Only the choice's replica knows whether a
    delta ended there.

    Raises:
        InvalidRequestError: the number is above max_tokens.
    """
    found = Violations()
    for index, tokens in enumerate(resume.received_tokens):
        if tokens > max_tokens:
            found.add(f"resume.received_tokens[{index}]", f"must be at most max_tokens = {max_tokens}, got {tokens}")
    found.raise_any()


def choice_sampling(params: SamplingParams, choice_index: int) -> SamplingParams:
    """Return the parameters of one choice: seed + index, wrapping around within signed 64 bits. The prompt is the same
    for all, so only the first one asks for its log probabilities.
    """
    if choice_index == 0:
        return params
    if params.prompt_logprobs is not None:
        params = replace(params, prompt_logprobs=None)
    if params.seed is None:
        return params
    seed = (params.seed + choice_index + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2
    return replace(params, seed=seed)


def _settle_lengths(found: Violations, checked: CheckedRequest, model: ModelInfo, prompt_tokens: int) -> SamplingParams:
    params = checked.sampling
    context = model.max_context_tokens
    left = context - prompt_tokens
    if prompt_tokens < 1:
        found.add("prompt", "must have at least 1 token, got 0")
        return params
    if left < 1:
        found.add("prompt", prompt_too_long(prompt_tokens, context - 1, context))
        return params
    if params.max_tokens > left:
        found.add("sampling.max_tokens", no_room(prompt_tokens, params.max_tokens, context))
    max_tokens = params.max_tokens or min(left, checked.max_tokens_limit or left)
    if params.min_tokens > max_tokens:
        found.add("sampling.min_tokens", f"must be at most max_tokens = {max_tokens}, got {params.min_tokens}")
    return params if params.max_tokens == max_tokens else replace(params, max_tokens=max_tokens)


def _check_vocabulary(found: Violations, checked: CheckedRequest, size: int, context: int) -> None:
    def check(field: str, token_id: int) -> None:
        if token_id >= size:
            found.add(field, f"must be below the vocabulary size {size}, got {token_id}")

    # A prompt may have a million ids. So look at them only where they fit the context, and one by one only when one is
    # wrong.
    ids = checked.prompt.ids if isinstance(checked.prompt, TokenPrompt) else ()
    if len(ids) < context and max(ids, default=0) >= size:
        for index, token_id in enumerate(ids):
            if found.full:
                break
            check(f"prompt.tokens.ids[{index}]", token_id)
    for index, token_id in enumerate(checked.sampling.stop_token_ids):
        check(f"sampling.stop_token_ids[{index}]", token_id)
    for token_id in sorted(checked.sampling.logit_bias):
        check(f"sampling.logit_bias[{token_id}]", token_id)
    if checked.sampling.top_k > size:
        found.add("sampling.top_k", f"must be at most the vocabulary size {size}, got {checked.sampling.top_k}")


def _check_capabilities(found: Violations, params: SamplingParams, model: ModelInfo) -> None:
    able = model.capabilities
    needs = (
        ("min_p", able.min_p),
        ("presence_penalty", able.penalties),
        ("frequency_penalty", able.penalties),
        ("repetition_penalty", able.penalties),
        ("seed", able.seed),
        ("logprobs", able.logprobs),
        ("prompt_logprobs", able.prompt_logprobs),
    )
    for name, supported in needs:
        if not supported and getattr(params, name) != _DEFAULTS[name]:
            found.add(f"sampling.{name}", f"is not supported by this model, got {shown(getattr(params, name))}")
    if params.logit_bias and not able.logit_bias:
        found.add("sampling.logit_bias", "is not supported by this model")
    if params.structured is not None and not able.structured_output:
        found.add("sampling.structured_output", _LACKS.format("vllm.structured_output.compiler"))
    for name, supported in (("logprobs", able.logprobs), ("prompt_logprobs", able.prompt_logprobs)):
        most, asked = able.max_logprobs, getattr(params, name)
        if supported and asked is not None and asked > most:
            found.add(f"sampling.{name}", f"must be at most {most} for this model, got {asked}")


def _check_prompt_logprobs(found: Violations, checked: CheckedRequest, prompt_tokens: int) -> None:
    alternatives, most = checked.sampling.prompt_logprobs, checked.max_prompt_logprobs
    if alternatives is not None and (count := prompt_tokens * (1 + alternatives)) > most:
        found.add(
            "sampling.prompt_logprobs",
            f"must be at most {most // prompt_tokens - 1} with {prompt_tokens} prompt tokens, got {alternatives}: "
            f"{count} log probabilities, of {most} that one request may ask for"
            if prompt_tokens <= most
            else f"must not be set with more than {most} prompt tokens, got {prompt_tokens}",
        )


def _check_chat(found: Violations, checked: CheckedRequest, model: ModelInfo) -> None:
    able = model.capabilities
    tools = isinstance(checked.prompt, ChatPrompt) and bool(checked.prompt.tools)
    if tools and not able.tools and checked.tool_choice.mode is not ToolMode.NONE:
        found.add("prompt.chat.tools", _LACKS.format("vllm.tool_call_parser"))
    if checked.reasoning_effort and not able.reasoning:
        found.add("reasoning.effort", _LACKS.format("vllm.reasoning_parser"))


def check_adapter(found: Violations, field: str, adapter: str, known: tuple[str, ...]) -> None:
    """Check that an adapter is one of the pool's."""
    if adapter and adapter not in known:
        names = ", ".join(map(shown, known[:_SHOWN_ADAPTERS])) or "none"
        more = ", ..." if len(known) > _SHOWN_ADAPTERS else ""
        found.add(field, f"must be one of the pool's adapters ({names}{more}), got {shown(adapter)}")
