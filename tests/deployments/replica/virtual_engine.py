"""The simulated engine's scheduler under a manual clock: seconds of steps in milliseconds."""

from __future__ import annotations

import itertools
import math
import random

from cluster.clock import ManualClock
from cluster.control.step_model import StepSample
from cluster.models import EngineStats, Windows
from cluster.settings import SimSettings
from deployments.engines.meter import StepMeter
from deployments.engines.sim import BatchCore, CoreLimits
from deployments.engines.sim.engine import step_seconds
from deployments.engines.sim.identity import sim_windows

NOISE = 0.05


class VirtualEngine:
    """Always has as many requests as the limit allows, or `offered`; outputs are exponential around `output`."""

    def __init__(self, clock: ManualClock, settings: SimSettings, *, prompt: int, output: int) -> None:
        self.clock = clock
        self.settings = settings
        self.prompt, self.output = prompt, output
        self.offered = 10_000
        self.slowdown = 1.0
        self.produced: list[tuple[float, int]] = []
        """Seconds of each step, and tokens produced in it."""
        self._core = BatchCore(
            CoreLimits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.kv_tokens, settings.block_size)
        )
        self._meter = StepMeter()
        self._left: dict[str, int] = {}
        self._ids = itertools.count()
        self._random = random.Random(3)

    @property
    def windows(self) -> Windows:
        return sim_windows(self.settings)

    @property
    def held(self) -> int:
        return len(self._left)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self._refill()
            if not self._left:
                self.clock.advance(0.05)
                continue
            self._step()

    def _refill(self) -> None:
        while len(self._left) < min(self._core.sequence_limit, self.offered):
            name = str(next(self._ids))
            self._meter.arrive(self.clock.monotonic(), self.prompt)
            self._core.add(name, self.prompt)
            self._left[name] = 1 + int(self._random.expovariate(1 / self.output))

    def _step(self) -> None:
        result = self._core.step()
        seconds = step_seconds(self.settings, result.tokens, result.kv_tokens)
        seconds *= self.slowdown * math.exp(self._random.gauss(0, NOISE))
        self.clock.advance(seconds)
        for name in result.produced:
            self._left[name] -= 1
            if self._left[name] == 0:
                del self._left[name]
                self._core.remove(name)
                self._meter.leave(prompt_tokens=self.prompt, prefilled=True, output_tokens=1, gpu_seconds=0.0)
        self.produced.append((seconds, len(result.produced)))
        self._meter.step(
            self.clock.monotonic(),
            len(result.scheduled),
            running=self._core.running,
            kv_usage=self._core.kv_usage,
            tokens=result.tokens,
            kv_tokens=result.kv_tokens,
        )

    def measure(self, seconds: float) -> tuple[float, float]:
        """Return the 95th percentile of the ITL and the tokens per second of the last seconds."""
        total, last = 0.0, []
        for took, tokens in reversed(self.produced):
            if total > seconds:
                break
            total += took
            last.append((took, tokens))
        last.sort()
        left = 0.95 * sum(tokens for _, tokens in last)
        for took, tokens in last:
            left -= tokens
            if left <= 0:
                return took, sum(n for _, n in last) / total
        raise AssertionError("nothing was produced")

    # --- what the governor calls ---

    def take_steps(self) -> list[StepSample]:
        return self._meter.take_steps()

    def stats(self) -> EngineStats:
        return self._meter.stats(
            self._meter.clock.total(),
            self._core.sequence_limit,
            self._core.token_budget,
            output_tokens_live=0,
            gpu_s_live=0.0,
        )

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        self._core.set_limits(sequences, tokens)
        return self._core.sequence_limit, self._core.token_budget
