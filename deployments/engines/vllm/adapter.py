"""Everything on the frontend side that relies on vLLM's internals. Written for vLLM 0.32.

vLLM's public way out of the engine, `AsyncLLM.generate`, builds two objects per token and wakes a task for them. Here
each token calls our sink directly from vLLM's output task. What that relies on:

- `AsyncLLM(...)`: inside a running loop it creates its output task at once, which has not run yet when the constructor
  returns; `_run_output_handler()` creates another one, with the `log_stats` and `logger_manager` of that moment.
- `AsyncLLM.input_processor.process_inputs` and `.assign_request_id`: checks and the unique internal id.
- `AsyncLLM.output_processor.add_request(request, prompt, parent, index, queue)`: makes a `RequestState` in
  `request_states[request_id]`.
- `IncrementalDetokenizer.update(ids, stopped)`: returns the stop string that these ids complete, or None.
- `OutputProcessor.process_outputs`: per output calls `_update_stats_from_output`, then the state's
  `detokenizer.update` and `logprobs_processor.update_from_output`, then `make_request_output`, and does nothing more
  when that returns None. Nothing else in the output task looks at a running request.
- `OutputProcessor.propagate_error`: called once, when the output task dies with the engine.
- `OutputProcessor.abort_requests(ids, internal=True)`: forgets states and returns the ids to send to the engine.
- `engine_core.add_request_async`, `.abort_requests_async`, `.call_utility_async`: utilities run between steps, and
  after all aborts that were sent before. `engine_core.utility_results` holds the futures of calls under way.
- SchedulerStats come once per step although the frontend's `log_stats` is off, as the engine process has its own.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from vllm.inputs.engine import tokens_input
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.stats import SchedulerStats

from cluster.errors import EngineRequestError, EngineStartError
from deployments.engines.vllm.logprobs import to_positions
from deployments.engines.vllm.sequence import VllmSequence

__all__ = ["Frontend", "FrontendEvents", "SchedulerStats", "UsageContext"]

_EXPECTED_PARAMETERS: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (OutputProcessor.add_request, ("self", "request", "prompt", "parent_req", "request_index", "queue")),
    (
        OutputProcessor._update_stats_from_output,
        ("self", "req_state", "engine_core_output", "engine_core_timestamp", "iteration_stats"),
    ),
    (OutputProcessor.abort_requests, ("self", "request_ids", "internal")),
    (OutputProcessor.propagate_error, ("self", "e")),
    (
        RequestState.make_request_output,
        (
            "self",
            "new_token_ids",
            "pooling_output",
            "finish_reason",
            "stop_reason",
            "kv_transfer_params",
            "ec_transfer_params",
            "error",
        ),
    ),
    (AsyncMPClient.add_request_async, ("self", "request")),
    (AsyncMPClient.abort_requests_async, ("self", "request_ids")),
    (AsyncMPClient.call_utility_async, ("self", "method", "args")),
    (AsyncLLM._run_output_handler, ("self",)),
)


class FrontendEvents(Protocol):
    """Hears what happens outside of single tokens."""

    def on_step(self, stats: SchedulerStats | None, ended_at: float) -> None:
        """Learn that an engine step's outputs have all been delivered.

        Args:
            stats: None for messages outside of steps.
            ended_at: seconds of the monotonic clock.
        """
        ...

    def on_death(self, error: Exception) -> None:
        """Learn that the engine is dead; called once."""
        ...


class Frontend:
    """Wraps an AsyncLLM with our output path."""

    def __init__(self, config: Any, events: FrontendEvents) -> None:
        """Start the engine processes; blocks the running loop until they are ready."""
        check_internals()
        self._events = events
        self._step_ended_at: float | None = None
        self.llm = AsyncLLM.from_vllm_config(
            config,
            usage_context=UsageContext.API_SERVER,
            # A stat logger of ours makes the engine process keep statistics; vLLM's own loggers stay out.
            stat_loggers=[lambda _config, _index: _NoLogger()],
            disable_log_stats=True,
        )
        unregister_vllm_metrics()
        self._replace_output_handler()
        self._replace_hooks()
        self._tasks: tuple[str, ...] = ("generate",)

    async def add(
        self,
        sequence: VllmSequence,
        prompt: list[int],
        prior: Sequence[int],
        params: Any,
        *,
        lora: Any,
        cache_salt: str | None,
        delivered_characters: int,
    ) -> str | None:
        """Check a request, register it and send it to the engine.

        Returns None; or, where `prior` is complete and only the news of its end was lost, what ended it: the stop
        string, "" for a token. Nothing is left of the request then.

        Args:
            sequence: takes the output.
            prompt: token ids.
            prior: ids that the sequence produced elsewhere; they follow the prompt.
            params: vLLM's SamplingParams.
            lora: vLLM's LoRARequest or None.
            cache_salt: isolates the prefix cache.
            delivered_characters: text of `prior` that must not be sent again.

        Raises:
            EngineRequestError: vLLM refuses the request.
        """
        llm = self.llm
        try:
            request = llm.input_processor.process_inputs(
                sequence.sequence_id,
                tokens_input([*prompt, *prior], cache_salt=cache_salt),
                params,
                supported_tasks=self._tasks,
                lora_request=lora,
            )
        except Exception as error:
            # It looks at nothing but the request; the libraries behind it raise all kinds of exceptions.
            raise EngineRequestError(str(error)) from error
        llm.input_processor.assign_request_id(request)
        llm.output_processor.add_request(request, None, None, 0, sequence)
        state = llm.output_processor.request_states[request.request_id]
        if prior:
            state.detokenizer, match = self._detokenizer_after(request, prompt, prior, delivered_characters, sequence)
            if match is not None:
                self.forget([request.request_id])
                return match
        if params.logprobs is not None:
            state.logprobs_processor = _LogprobsTap(sequence)
        sequence.internal_id = request.request_id
        sequence.next_text = state.detokenizer.get_next_output_text
        state.make_request_output = sequence.take
        await llm.engine_core.add_request_async(request)
        return None

    def forget(self, internal_ids: Sequence[str]) -> None:
        """Deliver nothing more for these requests."""
        self.llm.output_processor.abort_requests(internal_ids, internal=True)

    async def stop(self, internal_ids: Sequence[str]) -> None:
        """Tell the engine to drop requests; returns when the message is sent."""
        await self.llm.engine_core.abort_requests_async(list(internal_ids))

    async def between_steps(self) -> None:
        """Return when the step that runs now is over and all messages sent before are handled."""
        await self.llm.engine_core.call_utility_async("is_scheduler_paused")

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        """Move the scheduler's live limits; raises Exception when the hook is not there."""
        in_force = await self.llm.engine_core.call_utility_async("set_batch_limits", sequences, tokens)
        return int(in_force[0]), int(in_force[1])

    async def check_health(self) -> None:
        """Raise vLLM's EngineDeadError when the engine is dead."""
        await self.llm.check_health()

    def engine_pids(self) -> list[int]:
        """List the engine processes that this process started."""
        manager = self.llm.engine_core.resources.engine_manager
        return [process.pid for process in manager.processes if process.pid] if manager else []

    def silence(self) -> None:
        """Deliver nothing more, not even the end of the engine."""
        if self.llm.output_handler is not None:
            self.llm.output_handler.cancel()

    def close(self) -> None:
        """Stop the engine processes; blocks until they are gone."""
        self.llm.shutdown(timeout=10)

    def _replace_output_handler(self) -> None:
        llm = self.llm
        if llm.output_handler is not None:
            llm.output_handler.cancel()
            llm.output_handler = None
        llm.log_stats = False
        llm.output_processor.log_stats = False
        llm.logger_manager = self
        llm._run_output_handler()

    def _replace_hooks(self) -> None:
        processor = self.llm.output_processor
        processor._update_stats_from_output = self._observe
        client = self.llm.engine_core

        def propagate_error(error: Exception) -> None:
            for call in list(client.utility_results.values()):
                if not call.done():
                    call.set_exception(error)
            self._events.on_death(error)

        processor.propagate_error = propagate_error

    def _detokenizer_after(
        self, request: Any, prompt: list[int], prior: Sequence[int], delivered: int, sequence: VllmSequence
    ) -> tuple[Any, str | None]:
        """Build the detokenizer as it was after `prior`, so that split characters and stop strings go on; and say what
        ended the output if it had ended there.
        """
        original = msgspec.structs.replace(request, prompt_token_ids=prompt)
        detokenizer = IncrementalDetokenizer.from_new_request(self.llm.output_processor.tokenizer, original)
        # It counts prior tokens as output, so the bound must not be the rest.
        detokenizer.min_tokens = sequence.sampling.min_tokens
        match = None
        for token in prior:
            if (match := detokenizer.update([token], False)) is not None:
                break
        detokenizer._last_output_text_offset = delivered
        params = request.sampling_params
        ends = {params.eos_token_id, *(params.stop_token_ids or ())}
        if prior[-1] in ends and len(prior) > sequence.sampling.min_tokens:
            match = ""
        return detokenizer, match

    def record(self, *, scheduler_stats: SchedulerStats | None, **_others: Any) -> None:
        """Stand in for StatLoggerManager.record, called once per message from the engine, after its outputs."""
        # A step without output, of a long prefill, has no time of its own.
        ended_at, self._step_ended_at = self._step_ended_at or time.monotonic(), None
        self._events.on_step(scheduler_stats, ended_at)

    def _observe(self, state: Any, output: Any, timestamp: float | None, _iteration_stats: Any) -> None:
        """Stand in for OutputProcessor._update_stats_from_output; runs per token, so it looks at next to nothing."""
        sequence: VllmSequence = state.queue
        # The engine process's monotonic clock is the machine's.
        self._step_ended_at = timestamp
        sequence.last_output_at = timestamp or 0.0
        sequence.left_engine = output.finish_reason is not None
        if output.events is not None:
            for event in output.events:
                if event.type == EngineCoreEventType.SCHEDULED:
                    sequence.scheduled(event.timestamp)
                elif event.type == EngineCoreEventType.PREEMPTED:
                    sequence.preemptions += 1
        if output.prefill_stats is not None and state.is_prefilling:
            sequence.cached_tokens = output.prefill_stats.num_cached_tokens


def check_internals() -> None:
    """Compare the internals that we call or replace with what they were in vLLM 0.32.

    Raises:
        EngineStartError: one has other parameters.
    """
    for function, expected in _EXPECTED_PARAMETERS:
        found = tuple(inspect.signature(function).parameters)
        if found != expected:
            raise EngineStartError(
                f"this vLLM does not fit: {function.__qualname__} takes {', '.join(found)}, not {', '.join(expected)}"
            )


class _LogprobsTap:
    """Stands in for vLLM's LogprobsProcessor, which would also decode every alternative to text."""

    def __init__(self, sequence: VllmSequence) -> None:
        self._sequence = sequence

    def update_from_output(self, output: Any) -> None:
        if output.new_logprobs is not None:
            lists = output.new_logprobs
            self._sequence.logprobs = to_positions(lists.logprob_token_ids, lists.logprobs)


class _NoLogger:
    """Is a StatLoggerBase that is replaced before anything is recorded."""

    def record(self, *_values: Any, **_named: Any) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass

    def log(self) -> None:
        pass

    def record_sleep_state(self, *_values: Any) -> None:
        pass
