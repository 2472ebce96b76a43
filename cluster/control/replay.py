"""Replays steps that were measured with another batch size: which one keeps a latency percentile within a bound.

There are two kinds of steps: pure decodes, and those that also compute a piece of a prompt. A larger batch makes both
longer, and the second kind more frequent, as prompts come in proportion to the batch. A percentile jumps where that
kind becomes frequent enough to reach it, which no formula of the mean shows. So each measured step is stretched as the
step model says, and weighted by how often it would occur; at the present batch this is the measurement itself, and the
model has to bridge the difference only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.control.step_model import StepModel, StepSample

_LEAST_STRETCH = 1e-9


@dataclass(frozen=True, slots=True)
class _Seen:
    decode_s: float
    """What one sequence's decode and context take of the step, by the model."""
    prompt_tokens: int
    off: float
    """Measured over predicted."""
    sequences: int


class Replay:
    """Holds the steps of the last seconds."""

    def __init__(self, samples: Sequence[StepSample], model: StepModel) -> None:
        self._model = model
        self._seen: list[_Seen] = []
        for sample in samples:
            predicted = model.predict(sample.tokens, sample.kv_tokens)
            if sample.sequences < 1 or predicted <= 0:
                continue
            per_sequence = model.b + model.g * sample.kv_tokens / sample.sequences
            prompt_tokens = max(0, sample.tokens - sample.sequences)
            self._seen.append(_Seen(per_sequence, prompt_tokens, sample.seconds / predicted, sample.sequences))
        self._prompt_share = sum(1 for s in self._seen if s.prompt_tokens) / len(self._seen) if self._seen else 0.0
        self._batch = sum(s.sequences for s in self._seen) / len(self._seen) if self._seen else 0.0

    @property
    def steps(self) -> int:
        """Steps that are replayed."""
        return len(self._seen)

    def itl(self, batch: float, part: float) -> float:
        """Return the latency that `part` of the tokens would stay within at this batch, seconds; 0 without steps."""
        if not self._seen:
            return 0.0
        # Prompts enter a batch in proportion to its size; past one in every step there are several per step.
        wanted = self._prompt_share * batch / self._batch
        share = min(1.0, wanted)
        with_prompt = share / self._prompt_share if self._prompt_share else 0.0
        without = (1.0 - share) / (1.0 - self._prompt_share) if self._prompt_share < 1.0 else 0.0
        more = max(1.0, wanted)
        steps = [
            (self._seconds(seen, batch, more), with_prompt if seen.prompt_tokens else without) for seen in self._seen
        ]
        return percentile(steps, part)

    def batch_for_itl(self, itl_s: float, part: float, largest: float) -> float:
        """Return the largest batch up to `largest` at which `part` of the tokens stay within `itl_s`; 0 for none."""
        if self.itl(largest, part) <= itl_s:
            return largest
        if self.itl(_LEAST_STRETCH, part) > itl_s:
            return 0.0
        low, high = 0.0, largest
        while high - low > 0.01 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.itl(middle, part) <= itl_s else (low, middle)
        return low

    def _seconds(self, seen: _Seen, batch: float, more: float) -> float:
        model = self._model
        seconds = model.a + batch * seen.decode_s + model.b * seen.prompt_tokens * more
        if model.experts is not None:
            seconds += model.m * model.experts.share_read(batch + seen.prompt_tokens * more)
        return seconds * seen.off


def percentile(pairs: list[tuple[float, float]], part: float) -> float:
    """Return the smallest value that `part` of the weight does not exceed; 0 without pairs."""
    pairs.sort()
    left = part * sum(weight for _, weight in pairs)
    for value, weight in pairs:
        left -= weight
        if left <= 1e-12:
            return value
    return pairs[-1][0] if pairs else 0.0


def itl_of(samples: Sequence[StepSample], part: float) -> float:
    """Return the measured latency that `part` of the tokens stayed within, seconds; 0 without samples."""
    return percentile([(sample.seconds, float(sample.sequences)) for sample in samples], part)
