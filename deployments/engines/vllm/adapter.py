"""The part of the frontend that relies on vLLM's internals. Written for vLLM 0.32.

`AsyncLLM.generate`, vLLM's public way to read output, builds two objects per token and wakes a task for them. Here each
token goes from the socket to our sink in one turn of the loop (`pump.py`). `internals/used.py` lists every name that we
use. This relies on what they do:

- `AsyncLLM(...)`: inside a running loop it creates its output task at once, and its client creates the task that reads
  the socket. Neither task has run yet when the constructor returns. Without an output task it counts as running.
- `AsyncMPClient.resources`: `output_socket`; `output_queue_task`, which is created anew where it is None and cancelled
  when the sockets close, also by the thread that sees the engine process die; `engine_dead`; `validate_alive`.
- `AsyncMPClient.decoder` turns frames into EngineCoreOutputs; `._format_exception` names a dead engine as the cause.
- `AsyncLLM.input_processor.process_inputs` and `.assign_request_id`: checks and the unique internal id;
  `SamplingParams.verify` is the part of the checks that needs no prompt.
- `IncrementalDetokenizer.update(ids, stopped)`: returns the stop string that these ids complete, or None;
  `FastIncrementalDetokenizer.decode_next(id)` is the part of it without stop strings.
- `engine_core.add_request_async` has sent the request when it returns, and returns in the turn of the loop in which it
  is awaited: the socket's high-water mark is 0, no limit.
- `engine_core.abort_requests_async`, `.call_utility_async`: utilities run between steps, and after all aborts that were
  sent before. `engine_core.utility_results` holds the futures of calls under way.
- `EngineCoreOutput.pooling_output` is the vector of a pooling model as a tensor, in the output that ends its request.
- EngineCoreOutput.new_prompt_logprobs_tensors comes once, whole, with the first token, however many steps the prefill
  took.
- SchedulerStats come once per step although the frontend's `log_stats` is off, as the engine process has its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer
from transformers import TokenizersBackend
from vllm.inputs.engine import tokens_input
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.stats import SchedulerStats

from cluster.errors import EngineRequestError
from deployments.engines.vllm.compilers.check import told
from deployments.engines.vllm.images.reader import ImageContent
from deployments.engines.vllm.internals.check import check_internals
from deployments.engines.vllm.parsing.sequence import ParsedSequence
from deployments.engines.vllm.pump import OutputPump
from deployments.engines.vllm.sequence import VllmSequence
from deployments.engines.vllm.text import ByteTexts, Decode, PlainText, StoppableText, Text, detokenizer_of
from penstock.models import StructuredOutput

_LOG = logging.getLogger(__name__)

__all__ = ["Frontend", "FrontendEvents", "SchedulerStats", "UsageContext"]


class FrontendEvents(Protocol):
    """Receiver of the frontend's events apart from single tokens."""

    def on_step(self, stats: SchedulerStats | None, ended_at: float) -> None:
        """Handle the end of an engine step whose outputs have all been delivered.

        Args:
            stats: None for messages outside of steps.
            ended_at: seconds of the monotonic clock.
        """
        ...

    def on_death(self, error: Exception) -> None:
        """Handle the death of the engine. Called once."""
        ...


