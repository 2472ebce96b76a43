"""The vLLM engine behind the engine protocol."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from cluster.control.step_model import StepSample
from cluster.errors import EngineDeadError, EngineRequestError, EngineStartError
from cluster.models import EngineStats, GenerationSpec, Judgement
from cluster.settings import PoolSettings
from deployments.engines.base import EngineIdentity, ParsingSink, TokenSink
from deployments.engines.doze import Doze
from deployments.engines.limits import clamp_sequences
from deployments.engines.meter import StepMeter
from deployments.engines.reading import Reading
from deployments.engines.vllm.compilers.check import silent_gap
from deployments.engines.vllm.images.reader import ImageContent
from deployments.engines.vllm.parsing.sequence import ParsedSequence, parse_sequence
from deployments.engines.vllm.pooling import PooledSequence
from deployments.engines.vllm.release import SlotRelease
from deployments.engines.vllm.self_test import constrain_once, generate_once, limits_move, look_once, pool_once
from deployments.engines.vllm.sequence import VllmSequence, ids_of
from deployments.engines.vllm.startup import launch, processes, sockets
from deployments.engines.vllm.startup.judging import Judge
from deployments.engines.vllm.step_work import count_step
from penstock.models import FinishReason, OutputParsing, StructuredOutput

if TYPE_CHECKING:
    from deployments.engines.vllm.adapter import Frontend

log = logging.getLogger(__name__)

_COMPILE_PATIENCE = 6
"""The grammar of a constrained sequence may compile this many times longer before its first step."""
_EXIT_S = 10.0


class VllmEngine:
    """One model in vLLM, in processes of its own.

    Args:
        pool: the pool's settings.
        model_path: the model's folder, or a hub id.
        cpu_cores: cores for the engine's ranks on a CPU; None takes those that the process may use.
    """

    def __init__(self, pool: PoolSettings, model_path: Path | str, *, cpu_cores: Sequence[int] | None = None) -> None:
        self._pool = pool
        self._model_path = model_path
        self._cpu_cores = cpu_cores
        self._live: dict[str, VllmSequence] = {}
        self._ended: list[VllmSequence] = []
        """Sequences whose last output came in the step that is being delivered."""
        self._reading = Reading()
        self._meter = StepMeter()
        self._death = ""
        self._closed = False
        self._limits = (0, 0)
        self._limits_live = False
        self._doze = Doze()
        self._launched: launch.Launched | None = None
        """The engine's processes; None until vLLM is up."""
        self._release: SlotRelease | None = None
        """Frees slots of sequences that end early; None until vLLM is up."""
        self._family: list[psutil.Process] = []
        """All engine processes as they were after start: the children of a dead process can't be found any more."""

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> EngineIdentity:
        """Load the model and test our hooks. Blocks the loop while vLLM loads, because its sockets belong to this loop.

        Raises:
            EngineStartError: it did not come up. Nothing is left running.
        """
        try:
            launched = launch.launch(self._pool, self._model_path, self._cpu_cores, self)
        except EngineStartError:
            raise
        except Exception as error:
            raise launch.failed(error) from error
        self._launched, frontend = launched, launched.frontend
        self._release = SlotRelease(frontend, self._slot_free)
        try:
            await launched.adapters.load_first(frontend, launched.config)
            self._launched = launched = await launch.learn_task(self._pool, launched)
            await (generate_once(self) if launched.generates else pool_once(self, launched.task, launched.features))
            if launched.constrains:
                await constrain_once(self)
            # The only step of a vector is the first one after an idle time, which does not count.
            if not self.take_steps() and launched.generates:
                log.warning("engine.steps.unknown")
            await launched.images.learn(lambda: look_once(self))
            self._family = processes.tree_of(frontend.engine_pids())
            self._limits = launched.limits
            self._limits_live = await limits_move(frontend, self._limits)
            return launch.identify(self._pool, launched, live_batch_limits=self._limits_live)
        except EngineStartError:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            raise EngineStartError(f"the engine failed its self-test: {error}") from error

    async def close(self) -> None:
        """Stop everything. Live sequences end with an error. May be called twice, and before `start`."""
        if self._closed or self._launched is None:
            return
        self._closed = True
        self._end_all("the engine was closed")
        frontend = self._launched.frontend
        family = {*self._family, *processes.tree_of(frontend.engine_pids())}
        frontend.silence()
        if self._release is not None:
            await self._release.close()
        await asyncio.to_thread(frontend.close)
        await asyncio.to_thread(processes.end_all, family, _EXIT_S)
        sockets.remove_folder(self._launched.sockets)

    async def sleep(self) -> None:
        self._raise_if_dead()
        await self._doze.sleep(self._frontend.sleep)

    async def wake(self) -> None:
        self._raise_if_dead()
        await self._doze.wake(self._frontend.wake)

    async def check_health(self) -> None:
        """Check vLLM's own health, and the progress of steps.

        Raises:
            EngineDeadError: the engine is dead or hangs.
        """
        self._raise_if_dead()
        try:
            await self._frontend.check_health()
        except Exception as error:
            raise EngineDeadError(f"the engine is dead: {error}") from error
        stalled = self._meter.idle_for(time.monotonic())
        if stalled > self._stall_limit():
            raise EngineDeadError(f"the engine made no step for {stalled:.0f} s although it has work")

    # --- sequences ----------------------------------------------------------------------------------------------------

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Start a sequence.

        Raises:
            EngineRequestError: vLLM refuses the request, or fails on it.
            EngineDeadError: the engine is dead.
        """
        self._raise_if_dead()
        if sequence_id in self.live_ids():
            raise EngineRequestError(f"sequence {sequence_id!r} is live already")
        params = self._up.translate(spec)
        if (parsed := parse_sequence(self._up.parsers, spec)) is not None:
            params = parsed.adjust(params)
        compiler, constraint = self._pool.vllm.structured_output.compiler, spec.sampling.structured
        if constraint is not None and (ignored := silent_gap(compiler, constraint)) is not None:
            raise EngineRequestError(ignored)
        kind = VllmSequence if spec.pooling is None else PooledSequence
        sequence = kind(sequence_id, spec, sink, self, time.monotonic())
        if parsed is not None and isinstance(sink, ParsingSink):
            sink.on_parser(parsed.parser)
        enter = partial(self._enter, sequence, spec, params, parsed)
        if spec.images:
            self._reading.begin(sequence, lambda: self._up.images.read(spec), enter)
        else:
            await enter()

    async def _enter(
        self,
        sequence: VllmSequence,
        spec: GenerationSpec,
        params: Any,
        parsed: ParsedSequence | None,
        images: ImageContent | None = None,
    ) -> None:
        self._raise_if_dead()
        self._live[sequence.sequence_id] = sequence
        now = sequence.arrived_at if images is None else time.monotonic()
        sequence.enter(now)
        self._meter.arrive(now, sequence.prompt_tokens)
        try:
            ended_by = await self._frontend.add(
                sequence,
                list(spec.prompt_token_ids),
                spec.resume.prior_token_ids if spec.resume else (),
                params,
                lora=self._up.adapters.request(spec.lora_adapter) if spec.lora_adapter else None,
                cache_salt=spec.cache_salt or None,
                delivered_characters=spec.resume.prior_text_length if spec.resume else 0,
                parsed=parsed,
                images=images,
            )
        except EngineRequestError:
            self._forget(sequence)
            raise
        except asyncio.CancelledError:
            self._drop([sequence], FinishReason.CANCELLED)
            raise
        except Exception as error:
            self._forget(sequence)
            log.exception("engine.took_no_request", extra={"sequence": sequence.sequence_id})
            await self.check_health()
            raise EngineRequestError(f"the engine took no request: {error}") from error
        if ended_by is not None:
            self._forget(sequence)
            sequence.stop_match = ended_by
            sequence.end(FinishReason.STOP)

    async def judge(self, constraint: StructuredOutput) -> Judgement:
        self._raise_if_dead()
        return await self._judge.constraint(constraint)

    async def judge_calls(self, parsing: OutputParsing, structured: StructuredOutput | None) -> Judgement:
        self._raise_if_dead()
        return await self._judge.calls(parsing, structured)

    async def expand_images(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        self._raise_if_dead()
        return await self._up.images.expand(sizes)

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self._doze.over()
        self._raise_if_dead()
        await self._up.adapters.load(self._frontend, self._up.config, name, folder)

    async def unload_adapter(self, name: str) -> None:
        await self._doze.over()
        self._raise_if_dead()
        await self._up.adapters.unload(self._frontend, name)

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = FinishReason.CANCELLED, *, release_text: bool = False
    ) -> None:
        """Stop sequences. Returns when the running step is over and their slots are free."""
        self._reading.end(sequence_ids, FinishReason(reason))
        sequences = [self._live[each] for each in sequence_ids if each in self._live]
        if sequences:
            await self._drop(sequences, FinishReason(reason), release_text=release_text)

    def _drop(
        self, sequences: Sequence[VllmSequence], reason: FinishReason, *, release_text: bool = False
    ) -> Awaitable[None]:
        for sequence in sequences:
            # A sequence whose output ended by itself keeps its reason. Only its slot is not free yet.
            if sequence.finish_reason is None:
                sequence.finish_reason = reason
                if release_text:
                    sequence.release_text()
        self._frontend.forget(ids_of(sequences))
        return self._free(sequences)

    # --- control ------------------------------------------------------------------------------------------------------

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        """Move the live limits, and return those in force.

        Without the hook in the scheduler only the returned number of sequences moves, for the replica's window.
        """
        self._raise_if_dead()
        if self._limits_live:
            self._limits = await self._frontend.set_batch_limits(sequences, tokens)
        elif sequences is not None:
            self._limits = (clamp_sequences(sequences, self._up.limits[0]), self._limits[1])
        return self._limits

    def stats(self) -> EngineStats:
        live = self._live.copy().values()
        return self._meter.stats(
            time.monotonic(),
            *self._limits,
            output_tokens_live=sum(sequence.output_tokens for sequence in live),
            gpu_s_live=sum(map(self._gpu_seconds, live)),
        )

    def live_ids(self) -> Collection[str]:
        return (*self._live, *self._reading.ids())

    def take_steps(self) -> list[StepSample]:
        return self._meter.take_steps()

    @property
    def most_running(self) -> int:
        return self._meter.most_running

    def engine_pids(self) -> list[int]:
        return self._frontend.engine_pids()

    # --- what vLLM tells ----------------------------------------------------------------------------------------------

    def share_at(self, moment: float) -> float:
        return self._meter.clock.at(moment)

    def on_scheduled(self, moment: float) -> float:
        self._meter.scheduled(moment)
        return self._meter.clock.at(moment)

    def on_first_token(self, sequence: VllmSequence) -> None:
        self._meter.prefilled(sequence.prompt_tokens, sequence.cached_tokens)

    def on_preempted(self) -> None:
        self._meter.preempted()

    def on_output_end(self, sequence: VllmSequence) -> None:
        self._ended.append(sequence)

    def on_step(self, stats: Any, ended_at: float) -> None:
        """Count the step whose outputs have been delivered, and end the sequences that ended in it."""
        ended, self._ended = self._ended, []
        if stats is not None:
            count_step(self._meter, stats, ended, ended_at)
        for sequence in ended:
            if sequence.left_engine:
                self._slot_free(sequence)
        if stopped := [sequence for sequence in ended if not sequence.left_engine]:
            self._free(stopped)

    def on_death(self, error: Exception) -> None:
        """End all sequences, because the engine died."""
        if self._closed:
            return
        self._death = f"the engine died: {error}"
        log.error("engine.died", extra={"error": repr(error), "sequences": len(self._live)})
        self._end_all(self._death)

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _judge(self) -> Judge:
        return Judge(self._pool.vllm.structured_output.compiler, self._up)

    @property
    def _up(self) -> launch.Launched:
        if self._launched is None:
            raise EngineDeadError("the engine has not started")
        return self._launched

    @property
    def _frontend(self) -> Frontend:
        return self._up.frontend

    def _free(self, sequences: Sequence[VllmSequence]) -> Awaitable[None]:
        if self._release is None:
            raise EngineDeadError("the engine has not started")
        return self._release.add(sequences)

    def _slot_free(self, sequence: VllmSequence) -> None:
        gpu_seconds = self._gpu_seconds(sequence)
        if not self._forget(sequence, gpu_seconds):
            return
        reason = sequence.finish_reason or FinishReason.ERROR
        error, invalid = sequence.failure() if reason is FinishReason.ERROR else ("", False)
        sequence.end(reason, gpu_seconds=gpu_seconds, error=error, invalid_request=invalid)

    def _forget(self, sequence: VllmSequence, gpu_seconds: float = 0.0) -> bool:
        if self._live.get(sequence.sequence_id) is not sequence:
            return False
        del self._live[sequence.sequence_id]
        self._meter.leave(
            prompt_tokens=sequence.prompt_tokens,
            prefilled=bool(sequence.first_token_at),
            output_tokens=sequence.output_tokens,
            gpu_seconds=gpu_seconds,
        )
        return True

    def _end_all(self, error: str) -> None:
        self._reading.fail_all(error, engine_died=bool(self._death))
        for sequence in list(self._live.values()):
            gpu_seconds = self._gpu_seconds(sequence)
            self._forget(sequence, gpu_seconds)
            # Of output that was complete only the slot was not free yet.
            done = sequence.finish_reason
            reason = done if done in (FinishReason.STOP, FinishReason.LENGTH) else FinishReason.ERROR
            why = error if reason is FinishReason.ERROR else ""
            sequence.end(reason, gpu_seconds=gpu_seconds, error=why, engine_died=bool(self._death))

    def _gpu_seconds(self, sequence: VllmSequence) -> float:
        return sequence.share(self._meter.clock.total()) * self._pool.ranks

    def _stall_limit(self) -> float:
        compiling = all(each.sampling.structured and not each.output_tokens for each in self._live.values())
        return self._meter.stall_limit_s(self._limits[1]) * (_COMPILE_PATIENCE if compiling else 1)

    def _raise_if_dead(self) -> None:
        if self._death:
            raise EngineDeadError(self._death)
        if self._closed:
            raise EngineDeadError("the engine is closed")
