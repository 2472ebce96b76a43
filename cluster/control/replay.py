"""Replay of measured steps with another batch size, to see which one keeps a latency percentile within a bound.

There are two kinds of steps: pure decodes, and steps that also compute a piece of a prompt. A larger batch makes both
longer. It also makes the second kind more frequent, because prompts come in proportion to the batch. A percentile jumps
where that kind becomes frequent enough to reach it, which no formula of the mean shows. So the replay stretches each
measured step as the step model says, and weights it by how often it would occur. At the present batch this is the
measurement itself, so the model only has to bridge the difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cluster.control.step_model import StepModel, StepSample

_LEAST_STRETCH = 1e-9


class Replay:
    """Replay of the steps of the last seconds.

    Args:
        samples: the measured steps.
        model: the step model.
        step_tokens: the most tokens that a step computes; 0 for no bound.
        even: take all steps to differ from the model by the same factor, as if nothing had disturbed any.
    """

    def __init__(
        self, samples: Sequence[StepSample], model: StepModel, *, step_tokens: int = 0, even: bool = False
    ) -> None:
        self.model = model
        self._step_tokens = step_tokens or math.inf
        known = [
            (sample, predicted)
            for sample in samples
            if sample.sequences >= 1 and (predicted := model.predict(sample.tokens, sample.kv_tokens)) > 0
        ]
        offs = [sample.seconds / predicted for sample, predicted in known] if even else []
        middle = statistics.median(offs) if offs else 1.0
        # Per step: measured / predicted, seconds per sequence, and prompt tokens.
        self._seen: list[tuple[float, float, int]] = []
        sequences = with_prompt = 0
        b, g = model.b, model.g
        for (seconds, tokens, kv_tokens, count), predicted in known:
            off = middle if even else seconds / predicted
            prompt_tokens = tokens - count if tokens > count else 0
            self._seen.append((off, b + g * kv_tokens / count, prompt_tokens))
            sequences += count
            with_prompt += prompt_tokens > 0
        steps = max(1, len(self._seen))
        self._prompt_share, self._batch = with_prompt / steps, sequences / steps

    def prompt_step_s(self, batch: float) -> float:
        """Return the median seconds of a step with a piece of a prompt at this batch; 0 without any."""
        found = [self._seconds(off, batch, each, prompt) for off, each, prompt in self._seen if prompt]
        return statistics.median(found) if found else 0.0

    @property
    def steps(self) -> int:
        """Number of replayed steps."""
        return len(self._seen)

    def itl(self, batch: float, part: float) -> float:
        """Return the latency that `part` of the tokens would stay within at this batch, seconds; 0 without steps."""
        if not self._seen:
            return 0.0
        # Prompts enter a batch in proportion to its size. Beyond one per step there are several, as far as a step
        # takes them.
        wanted = self._prompt_share * batch / self._batch
        share = min(1.0, wanted)
        with_prompt = share / self._prompt_share if self._prompt_share else 0.0
        without = (1.0 - share) / (1.0 - self._prompt_share) if self._prompt_share < 1.0 else 0.0
        more, room = max(1.0, wanted), max(0.0, self._step_tokens - batch)
        model = self.model
        a, b = model.a, model.b
        if model.experts is None:
            # The same as below, in the form that takes the least time: decisions ask for it many times.
            return percentile(
                [
                    (off * (a + batch * each + b * min(more * prompt, room)), with_prompt)
                    if prompt
                    else (off * (a + batch * each + b * 0.0), without)
                    for off, each, prompt in self._seen
                ],
                part,
            )
        steps = []
        for off, each, prompt in self._seen:
            seconds = self._seconds(off, batch, each, min(more * prompt, room))
            steps.append((seconds, with_prompt if prompt else without))
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

    def _seconds(self, off: float, batch: float, each: float, prompt_tokens: float) -> float:
        model = self.model
        seconds = model.a + batch * each + model.b * prompt_tokens
        if model.experts is not None:
            seconds += model.m * model.experts.share_read(batch + prompt_tokens)
        return off * seconds


def percentile(pairs: list[tuple[float, float]], part: float) -> float:
    """Return the smallest value that `part` of the weight does not exceed; 0 without pairs."""
    pairs.sort()
    left = part * sum([weight for _, weight in pairs])
    for value, weight in pairs:
        left -= weight
        if left <= 1e-12:
            return value
    return pairs[-1][0] if pairs else 0.0


def itl_of(samples: Sequence[StepSample], part: float) -> float:
    """Return the measured latency that `part` of the tokens stayed within, seconds; 0 without samples."""
    return percentile([(sample.seconds, float(sample.sequences)) for sample in samples], part)
