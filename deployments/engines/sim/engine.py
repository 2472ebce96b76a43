"""The simulated engine behind the engine protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from cluster.clock import Clock, SystemClock
from cluster.control.step_model import StepSample
from cluster.errors import EngineDeadError, EngineRequestError
from cluster.models import EngineStats, GenerationSpec, Judgement
from cluster.settings import PoolSettings, SimSettings
from deployments.engines import tokenizer_files
from deployments.engines.base import EngineIdentity, ParsingSink, TokenSink
from deployments.engines.doze import Doze
from deployments.engines.meter import StepMeter
from deployments.engines.reading import Reading
from deployments.engines.sim.adapters import SimAdapters
from deployments.engines.sim.core import BatchCore
from deployments.engines.sim.identity import identify, task_of
from deployments.engines.sim.images import NO_PLACEHOLDER, placeholder_of
from deployments.engines.sim.limits import CoreLimits
from deployments.engines.sim.parser import SimParser, parse
from deployments.engines.sim.sequence import SimSequence
from deployments.engines.sim.text import Vocabulary
from deployments.engines.sim.tokens import block_hashes
from deployments.engines.sim.turn import StepResult
from deployments.engines.sim.vectors import sim_features
from penstock.models import (
    FinishReason,
    ModelTask,
    OutputParsing,
    StructuredOutput,
    ToolMode,
)

log = logging.getLogger(__name__)

_STALL_S = 10.0
_MADE_UP_S = 0.1
"""Most time of late wake-ups that is made up for. After a longer halt of its process no real engine would make all the
missed steps at once.
"""
NO_CONSTRAINTS = "the simulated engine cannot shape its output, unless sim.answer is set"


def step_seconds(settings: SimSettings, tokens: int, kv_tokens: int) -> float:
    """Return the duration of a step in seconds, before time_scale."""
    return settings.base_ms / 1e3 + (settings.per_token_us * tokens + settings.per_kv_token_us * kv_tokens) / 1e6


class SimEngine:
    """Engine that schedules and times steps like vLLM and makes up its tokens.

    The same prompt and seed give the same tokens on every replica, resumed or not. Temperature, penalties and the like
    have no effect, as there is no distribution. Requests that need the output in a given form get the answer of the
    settings, whatever form it has, and are refused without one.

    Args:
        pool: the pool's settings.
        tokenizer_path: a model's folder; None renders tokens as bytes.
        clock: the time of receipts; steps sleep on the event loop.
    """

    def __init__(
        self,
        pool: PoolSettings,
        tokenizer_path: Path | None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._settings = pool.sim
        self._folder = tokenizer_path
        self._task = task_of(pool)
        self._features = sim_features(self._task, pool.sim.vector_size)
        self._clock = clock or SystemClock()
        # A partial block does not count.
        kv_tokens = pool.sim.kv_tokens // pool.sim.block_size * pool.sim.block_size
        self._context = min(pool.sim.max_model_len, kv_tokens)
        self._files: Mapping[str, bytes] = {}
        """Tokenizer files by name."""
        self._vocabulary = Vocabulary(self._files)
        self._answer: Sequence[int] = ()
        """Tokens of every answer; empty for made-up ones."""
        self._core = BatchCore(
            CoreLimits(pool.sim.max_num_seqs, pool.sim.max_num_batched_tokens, pool.sim.kv_tokens, pool.sim.block_size)
        )
        self._placeholder = NO_PLACEHOLDER
        self._reading = Reading()
        self._meter = StepMeter()
        self._adapters = SimAdapters(pool.sim)
        self._live: dict[str, SimSequence] = {}
        self._aborting: list[SimSequence] = []
        self._step_over: asyncio.Future[None] | None = None
        """Done when the running step is over. Aborts wait for it."""
        self._work = asyncio.Event()
        self._moving = asyncio.Event()
        self._moving.set()
        self._doze = Doze()
        self._stall_s = _STALL_S
        self._death = ""
        self._steps: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> EngineIdentity:
        """Wait for the configured cold start time, then step whenever there is work.

        Raises:
            EngineStartError: the folder has no usable tokenizer.
        """
        await asyncio.sleep(self._settings.start_s)
        if self._folder is not None:
            self._files = await asyncio.to_thread(tokenizer_files.of_folder, self._folder)
        self._vocabulary = Vocabulary(self._files)
        self._answer = self._vocabulary.encode(self._settings.answer)
        self._steps = asyncio.create_task(self._run(), name="sim-engine")
        self._placeholder = placeholder_of(self._vocabulary, self._task)
        size = self._vocabulary.size
        return identify(self._pool, self._files, self._context, size, self._features, self._placeholder)

    async def close(self) -> None:
        """Stop. Live sequences end with an error. May be called twice."""
        self._die("the engine was closed", crashed=False)
        if self._steps is not None:
            self._steps.cancel()
            # Not awaited itself: a cancel of this call would look like the task's own.
            await asyncio.wait([self._steps])

    async def sleep(self) -> None:
        """Fall asleep. There is nothing to free."""
        self._raise_if_dead()
        await self._doze.sleep(lambda: asyncio.sleep(0))

    async def wake(self) -> None:
        """Wait for the configured time."""
        self._raise_if_dead()
        await self._doze.wake(lambda: asyncio.sleep(self._settings.wake_s))

    async def check_health(self) -> None:
        """Check that the engine makes progress.

        Raises:
            EngineDeadError: it died or hangs.
        """
        self._raise_if_dead()
        stalled = self._meter.idle_for(self._clock.monotonic())
        if stalled > self._stall_s:
            raise EngineDeadError(f"the engine made no step for {stalled:.0f} s although it has work")

    def die(self) -> None:
        """Fail as a crashed engine does; for tests."""
        self._die("the engine died")

    def wedge(self) -> None:
        """Hang from the next step on, as an engine with a stuck accelerator does; for tests."""
        self._moving.clear()

    # --- sequences ----------------------------------------------------------------------------------------------------

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Start a sequence.

        Raises:
            EngineRequestError: a real engine would refuse the request, or this one cannot do it.
            EngineDeadError: the engine is dead.
        """
        self._raise_if_dead()
        prompt = [*spec.prompt_token_ids, *(spec.resume.prior_token_ids if spec.resume else ())]
        if self._doze.asleep:
            raise EngineRequestError("the engine sleeps")
        self._check(sequence_id, spec, prompt)
        now = self._clock.monotonic()
        adapter = self._adapters.seed(spec.lora_adapter)
        sequence = SimSequence(sequence_id, spec, sink, self._vocabulary, now, answer=self._answer, adapter=adapter)
        if self._answer and spec.parsing is not None and isinstance(sink, ParsingSink):
            sink.on_parser(SimParser(self._vocabulary.encode, tools=bool(spec.parsing.tools)))
        if sequence.finish_reason is not None:
            sequence.end(sequence.finish_reason)
            return
        salt = f"{spec.lora_adapter}\0{spec.cache_salt}"
        seen = [*sequence.distinct_prompt, *prompt[len(spec.prompt_token_ids) :]]
        # Log probabilities of the prompt need all of it computed, so none of it may come from the cache.
        computed = spec.sampling.prompt_logprobs is not None
        hashes = () if computed else block_hashes(seen, self._settings.block_size, salt)
        if spec.images:
            self._reading.begin(sequence, lambda: self._placeholder.read(spec), lambda _: self._enter(sequence, hashes))
        else:
            await self._enter(sequence, hashes)

    async def _enter(self, sequence: SimSequence, hashes: Sequence[int]) -> None:
        self._live[sequence.sequence_id] = sequence
        self._meter.arrive(self._clock.monotonic(), sequence.prompt_tokens)
        self._core.add(sequence.sequence_id, sequence.prompt_tokens, hashes)
        self._work.set()

    async def judge(self, constraint: StructuredOutput) -> Judgement:
        """Accept all constraints if the answer is written by the settings."""
        return Judgement() if self._answer else Judgement(NO_CONSTRAINTS)

    async def judge_calls(self, parsing: OutputParsing, structured: StructuredOutput | None) -> Judgement:
        """Accept all demands: the answer is written by the settings."""
        return Judgement()

    async def expand_images(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        self._raise_if_dead()
        return self._placeholder.expand(sizes)

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self._doze.over()
        self._raise_if_dead()
        await self._adapters.load(name, folder)

    async def unload_adapter(self, name: str) -> None:
        await self._doze.over()
        self._raise_if_dead()
        self._adapters.unload(name)

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = FinishReason.CANCELLED, *, release_text: bool = False
    ) -> None:
        """Stop sequences. Return when the running step is over and their slots are free."""
        self._reading.end(sequence_ids, FinishReason(reason))
        sequences = [self._live[each] for each in sequence_ids if each in self._live]
        if not sequences:
            return
        for sequence in sequences:
            if sequence.finish_reason is None:
                sequence.finish_reason = FinishReason(reason)
                if release_text:
                    sequence.release_text()
        self._aborting += sequences
        if self._step_over is None:
            self._step_over = asyncio.get_running_loop().create_future()
        self._work.set()
        await asyncio.shield(self._step_over)

    # --- control ------------------------------------------------------------------------------------------------------

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        """Move the live limits and return those in force."""
        self._raise_if_dead()
        self._core.set_limits(sequences, tokens)
        return self._core.sequence_limit, self._core.token_budget

    def stats(self) -> EngineStats:
        live, total = self._live.copy().values(), self._meter.clock.total()
        return self._meter.stats(
            self._clock.monotonic(),
            self._core.sequence_limit,
            self._core.token_budget,
            output_tokens_live=sum(sequence.output_tokens for sequence in live),
            gpu_s_live=sum(sequence.share(total) for sequence in live) * self._pool.ranks,
        )

    def live_ids(self) -> Collection[str]:
        return (*self._live, *self._reading.ids())

    def take_steps(self) -> list[StepSample]:
        return self._meter.take_steps()

    @property
    def most_running(self) -> int:
        """Largest batch since the start."""
        return self._meter.most_running

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._step_forever()
        except Exception as error:
            log.exception("engine.died")
            self._die(f"the engine died: {error!r}")

    async def _step_forever(self) -> None:
        due = self._clock.monotonic()
        while True:
            if not self._core.running and not self._core.waiting:
                self._work.clear()
                await self._work.wait()
                due = self._clock.monotonic()
            await self._moving.wait()
            self._free_aborted()
            if not self._core.running and not self._core.waiting:
                continue
            result = self._core.step()
            self._note_scheduled(result)
            # With those that the budget left out of this step: they hold their place in the batch.
            in_batch = self._core.running
            # Measured from the planned end of the last step, so that late wake-ups do not add up.
            due = max(due, self._clock.monotonic() - _MADE_UP_S)
            due += step_seconds(self._settings, result.tokens, result.kv_tokens) * self._settings.time_scale
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            self._deliver(result, in_batch)

    def _note_scheduled(self, result: StepResult) -> None:
        now = self._clock.monotonic()
        for sequence_id in result.admitted:
            sequence = self._live[sequence_id]
            sequence.enter(self._meter.clock.total())
            if sequence.scheduled_at is None:
                sequence.scheduled_at = now
                sequence.cached_tokens = self._core.cached_tokens(sequence_id)
        for sequence_id in result.preempted:
            self._live[sequence_id].pause(self._meter.clock.total())
            self._meter.preempted()

    def _deliver(self, result: StepResult, in_batch: int) -> None:
        now = self._clock.monotonic()
        ended = [sequence for each in result.produced if (sequence := self._produce(each, now)) is not None]
        for sequence in ended:
            self._core.remove(sequence.sequence_id)
        self._meter.step(
            now,
            in_batch,
            running=self._core.running,
            kv_usage=self._core.kv_usage,
            tokens=result.tokens,
            kv_tokens=result.kv_tokens,
            began=min((each.scheduled_at for each in ended if each.pooling and each.scheduled_at), default=None),
        )
        for sequence in ended:
            self._end(sequence)
        self._free_aborted()

    def _produce(self, sequence_id: str, now: float) -> SimSequence | None:
        sequence = self._live.get(sequence_id)
        if sequence is None or sequence.finish_reason is not None:
            return None
        if not sequence.output_tokens:
            self._meter.prefilled(sequence.prompt_tokens, sequence.cached_tokens)
        if sequence.pooling is not None:
            sequence.pool(now, sequence.pooling, self._features)
            return sequence
        context_left = self._context - sequence.prompt_tokens - sequence.output_tokens - 1
        return sequence if sequence.produce(now, context_left) else None

    def _free_aborted(self) -> None:
        aborted, self._aborting = self._aborting, []
        for sequence in aborted:
            self._core.remove(sequence.sequence_id)
            self._end(sequence)
        if self._step_over is not None:
            self._step_over.set_result(None)
            self._step_over = None

    def _end(self, sequence: SimSequence, error: str = "", *, crashed: bool = False) -> None:
        if self._live.pop(sequence.sequence_id, None) is None:
            return
        gpu_seconds = sequence.share(self._meter.clock.total()) * self._pool.ranks
        self._meter.leave(
            prompt_tokens=sequence.prompt_tokens,
            prefilled=sequence.prefilled,
            output_tokens=sequence.output_tokens,
            gpu_seconds=gpu_seconds,
        )
        reason = FinishReason.ERROR if error else sequence.finish_reason or FinishReason.ERROR
        sequence.end(reason, gpu_seconds=gpu_seconds, error=error, engine_died=crashed)

    def _die(self, death: str, *, crashed: bool = True) -> None:
        if self._death:
            return
        self._death = death
        if self._steps is not None:
            self._steps.cancel()
        self._reading.fail_all(death, engine_died=crashed)
        for sequence in list(self._live.values()):
            self._core.remove(sequence.sequence_id)
            self._end(sequence, death, crashed=crashed)
        self._free_aborted()

    def _raise_if_dead(self) -> None:
        if self._death:
            raise EngineDeadError(self._death)

    def _check(self, sequence_id: str, spec: GenerationSpec, prompt: Sequence[int]) -> None:
        sampling = spec.sampling
        if sequence_id in self.live_ids():
            raise EngineRequestError(f"sequence {sequence_id!r} is live already")
        if (ModelTask.GENERATE if spec.pooling is None else spec.pooling.task) is not self._task:
            raise EngineRequestError(f"this engine's task is {self._task.value!r}")
        if not prompt:
            raise EngineRequestError("the prompt is empty")
        if len(prompt) >= self._context + (spec.pooling is not None):
            raise EngineRequestError(f"the prompt's {len(prompt)} tokens leave no room in a context of {self._context}")
        if min(prompt) < 0 or max(prompt) >= self._vocabulary.size:
            raise EngineRequestError(f"the prompt has a token id outside of 0 to {self._vocabulary.size - 1}")
        if spec.resume and len(spec.resume.prior_token_ids) >= sampling.max_tokens:
            raise EngineRequestError(f"max_tokens={sampling.max_tokens} is used up by prior tokens")
        called = spec.parsing is not None and spec.parsing.mode is ToolMode.REQUIRED
        if (sampling.structured is not None and not self._answer) or sampling.logit_bias:
            raise EngineRequestError(NO_CONSTRAINTS)
        if called and not parse(self._settings.answer, last=True, tools=True).tool_calls:
            raise EngineRequestError("the simulated engine's sim.answer has no tool call")