class Frontend:
    """AsyncLLM with our own output path."""

    def __init__(self, config: Any, events: FrontendEvents) -> None:
        """Start the engine processes. Blocks the running loop until they are ready."""
        check_internals()
        self._events = events
        self._sequences: dict[str, VllmSequence] = {}
        """Sequence that takes the output of a request, by vLLM's id of the request."""
        self.llm = AsyncLLM.from_vllm_config(
            config,
            usage_context=UsageContext.API_SERVER,
            # With a stat logger of ours the engine process keeps statistics. vLLM's own loggers stay out.
            stat_loggers=[lambda _config, _index: _NoLogger()],
            disable_log_stats=True,
        )
        unregister_vllm_metrics()
        if self.llm.output_handler is not None:
            self.llm.output_handler.cancel()
            self.llm.output_handler = None
        self._pump = OutputPump(self.llm.engine_core, self._deliver, events.on_death)
        self._tasks: tuple[str, ...] = ("generate",)
        self.reasons = False
        """Whether the pool's settings name a reasoning parser."""

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
        parsed: ParsedSequence | None = None,
        images: ImageContent | None = None,
    ) -> str | None:
        """Check a request, register it and send it to the engine.

        The usual result is None. If `prior` is already complete and only the news of its end was lost, the request is
        removed, and the result is the cause of the end: the stop string, the id of a stop token, or "" for the model's
        own end.

        Args:
            sequence: receiver of the output.
            prompt: token ids.
            prior: ids that the sequence produced elsewhere; they follow the prompt.
            params: vLLM's SamplingParams or PoolingParams.
            lora: vLLM's LoRARequest or None.
            cache_salt: isolates the prefix cache.
            delivered_characters: length of the text of `prior` that must not be sent again.
            parsed: how the output is parsed; None for output that is only text.
            images: what is at some places of the prompt.

        Raises:
            EngineRequestError: vLLM refuses the request.
        """
        llm, ids = self.llm, [*prompt, *prior]
        try:
            request = llm.input_processor.process_inputs(
                sequence.sequence_id,
                images.prompt(ids, cache_salt) if images else tokens_input(ids, cache_salt=cache_salt),
                params,
                supported_tasks=self._tasks,
                lora_request=lora,
            )
        except Exception as error:
            # The call only looks at the request. The libraries behind it raise exceptions of many kinds.
            raise EngineRequestError(told(error, sequence.sampling.structured)) from error
        llm.input_processor.assign_request_id(request)
        if parsed is not None:
            request.reasoning_ended = parsed.reasoning_ended
            request.reasoning_parser_kwargs = parsed.reasoning_kwargs
        elif self.reasons:
            # Output that is not parsed has no reasoning, and a constraint holds from the first token.
            request.reasoning_ended = True
        if prior:
            with _tokenizer_faults():
                detokenizer, match = self._detokenizer_after(request, prompt, prior, delivered_characters, sequence)
            if match is not None:
                return match
            sequence.text = StoppableText(detokenizer)
        sequence.internal_id = request.request_id
        self._sequences[request.request_id] = sequence
        # vLLM's socket to the engine takes any number of messages, so this call ends within this turn of the loop.
        await llm.engine_core.add_request_async(request)
        if not prior and request.pooling_params is None:
            await self._begin_text(sequence, request, stops=bool(params.stop))
        return None

    async def _begin_text(self, sequence: VllmSequence, request: Any, *, stops: bool) -> None:
        """Prepare the text of a sequence that the engine already works on. Its output is read in a later turn of the
        loop.
        """
        try:
            with _tokenizer_faults():
                sequence.text = self._text_of(request, stops=stops)
        except EngineRequestError:
            self.forget((request.request_id,))
            await self.stop((request.request_id,))
            raise

    def _text_of(self, request: Any, *, stops: bool) -> Text:
        if not stops and (decode := self._by_bytes(request)) is not None:
            return PlainText(decode)
        return text_of(self._detokenizer_of(request), stops=stops)

    def _by_bytes(self, request: Any) -> Decode | None:
        """Return the decoder of the text after the prompt by bytes; None where these are not all of it."""
        params, texts = request.sampling_params, self._byte_texts
        # Without special tokens' spaces vLLM looks at pairs of them.
        if texts is None or not (params.skip_special_tokens or params.spaces_between_special_tokens):
            return None
        return texts.after(request.prompt_token_ids, skip_special=params.skip_special_tokens)

    def _detokenizer_of(self, request: Any) -> Any:
        """Build vLLM's detokenizer. Its pieces are the same with and without stop strings, and after a resume too."""
        return detokenizer_of(self._tokenizer, request, self._by_bytes(request))

    @cached_property
    def _byte_texts(self) -> ByteTexts | None:
        """Maker of texts from bytes; None where the tokenizer's texts are more than these."""
        # Others have a detokenizer of their own in vLLM too.
        encoder = self._tokenizer.backend_tokenizer if isinstance(self._tokenizer, TokenizersBackend) else None
        texts = ByteTexts(encoder) if isinstance(encoder, Tokenizer) else None
        return texts if texts is not None and texts.exact else None

    async def learn_tasks(self) -> tuple[str, ...]:
        """Ask the engine for its tasks, by vLLM's names. Requests may have these alone."""
        self._tasks = tuple(await self.llm.engine_core.get_supported_tasks_async())
        return self._tasks

    def forget(self, internal_ids: Sequence[str]) -> None:
        """Deliver no more output of these requests."""
        for internal_id in internal_ids:
            self._sequences.pop(internal_id, None)

    async def stop(self, internal_ids: Sequence[str]) -> None:
        """Tell the engine to drop requests. Return when the message is sent."""
        await self.llm.engine_core.abort_requests_async(list(internal_ids))

    async def between_steps(self) -> None:
        """Return when the running step is over and all messages sent before are handled."""
        await self.llm.engine_core.call_utility_async("is_scheduler_paused")

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        """Move the scheduler's live limits.

        Raises:
            Exception: the hook in the scheduler is missing.
        """
        in_force = await self.llm.engine_core.call_utility_async("set_batch_limits", sequences, tokens)
        return int(in_force[0]), int(in_force[1])

    async def sleep(self) -> None:
        """Move the weights to the machine's memory and forget the KV cache, so that both are free on the accelerator.

        Raises:
            Exception: vLLM can't.
        """
        await self.llm.sleep(level=1)

    async def wake(self) -> None:
        """Bring the weights back, and let the scheduler go on.

        Raises:
            Exception: vLLM can't.
        """
        if not await self.llm.wake_up():
            raise RuntimeError("vLLM says that a part of its memory is still away")

    def check_constraint(self, constraint: StructuredOutput | None, params: Any) -> None:
        """Check vLLM's SamplingParams with a constraint, without a prompt. Blocks while it compiles.

        Raises:
            EngineRequestError: vLLM refuses them.
        """
        config = self.llm.vllm_config
        try:
            params.verify(
                config.model_config, config.speculative_config, config.structured_outputs_config, self.tokenizer
            )
        except Exception as error:
            # The compilers raise exceptions of many kinds.
            raise EngineRequestError(told(error, constraint)) from error

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.llm.input_processor.get_tokenizer()

    async def load_adapter(self, request: Any) -> None:
        """Load a LoRA adapter.

        Raises:
            Exception: vLLM can't load it.
        """
        await self.llm.engine_core.call_utility_async("add_lora", request)

    async def unload_adapter(self, number: int) -> None:
        """Forget a LoRA adapter, if vLLM still has it."""
        await self.llm.engine_core.call_utility_async("remove_lora", number)

    async def check_health(self) -> None:
        """Raise vLLM's EngineDeadError if the engine is dead."""
        await self.llm.check_health()

    def engine_pids(self) -> list[int]:
        """List the engine processes that this process started."""
        manager = self.llm.engine_core.resources.engine_manager
        return [process.pid for process in manager.processes if process.pid] if manager else []

    def silence(self) -> None:
        """Deliver nothing more, not even the end of the engine."""
        self._pump.close()

    def close(self) -> None:
        """Stop the engine processes. Blocks until they are gone."""
        self.llm.shutdown(timeout=10)

    def _deliver(self, outputs: Any) -> None:
        sequences, at = self._sequences, outputs.timestamp
        for output in outputs.outputs:
            # None if the request was given up meanwhile.
            if (sequence := sequences.get(output.request_id)) is None:
                continue
            if output.events is not None:
                _note(sequence, output.events)
            if output.prefill_stats is not None and not sequence.output_tokens:
                sequence.cached_tokens = output.prefill_stats.num_cached_tokens
            try:
                sequence.take(output, at)
            except Exception:  # noqa: BLE001
                # A tokenizer's fault in one text must not end the output of other sequences.
                _LOG.exception("sequence.failed", extra={"sequence": sequence.sequence_id})
                sequence.fail(left_engine=output.finish_reason is not None)
            if sequence.finish_reason is not None:
                sequences.pop(output.request_id, None)
        self._events.on_step(outputs.scheduler_stats, at)

    @property
    def _tokenizer(self) -> Any:
        return self.llm.output_processor.tokenizer

    def _detokenizer_after(
        self, request: Any, prompt: list[int], prior: Sequence[int], delivered: int, sequence: VllmSequence
    ) -> tuple[Any, str | None]:
        """Build the detokenizer in its state after `prior`, so that split characters and stop strings continue.

        If the output had already ended there, return the cause too.
        """
        original = msgspec.structs.replace(request, prompt_token_ids=prompt)
        detokenizer = self._detokenizer_of(original)
        # It counts prior tokens as output, so its minimum is that of the whole output, not of the rest.
        detokenizer.min_tokens = sequence.sampling.min_tokens
        match = None
        for token in prior:
            if (match := detokenizer.update([token], False)) is not None:
                break
        detokenizer._last_output_text_offset = delivered
        params = request.sampling_params
        ends = {params.eos_token_id, *(params.stop_token_ids or ())}
        if prior[-1] in ends and len(prior) > sequence.sampling.min_tokens:
            match = sequence.stop_token(prior[-1])
        return detokenizer, match


