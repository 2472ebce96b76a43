"""The source of a profile's sequences: an engine of its own, or a serving replica behind a router."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cluster.control.step_model import StepSample
from cluster.errors import EngineError
from cluster.models import GenerationSpec, PromptLogprobs, SequenceEnd
from deployments.engines.base import Engine
from penstock.client import AsyncClient, Sampling
from penstock.models import PositionLogprobs, SamplingParams
from penstock.values.events import Delta

LEAST_SHARED = 8
"""Least number of steps that sequences must share to tell the duration of one."""


@dataclass(slots=True)
class Told:
    """Output of one sequence. Times are seconds of `time.perf_counter`."""

    begun: float
    times: list[float] = field(default_factory=list)
    """Time of each token."""

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.times[0] - self.begun


class Source(Protocol):
    """Generator of sequences. It may know its steps."""

    async def generate(self, prompt: Sequence[int], output_tokens: int) -> Told:
        """Generate exactly this many tokens.

        Raises:
            EngineError: the sequence failed.
        """
        ...

    def take_steps(self) -> list[StepSample] | None:
        """Return the steps since the last call; None if only clients see them."""
        ...


class _Sink:
    def __init__(self) -> None:
        self.told = Told(time.perf_counter())
        self.ended: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Ignore what nobody asks for."""

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        self.told.times += [time.perf_counter()] * len(token_ids)

    def on_end(self, end: SequenceEnd) -> None:
        if not self.ended.done():
            self.ended.set_result(end)


class EngineSource:
    """Engine of this process as a source."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = itertools.count()

    async def generate(self, prompt: Sequence[int], output_tokens: int) -> Told:
        sampling = SamplingParams(output_tokens, temperature=0.0, ignore_eos=True)
        sink = _Sink()
        await self._engine.submit(f"profile-{next(self._ids)}", GenerationSpec(list(prompt), sampling), sink)
        end = await sink.ended
        if end.error or not sink.told.times:
            raise EngineError(f"a sequence failed: {end.error or 'it had no tokens'}")
        return sink.told

    def take_steps(self) -> list[StepSample] | None:
        return self._engine.take_steps()


class RouterSource:
    """Cluster as a source, seen as its clients see it. Its times include everything between."""

    def __init__(self, client: AsyncClient, model: str) -> None:
        self._client = client
        self._model = model

    async def generate(self, prompt: Sequence[int], output_tokens: int) -> Told:
        """Generate exactly this many tokens.

        Raises:
            PenstockClientError: the cluster did not serve the sequence.
            EngineError: the sequence had no tokens.
        """
        sampling = Sampling(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        told = Told(time.perf_counter())
        async for event in self._client.stream(self._model, list(prompt), sampling, flush_interval=0.0):
            if isinstance(event, Delta):
                told.times += [time.perf_counter()] * len(event.token_ids)
        if not told.times:
            raise EngineError("a sequence had no tokens")
        return told

    def take_steps(self) -> list[StepSample] | None:
        return None


def steps_seen(told: Sequence[Told], prompt_tokens: int) -> list[StepSample]:
    """Compute decode steps from clients' observations of sequences that ran together.

    While all of them decode, each step brings each of them a token. Late tokens come in bursts. A step is therefore the
    slope of a line through all tokens of that time, as the median over sequences.
    """
    begin, end = max(each.times[0] for each in told), min(each.times[-1] for each in told)
    shared = [[at for at, when in enumerate(each.times) if begin <= when <= end] for each in told]
    count = min(len(each) for each in shared)
    if begin >= end or count < LEAST_SHARED:
        return []
    slopes = [
        float(np.polyfit(places, [each.times[at] for at in places], 1)[0])
        for each, places in zip(told, shared, strict=True)
    ]
    context = sum(prompt_tokens + statistics.fmean(places) for places in shared)
    return [StepSample(max(1e-6, statistics.median(slopes)), len(told), round(context), len(told))] * count
