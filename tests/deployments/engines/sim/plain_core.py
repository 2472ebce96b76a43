"""A plain scheduler that looks at every sequence in every step: what the one of the engine must equal."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from deployments.engines.limits import clamp_sequences, clamp_tokens
from deployments.engines.sim import CoreLimits, StepResult
from deployments.engines.sim.kv import KvBlocks, KvHold


@dataclass(slots=True, eq=False)
class _Entry:
    sequence_id: str
    prompt_tokens: int
    block_hashes: Sequence[int]
    produced: int = 0
    computed: int = 0
    """Tokens whose KV entries exist."""
    cached: int = 0
    """Prompt tokens found in the prefix cache at first admission."""
    hold: KvHold = field(default_factory=KvHold)

    @property
    def missing(self) -> int:
        return self.prompt_tokens + self.produced - self.computed


class PlainCore:
    """Holds the batch, the waiting line and the KV cache."""

    def __init__(self, limits: CoreLimits) -> None:
        self._largest = limits
        self.sequence_limit = limits.sequences
        self._wanted_tokens = limits.tokens
        self._kv = KvBlocks(limits.kv_tokens // limits.block_size, limits.block_size)
        self.entries: dict[str, _Entry] = {}
        self._running: list[_Entry] = []
        self._waiting: deque[_Entry] = deque()

    @property
    def token_budget(self) -> int:
        """Tokens that one step may process now."""
        return clamp_tokens(
            self._wanted_tokens,
            sequences=max(self.sequence_limit, len(self._running)),
            tokens_per_sequence=1,
            largest=self._largest.tokens,
        )

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences without a place in the batch."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Used part of the KV cache, 0 to 1."""
        return self._kv.usage

    def set_limits(self, sequences: int | None, tokens: int | None) -> None:
        """Move limits; None keeps one. Lowering drains, it never preempts."""
        if sequences is not None:
            self.sequence_limit = clamp_sequences(sequences, self._largest.sequences)
        if tokens is not None:
            self._wanted_tokens = tokens

    def add(self, sequence_id: str, prompt_tokens: int, block_hashes: Sequence[int] = ()) -> None:
        """Put a sequence at the end of the waiting line.

        Args:
            sequence_id: unique among those inside.
            prompt_tokens: at least 1.
            block_hashes: one hash per full block of the prompt; each depends on all tokens up to the block's end.
        """
        entry = _Entry(sequence_id, prompt_tokens, block_hashes)
        self.entries[sequence_id] = entry
        self._waiting.append(entry)

    def remove(self, sequence_id: str) -> None:
        """Take a sequence out and free its KV entries; unknown ids are ignored."""
        entry = self.entries.pop(sequence_id, None)
        if entry is None:
            return
        self._kv.release(entry.hold)
        if entry in self._running:
            self._running.remove(entry)
        else:
            self._waiting.remove(entry)

    def cached_tokens(self, sequence_id: str) -> int:
        """Return how many prompt tokens came from the prefix cache."""
        return self.entries[sequence_id].cached

    def step(self) -> StepResult:
        """Do one step; what it produced is known at its end only, so call `remove` then."""
        budget = self.token_budget
        shares: dict[_Entry, int] = {}
        preempted = self._schedule_running(shares, budget)
        admitted = [] if preempted else self._admit(shares, budget - sum(shares.values()))
        return self._advance(shares, admitted, preempted)

    def _schedule_running(self, shares: dict[_Entry, int], budget: int) -> list[_Entry]:
        preempted: list[_Entry] = []
        index = 0
        while index < len(self._running) and budget > 0:
            entry = self._running[index]
            share = min(entry.missing, budget)
            while not self._kv.grow(entry.hold, entry.computed + share):
                victim = self._running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is entry:
                    return preempted
            shares[entry] = share
            budget -= share
            index += 1
        return preempted

    def _admit(self, shares: dict[_Entry, int], budget: int) -> list[_Entry]:
        admitted: list[_Entry] = []
        while self._waiting and budget > 0 and len(self._running) < self.sequence_limit:
            entry = self._waiting[0]
            self._take_cached(entry)
            share = min(entry.missing, budget)
            fits = self._kv.fits(entry.hold, entry.computed + entry.missing)
            if not fits or not self._kv.grow(entry.hold, entry.computed + share):
                self._kv.release(entry.hold)
                entry.computed = 0
                break
            self._waiting.popleft()
            self._running.append(entry)
            admitted.append(entry)
            shares[entry] = share
            budget -= share
        return admitted

    def _advance(self, shares: dict[_Entry, int], admitted: list[_Entry], preempted: list[_Entry]) -> StepResult:
        produced = []
        for entry, share in shares.items():
            entry.computed += share
            self._kv.publish(entry.hold, entry.block_hashes, entry.computed)
            if not entry.missing:
                entry.produced += 1
                produced.append(entry.sequence_id)
        return StepResult(
            scheduled=_ids(shares),
            admitted=_ids(admitted),
            produced=tuple(produced),
            preempted=_ids(preempted),
            tokens=sum(shares.values()),
            kv_tokens=sum(entry.computed for entry in shares),
        )

    def _take_cached(self, entry: _Entry) -> None:
        # The last prompt token is always computed, as its output is needed.
        usable = entry.block_hashes[: (entry.prompt_tokens - 1) // self._largest.block_size]
        entry.computed = self._kv.take_cached(entry.hold, usable)
        if not entry.produced:
            entry.cached = entry.computed

    def _preempt(self, entry: _Entry) -> None:
        self._kv.release(entry.hold)
        entry.computed = 0
        self._waiting.appendleft(entry)


def _ids(entries: Sequence[_Entry] | dict[_Entry, int]) -> tuple[str, ...]:
    return tuple(entry.sequence_id for entry in entries)