@contextmanager
def _tokenizer_faults() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Tokenizers raise any kind of exception for ids that they do not know.
        raise EngineRequestError(f"the tokenizer failed on it: {error}") from error


def text_of(detokenizer: Any, *, stops: bool) -> Text:
    """Choose how the text of a sequence is made.

    Only the fast detokenizer keeps everything that it decodes from to itself. The slow one reads tokens that `update`
    notes.

    Args:
        detokenizer: vLLM's, of this sequence.
        stops: whether the sequence has stop strings.
    """
    if stops or not isinstance(detokenizer, FastIncrementalDetokenizer):
        return StoppableText(detokenizer)
    return PlainText(detokenizer.decode_next)


def _note(sequence: VllmSequence, events: Sequence[Any]) -> None:
    for event in events:
        if event.type == EngineCoreEventType.SCHEDULED:
            # The engine process's monotonic clock is that of the machine.
            sequence.scheduled(event.timestamp)
        elif event.type == EngineCoreEventType.PREEMPTED:
            sequence.preempted(event.timestamp)


class _NoLogger:
    """StatLoggerBase that records nothing."""

    def record(self, *_values: Any, **_named: Any) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass

    def log(self) -> None:
        pass

    def record_sleep_state(self, *_values: Any) -> None:
        pass
