"""The part that runs inside EngineCore: schedulers with live batch limits, and resume of constrained output.

EngineCore imports it through `scheduler_cls`. It is written for vLLM 0.32 and relies on:

- `Scheduler.schedule` reading `max_num_active_reqs` and `max_num_scheduled_tokens` on every call;
- `Scheduler.update_from_output(scheduler_output, ...)` calling `make_stats` once, for that step;
- `SchedulerOutput.total_num_scheduled_tokens`, and `num_computed_tokens` of its new and cached requests;
- `EngineCore` looking utilities up by name on itself and running them between steps;
- `StructuredOutputManager._create_grammar(request)` returning a grammar that has not accepted any token, and
  `.accept_tokens(request, tokens)` returning False for a request that must end with an error;
- `Request.stop_reason` reaching the frontend, which reads an error's reason there;
- the second model runner taking the tokens of a new request behind its `prompt_token_ids` as output, which is how it
  gets requests that vLLM preempted.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.structured_output import StructuredOutputManager

from deployments.engines.limits import clamp_sequences, clamp_tokens
from deployments.engines.vllm.plugin import register
from deployments.engines.vllm.sampling import CONSTRAINED_PRIOR_KEY, PRIOR_KEY
from deployments.engines.vllm.step_work import put_work

# VLLM_PLUGINS may leave our entry point out. This module is imported in any case.
register()


class LiveLimits:
    """Scheduler limits that can move between steps."""

    wanted_tokens: int | None = None
    """Requested budget. The sequences in the batch may force a larger one."""

    def set_batch_limits(self: Any, sequences: int | None, tokens: int | None) -> list[int]:
        """Move the limits that are not None. Return both limits now in force."""
        if sequences is not None:
            self.max_num_active_reqs = clamp_sequences(sequences, self.max_num_running_reqs)
        if tokens is not None:
            self.wanted_tokens = tokens
        if self.wanted_tokens is not None and self.scheduler_config.enable_chunked_prefill:
            self.max_num_scheduled_tokens = clamp_tokens(
                self.wanted_tokens,
                # Sequences above a lowered limit still need their token in every step.
                sequences=max(self.max_num_active_reqs, len(self.running)),
                tokens_per_sequence=1 + self.num_spec_tokens,
                largest=self.scheduler_config.max_num_batched_tokens,
            )
        return [self.max_num_active_reqs, self.max_num_scheduled_tokens]


class TellsWork:
    """Statistics of each step with its computed work. Sums over lists of numbers cost next to nothing per step."""

    _work: tuple[int, int] | None = None

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Remember the work of the step for `make_stats`."""
        tokens = scheduler_output.total_num_scheduled_tokens
        before = sum(scheduler_output.scheduled_cached_reqs.num_computed_tokens)
        before += sum(request.num_computed_tokens for request in scheduler_output.scheduled_new_reqs)
        self._work = tokens, before + tokens
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def make_stats(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the work to the statistics."""
        stats = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        work, self._work = self._work, None
        if stats is not None and work is not None:
            put_work(stats, *work)
        return stats


class HandsOutputOver:
    """Penalties over prior tokens for vLLM's second model runner: it is told that they are output.

    It gets the same data as for one of its own sequences after a preemption. For everything else in vLLM they stay the
    end of the prompt.
    """

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Move the border between prompt and output of the sequences that enter the batch."""
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self.use_v2_model_runner:
            for request in output.scheduled_new_reqs:
                _prior_as_output(request)
        return output


class LiveScheduler(LiveLimits, TellsWork, HandsOutputOver, Scheduler):
    """Scheduler of engines that schedule a step when the last one is done."""


class LiveAsyncScheduler(LiveLimits, TellsWork, HandsOutputOver, AsyncScheduler):
    """Scheduler of engines that schedule a step while the last one runs."""


def _prior_as_output(request: Any) -> None:
    params = request.sampling_params
    if params is None or not (params.presence_penalty or params.frequency_penalty):
        return
    if not (prior := len((params.extra_args or {}).get(PRIOR_KEY, ()))):
        return
    request.prompt_token_ids = request.prompt_token_ids[:-prior]
    # The scheduler has the same object, and its limits count from the end of the prior tokens.
    request.sampling_params = params = copy(params)
    params.max_tokens += prior
    if params.min_tokens:
        params.min_tokens += prior


def _set_batch_limits(self: Any, sequences: int | None, tokens: int | None) -> list[int]:
    result: list[int] = self.scheduler.set_batch_limits(sequences, tokens)
    return result


_create_fresh_grammar = StructuredOutputManager._create_grammar
_advance = StructuredOutputManager.accept_tokens


def _create_grammar(self: Any, request: Any) -> Any:
    grammar = _create_fresh_grammar(self, request)
    if error := _error_of(grammar):
        raise ValueError(error)
    extra = request.sampling_params.extra_args or {}
    prior = extra.get(CONSTRAINED_PRIOR_KEY, extra.get(PRIOR_KEY))
    if prior and not grammar.accept_tokens(request.request_id, list(prior)):
        raise ValueError("the grammar refuses the tokens that were delivered before")
    return grammar


def _accept_tokens(self: Any, request: Any, new_token_ids: list[int]) -> bool:
    """Advance the grammar.

    A grammar that failed would allow nothing but the end, and the output would look complete.
    """
    if not _advance(self, request, new_token_ids):
        request.stop_reason = "the grammar refused a token of the output"
        return False
    structured = request.structured_output_request
    if structured is not None and (error := _error_of(structured.grammar)):
        request.stop_reason = f"the constraint can't be followed: {error}"
        return False
    return True


def _error_of(grammar: Any) -> str:
    """Return why llguidance gave up on a grammar; empty where it did not, and for other compilers."""
    matcher = getattr(grammar, "ll_matcher", None)
    if matcher is None or not matcher.is_error():
        return ""
    # The text goes on with the whole state of the parser.
    return str(matcher.get_error()).partition("\n")[0] or "the matcher failed"


EngineCore.set_batch_limits = _set_batch_limits
StructuredOutputManager._create_grammar = _create_grammar
StructuredOutputManager.accept_tokens = _accept_tokens
