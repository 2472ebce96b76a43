"""How long engine steps take, and the log of a replica's steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.settings import SimSettings


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Is the step model: T = base + per_token * tokens + per_kv_token * context read; seconds."""

    base_s: float
    per_token_s: float
    per_kv_token_s: float

    @classmethod
    def of(cls, settings: SimSettings) -> StepTimes:
        """Take the settings of the simulated engine, without its time_scale."""
        return cls(settings.base_ms / 1e3, settings.per_token_us / 1e6, settings.per_kv_token_us / 1e6)

    def one(self, tokens: int, kv_tokens: int) -> float:
        """Return how long a step takes."""
        return self.base_s + self.per_token_s * tokens + self.per_kv_token_s * kv_tokens

    def run(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        """Return how long each of several steps takes in which `sequences` decode; together they have read `kv_tokens`
        before the first. The same numbers, to the last bit, as one by one.
        """
        fixed, slope = self.base_s + self.per_token_s * sequences, self.per_kv_token_s
        last = kv_tokens + sequences * steps
        return [fixed + slope * kv for kv in range(kv_tokens + sequences, last + 1, sequences)]


@dataclass(slots=True)
class StepLog:
    """Is every step that a replica began, one column per figure."""

    seconds: array[float] = field(default_factory=lambda: array("d"))
    decoded: array[int] = field(default_factory=lambda: array("l"))
    """Sequences whose last token came in the step before: so many gaps between tokens are as long as this step."""
    sequences: array[int] = field(default_factory=lambda: array("l"))
    tokens: array[int] = field(default_factory=lambda: array("l"))
    kv_tokens: array[int] = field(default_factory=lambda: array("l"))

    def __len__(self) -> int:
        return len(self.seconds)

    def add(self, seconds: float, decoded: int, sequences: int, tokens: int, kv_tokens: int) -> None:
        """Note one step."""
        self.seconds.append(seconds)
        self.decoded.append(decoded)
        self.sequences.append(sequences)
        self.tokens.append(tokens)
        self.kv_tokens.append(kv_tokens)

    def add_run(self, seconds: Sequence[float], sequences: int, kv_tokens: int) -> None:
        """Note steps in which `sequences` decode; together they have read `kv_tokens` before the first."""
        steps = len(seconds)
        same = array("l", [sequences]) * steps
        self.seconds.extend(seconds)
        self.decoded.extend(same)
        self.sequences.extend(same)
        self.tokens.extend(same)
        self.kv_tokens.extend(range(kv_tokens + sequences, kv_tokens + sequences * steps + 1, sequences))
