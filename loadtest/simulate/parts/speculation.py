"""Speculative decoding: a draft of some tokens, which one step of the model verifies.

A step gives a sequence the draft tokens up to the first that is not accepted, and one token more.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployments.engines.sim import NO_PARTS, CoreLimits, Parts, Turn
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.parts.core import PartsCore
from loadtest.simulate.parts.settings import Speculation
from loadtest.simulate.parts.tiers import TierStore


@dataclass(frozen=True, slots=True)
class SpeculativeTimes(StepTimes):
    """Step times with drafts: each decoding sequence has some of them verified."""

    inner: StepTimes
    """Times of the model."""
    draft_tokens: int
    draft_s: float
    """Of one pass of the draft model."""
    draft_per_sequence_s: float
    """Of one pass and one sequence."""
    verify_s: float
    """Of one draft token in the model's step, in place of the model's own time per token."""

    @classmethod
    def around(cls, inner: StepTimes, what: Speculation) -> SpeculativeTimes:
        """Return the times of a model that verifies drafts."""
        return cls(
            inner.base_s,
            inner.per_token_s,
            inner.per_kv_token_s,
            inner,
            what.draft_tokens,
            what.draft_s,
            what.draft_per_sequence_s,
            inner.per_token_s if what.verify_s is None else what.verify_s,
        )

    def times(self, factor: float) -> SpeculativeTimes:
        inner = self.inner.times(factor)
        return replace(
            self,
            base_s=inner.base_s,
            per_token_s=inner.per_token_s,
            per_kv_token_s=inner.per_kv_token_s,
            inner=inner,
            draft_s=factor * self.draft_s,
            draft_per_sequence_s=factor * self.draft_per_sequence_s,
            verify_s=factor * self.verify_s,
        )

    def with_prompts(self, decoded: int, filled: int, tokens: int, kv_tokens: int, decode_kv_tokens: int) -> float:
        plain = self.inner.with_prompts(decoded, filled, tokens, kv_tokens, decode_kv_tokens)
        if not decoded:
            return plain
        drafted = self.draft_tokens * decoded
        draft_s = self.draft_tokens * (self.draft_s + decoded * self.draft_per_sequence_s)
        return plain + draft_s + drafted * (self.verify_s - self.inner.per_token_s)


class SpeculationTally:
    """Draft tokens of a run."""

    def __init__(self) -> None:
        self.steps = 0
        """Steps, added up over their decoding sequences."""
        self.accepted = 0

    def as_json(self, what: Speculation) -> dict[str, Any]:
        """Return the figures of a run."""
        drafted = self.steps * what.draft_tokens
        return {
            "draft_tokens": drafted,
            "accepted": self.accepted / drafted if drafted else 0.0,
            "tokens_per_step": 1 + self.accepted / self.steps if self.steps else 0.0,
            "expected_tokens_per_step": what.tokens_per_step,
        }


class SpeculativeCore(PartsCore):
    """Batch whose decoding sequences advance by a token and the accepted ones of a draft. It looks at every sequence in
    every step.
    """

    def __init__(
        self, limits: CoreLimits, what: Speculation, seed: int, tally: SpeculationTally, tiers: TierStore | None = None
    ) -> None:
        super().__init__(limits, tiers)
        self._what = what
        self._seed = seed
        self._tally = tally
        self._draws: dict[str, random.Random] = {}
        self.gained: dict[str, int] = {}
        """Tokens of each sequence that decoded in the last step."""

    def add(self, sequence_id: str, prompt_tokens: int, block_hashes: Sequence[int] = ()) -> None:
        self._draws[sequence_id] = random.Random(f"{self._seed} {sequence_id} {prompt_tokens}")
        super().add(sequence_id, prompt_tokens, block_hashes)

    def remove(self, sequence_id: str) -> None:
        self._draws.pop(sequence_id, None)
        super().remove(sequence_id)

    def output_tokens(self, sequence_id: str) -> int:
        return self._entries[sequence_id].produced

    def steady_turns(self, most: int) -> int:
        """Return 0: no step is like the next."""
        return 0

    def parts(self, most: int) -> Parts:
        """Return none: no step is like the next."""
        return NO_PARTS

    def turn(self) -> Turn:
        budget, drafts = self.token_budget, self._what.draft_tokens
        batch = [*self._decoding.values(), *([] if self._filling is None else [self._filling])]
        decoding, shares, preempted = set(batch[: len(self._decoding)]), dict[Any, int](), list[Any]()
        place = 0
        while place < len(batch) and budget > 0:
            entry = batch[place]
            share = min(entry.missing + (drafts if entry in decoding else 0), budget)
            while not self._kv.grow(entry.hold, entry.computed + share):
                victim = batch.pop()
                if victim in decoding:
                    self._leave(victim)
                self._preempt(victim)
                preempted.append(victim)
                if victim is entry:
                    break
            else:
                shares[entry] = share
                budget -= share
            place += 1
        self.turns += 1
        self.gained, tokens, kv_tokens = {}, 0, 0
        for entry in [entry for entry in shares if entry in decoding]:
            share = shares.pop(entry)
            tokens += share
            kv_tokens += entry.computed + share
            gained = 1 + self._accepted(entry.sequence_id, share - 1)
            entry.computed += gained
            entry.produced += gained
            self._decode_kv += gained
            self.gained[entry.sequence_id] = gained
        admitted = [] if preempted else self._admit(shares, budget)
        prefilled = self._fill(shares)
        starved = [entry for entry in batch if entry in decoding and entry.sequence_id not in self.gained]
        return Turn(
            len(self.gained),
            tuple(entry.sequence_id for entry in shares),
            tuple(entry.sequence_id for entry in admitted),
            tuple(entry.sequence_id for entry in prefilled),
            tuple(entry.sequence_id for entry in preempted),
            tuple(entry.sequence_id for entry in starved),
            tokens + sum(shares.values()),
            kv_tokens + sum(entry.computed for entry in shares),
        )

    def _accepted(self, sequence_id: str, drafts: int) -> int:
        draw, accepted = self._draws[sequence_id].random, 0
        while accepted < drafts and draw() < self._what.acceptance:
            accepted += 1
        self._tally.steps += 1
        self._tally.accepted += accepted
        return accepted

    def _join(self, entry: Any) -> None:
        entry.since = self.turns
        self._decoding[entry.sequence_id] = entry
        self._decode_kv += entry.computed

    def _leave(self, entry: Any) -> None:
        self._decode_kv -= entry.computed
        del self._decoding[entry.sequence_id]
