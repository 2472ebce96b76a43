"""Step model: the time that one engine step takes, and what follows from it.

`T = a + b * tokens + g * kv_tokens (+ m * experts read)`. Tokens are those computed in the step, decodes and prefill
chunks alike. KV tokens are the context tokens that attention reads. Fitted to one engine, the model replays measured
vLLM runs within a few percent. A model of the batch size alone misses by a fifth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class StepSample(NamedTuple):
    """One engine step."""

    seconds: float
    """From the end of the previous step to its own end. Both steps had work."""
    tokens: int
    """Tokens computed."""
    kv_tokens: int
    """Context tokens read."""
    sequences: int = 1
    """Sequences in the step."""


@dataclass(frozen=True, slots=True)
class BatchMix:
    """What one sequence of the batch adds to a step, averaged over the sequences and steps of some time."""

    tokens: float
    """Tokens computed per sequence and step: 1 for pure decode, more where prompts are computed in between."""
    kv_tokens: float
    """Context tokens read per sequence and step."""

    @classmethod
    def of(cls, samples: Sequence[StepSample]) -> BatchMix | None:
        """Return the average over steps; None without any."""
        sequences = sum(sample.sequences for sample in samples)
        if not sequences:
            return None
        tokens, kv_tokens = sum(sample.tokens for sample in samples), sum(sample.kv_tokens for sample in samples)
        return cls(tokens / sequences, kv_tokens / sequences)


@dataclass(frozen=True, slots=True)
class Shape:
    """A mean request, in tokens."""

    prompt_tokens: float
    output_tokens: float
    cached_tokens: float = 0.0
    """Part of the prompt that is found in the prefix cache."""

    @property
    def mix(self) -> BatchMix:
        """What such requests add to a step in a steady batch. Each computes its prompt once in `output_tokens` steps,
        and its context grows from the prompt to prompt and output.
        """
        output = max(1.0, self.output_tokens)
        return BatchMix(
            tokens=1.0 + (self.prompt_tokens - self.cached_tokens) / output,
            kv_tokens=self.prompt_tokens + output / 2,
        )

    @property
    def peak_tokens(self) -> float:
        """KV tokens at the end of the request."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts. The more tokens a step has, the more experts' weights it reads."""

    total: int
    active: int
    """Per token."""

    def share_read(self, tokens: float) -> float:
        """Return the expected part of the experts that a step with `tokens` tokens reads, 0 to 1."""
        missed: float = (1.0 - self.active / self.total) ** max(0.0, tokens)
        return 1.0 - missed


@dataclass(frozen=True, slots=True)
class StepModel:
    """Model of step times. All coefficients are at least 0."""

    a: float
    """Seconds per step."""
    b: float
    """Seconds per computed token."""
    g: float
    """Seconds per context token read."""
    m: float = 0.0
    """Seconds to read all experts; needs `experts`."""
    experts: Experts | None = None

    def predict(self, tokens: float, kv_tokens: float) -> float:
        """Return the seconds that a step takes."""
        seconds = self.a + self.b * tokens + self.g * kv_tokens
        return seconds + self.m * self.experts.share_read(tokens) if self.experts else seconds

    def times(self, factor: float) -> StepModel:
        """Return the model of an engine that takes `factor` times as long for everything."""
        return replace(self, a=self.a * factor, b=self.b * factor, g=self.g * factor, m=self.m * factor)

    def itl(self, batch: float, mix: BatchMix) -> float:
        """Return the mean inter-token latency of a steady batch in seconds: a + b*B*(1+(I-h)/O) + g*B*(I+O/2)."""
        return self.predict(batch * mix.tokens, batch * mix.kv_tokens)

    def batch_for_itl(self, itl_s: float, mix: BatchMix, spread: float = 1.0) -> float:
        """Return the largest batch whose inter-token latency stays within `itl_s`. Return 0 when no batch is fast
        enough, and infinity when the size does not matter.

        Args:
            itl_s: the bound, seconds.
            mix: what a sequence adds to a step.
            spread: the bounded percentile of the latency over its mean.
        """
        mean = itl_s / spread
        slope = self.b * mix.tokens + self.g * mix.kv_tokens
        if self.experts is None or not self.m:
            if mean <= self.a:
                return 0.0
            return (mean - self.a) / slope if slope > 0 else float("inf")
        return self._bisect(mean, mix, slope)

    def batch_for_rate(self, part: float, mix: BatchMix, largest: float) -> float:
        """Return the smallest batch that completes at least `part` of what `largest` completes per second."""
        aim = part * largest / max(1e-12, self.itl(largest, mix))
        low, high = 0.0, largest
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if middle / max(1e-12, self.itl(middle, mix)) >= aim else (middle, high)
        return high

    def _bisect(self, mean: float, mix: BatchMix, slope: float) -> float:
        if self.itl(0.0, mix) >= mean:
            return 0.0
        if slope <= 0 and self.a + self.m <= mean:
            return float("inf")
        # Without the experts' term the batch would be larger, so this is an upper end.
        low, high = 0.0, (mean - self.a) / slope if slope > 0 else 1e6
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.itl(middle, mix) <= mean else (low, middle)
        return low

    def rate(self, batch: float, shape: Shape) -> float:
        """Return the requests per second that a steady batch completes: B / (O * ITL(B))."""
        return batch / (max(1.0, shape.output_tokens) * self.itl(batch, shape.mix))

    def gpu_seconds(self, shape: Shape, batch: float, step_tokens: int = 0) -> float:
        """Return the seconds of one replica that a request takes in a steady batch, its share of every step:
        O*a/B + b*((I-h)+O) + g*(O*I+O^2/2). Multiply by the replica's accelerators for GPU-seconds.

        Args:
            shape: the request.
            batch: sequences, at least 1.
            step_tokens: the most tokens that a step computes, 0 for no bound. Where prompts fill it, B is the room that
                is left: step_tokens / (1+(I-h)/O) sequences. The other sequences wait for their prompts.
        """
        batch = max(1.0, batch)
        if step_tokens:
            batch = min(batch, step_tokens / shape.mix.tokens)
        return max(1.0, shape.output_tokens) * self.itl(batch, shape.mix) / batch
