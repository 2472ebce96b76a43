"""A batch of sequences under a limit, in virtual time: enough of an engine to close a control loop around."""

from __future__ import annotations

import math
import random
from collections import deque

from cluster.control.replay import itl_of
from cluster.control.snapshot import BatchSnapshot
from cluster.control.step_fit import StepFit
from cluster.control.step_model import StepModel, StepSample

WINDOW_S = 15.0


class VirtualEngine:
    """Runs requests of one prompt length, as many as limit and `offered` allow, and measures itself.

    Output lengths are exponential around `output`.
    """

    def __init__(self, model: StepModel, *, prompt: int, output: int, noise: float = 0.05, seed: int = 1) -> None:
        self.model = model
        self.prompt, self.output = prompt, output
        self.now = 0.0
        self.limit = 8
        self.offered = 10_000
        self.history: list[StepSample] = []
        self._batch: list[tuple[int, int]] = []
        """Context tokens, and tokens left, of each sequence."""
        self._random = random.Random(seed)
        self._noise = noise
        self._window: deque[tuple[float, StepSample]] = deque()

    def tick(self, fit: StepFit | None, seconds: float = 1.0) -> BatchSnapshot:
        """Run for a tick and say what was seen."""
        samples = []
        until = self.now + seconds
        while self.now < until:
            sample = self._step()
            if sample is not None:
                samples.append(sample)
                self._window.append((self.now, sample))
        while self._window and self._window[0][0] < self.now - WINDOW_S:
            self._window.popleft()
        if fit is not None:
            fit.learn(samples)
        self.history += samples
        return BatchSnapshot(
            at=self.now,
            limit=self.limit,
            running=len(self._batch),
            samples=tuple(sample for _, sample in self._window),
            model=fit.trusted if fit else None,
        )

    def take_nothing(self) -> None:
        """Forget what `take` would tell."""
        self.history = []

    def take(self) -> tuple[float, float]:
        """Return the 95th percentile of the ITL and the tokens per second since the last call."""
        history, self.history = self.history, []
        return itl_of(history, 0.95), sum(s.sequences for s in history) / sum(s.seconds for s in history)

    def _step(self) -> StepSample | None:
        fresh = max(0, min(self.limit, self.offered) - len(self._batch))
        fresh = min(fresh, max(1, 2048 // self.prompt))
        for _ in range(fresh):
            self._batch.append((self.prompt, 1 + int(self._random.expovariate(1 / self.output))))
        if not self._batch:
            self.now += 0.01
            return None
        sequences = len(self._batch)
        tokens = sequences - fresh + fresh * self.prompt
        kv_tokens = sum(context for context, _ in self._batch)
        took = self.model.predict(tokens, kv_tokens) * math.exp(self._random.gauss(0, self._noise))
        self.now += took
        self._batch = [(context + 1, left - 1) for context, left in self._batch if left > 1]
        return StepSample(took, tokens, kv_tokens, sequences)
