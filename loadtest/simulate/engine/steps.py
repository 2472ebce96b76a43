"""Times of engine steps, and the log of a replica's steps."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

import numpy as np

from cluster.control.step_model import Experts
from cluster.settings import SimSettings
from deployments.engines.sim import Parts

_MANY = 32
"""Steps that are worked out sooner as an array."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step model: T = base + per_token * tokens + per_kv_token * context read, in seconds."""

    base_s: float
    per_token_s: float
    per_kv_token_s: float

    @classmethod
    def of(cls, settings: SimSettings) -> StepTimes:
        """Return the step model of the simulated engine's settings, without its time_scale."""
        return cls(settings.base_ms / 1e3, settings.per_token_us / 1e6, settings.per_kv_token_us / 1e6)

    def times(self, factor: float) -> StepTimes:
        """Return the model of an engine that takes `factor` times as long."""
        return replace(
            self,
            base_s=factor * self.base_s,
            per_token_s=factor * self.per_token_s,
            per_kv_token_s=factor * self.per_kv_token_s,
        )

    def one(self, tokens: int, kv_tokens: int) -> float:
        """Return the seconds of one step."""
        return self.base_s + self.per_token_s * tokens + self.per_kv_token_s * kv_tokens

    def with_prompts(self, decoded: int, filled: int, tokens: int, kv_tokens: int, decode_kv_tokens: int) -> float:
        """Return the seconds of one step that may compute parts of prompts.

        Args:
            decoded: sequences that decode.
            filled: sequences with a part of their prompt in the step.
            tokens: computed, of both.
            kv_tokens: context read, of both.
            decode_kv_tokens: context of those that decode.
        """
        return self.one(tokens, kv_tokens)

    def run(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        """Return the seconds of each of several steps in which `sequences` decode. Together they have read `kv_tokens`
        before the first. The numbers are the same, to the last bit, as one by one.
        """
        fixed, slope = self.base_s + self.per_token_s * sequences, self.per_kv_token_s
        read = range(kv_tokens + sequences, kv_tokens + sequences * steps + 1, sequences)
        if steps < _MANY:
            return [fixed + slope * kv for kv in read]
        seconds: list[float] = (fixed + slope * np.arange(read.start, read.stop, read.step)).tolist()
        return seconds

    def fill(self, sequences: int, kv_tokens: int, parts: Parts) -> list[float]:
        """Return the seconds of each of several steps in which `sequences` decode and a prompt gets a part. The
        sequences have read `kv_tokens` before the first. The numbers are the same, to the last bit, as one by one.
        """
        turns, share, computed = parts
        tokens = sequences + share
        seconds = []
        for step in range(1, turns + 1):
            decodes = kv_tokens + step * sequences
            seconds.append(self.with_prompts(sequences, 1, tokens, decodes + computed + step * share, decodes))
        return seconds


_ONE = Experts(1, 1)


@dataclass(frozen=True, slots=True)
class ExpertTimes(StepTimes):
    """Step model of a mixture of experts: a step also reads the experts that its tokens chose."""

    experts_s: float = 0.0
    """Seconds to read all experts."""
    experts: Experts = _ONE

    def times(self, factor: float) -> ExpertTimes:
        return replace(
            self,
            base_s=factor * self.base_s,
            per_token_s=factor * self.per_token_s,
            per_kv_token_s=factor * self.per_kv_token_s,
            experts_s=factor * self.experts_s,
        )

    def one(self, tokens: int, kv_tokens: int) -> float:
        linear = self.base_s + self.per_token_s * tokens + self.per_kv_token_s * kv_tokens
        return linear + self.experts_s * self.experts.share_read(tokens)

    def run(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        last = kv_tokens + sequences * steps
        return [self.one(sequences, kv) for kv in range(kv_tokens + sequences, last + 1, sequences)]


@dataclass(slots=True)
class StepLog:
    """Every step that a replica began, one column per figure."""

    whole: bool = True
    """Whether all columns are kept. A run without a batch policy needs times and gaps only."""

    seconds: array[float] = field(default_factory=lambda: array("d"))
    decoded: array[int] = field(default_factory=lambda: array("l"))
    """Sequences whose last token came in the previous step. Their gaps between tokens are as long as this step."""
    sequences: array[int] = field(default_factory=lambda: array("l"))
    tokens: array[int] = field(default_factory=lambda: array("l"))
    kv_tokens: array[int] = field(default_factory=lambda: array("l"))
    dropped: int = 0
    """Steps before the first one that is kept."""

    def __len__(self) -> int:
        return self.dropped + len(self.seconds)

    def since(self, step: int) -> array[float]:
        """Return the seconds of the steps from one on, counted from the first step ever."""
        return self.seconds[step - self.dropped :]

    def drop(self, before: int) -> tuple[array[float], array[int]]:
        """Drop the steps before one. Return their seconds, and the gaps between tokens that each stands for."""
        count = max(0, before - self.dropped)
        gone = self.seconds[:count], self.decoded[:count]
        for column in (self.seconds, self.decoded, self.sequences, self.tokens, self.kv_tokens):
            del column[:count]
        self.dropped += count
        return gone

    def add(self, seconds: float, decoded: int, sequences: int, tokens: int, kv_tokens: int) -> None:
        self.seconds.append(seconds)
        self.decoded.append(decoded)
        if not self.whole:
            return
        self.sequences.append(sequences)
        self.tokens.append(tokens)
        self.kv_tokens.append(kv_tokens)

    def add_run(self, seconds: list[float], sequences: int, kv_tokens: int, share: int = 0) -> None:
        """Add steps in which `sequences` decode and one more has `share` tokens of its prompt computed, unless that is
        0. Together they have read `kv_tokens` before the first.
        """
        steps = len(seconds)
        self.seconds.fromlist(seconds)
        self.decoded.extend(array("l", (sequences,)) * steps)
        if not self.whole:
            return
        tokens = sequences + share
        self.sequences.extend(array("l", (sequences + (share > 0),)) * steps)
        self.tokens.extend(array("l", (tokens,)) * steps)
        self.kv_tokens.extend(range(kv_tokens + tokens, kv_tokens + tokens * steps + 1, tokens))
