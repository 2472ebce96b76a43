"""Use and cost of a choice, over all its attempts."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from cluster.queue.entries import Settlement
from cluster.queue.heartbeats import ReplicaRecord
from cluster.settings import PoolSettings
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from penstock.wire import set_duration


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of tokens, in the currency of the settings per token. Replicas price their accelerators."""

    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0

    @classmethod
    def of(cls, settings: PoolSettings) -> Prices:
        """Take a pool's prices."""
        prompt = settings.price_per_million_prompt_tokens / 1e6
        cached = settings.price_per_million_cached_tokens
        return cls(
            prompt=prompt,
            cached=prompt if cached is None else cached / 1e6,
            output=settings.price_per_million_output_tokens / 1e6,
        )

    def tokens(self, prompt: int, cached: int, output: int) -> float:
        """Price tokens; `cached` are part of `prompt`."""
        return (prompt - cached) * self.prompt + cached * self.cached + output * self.output


class AttemptOutcome(enum.StrEnum):
    """End of an attempt."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    LOST = "lost"
    REFUSED = "refused"
    TAKEN_OVER = "taken_over"
    """Another call has it now."""


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Moments of an attempt, of the monotonic clock; 0 for what did not happen here."""

    queued_at: float
    """Since when its choice waited for the place."""
    granted_at: float
    began_at: float
    """First token."""
    ended_at: float


@dataclass(frozen=True, slots=True)
class FinishedAttempt:
    """One attempt that is over. Times are seconds; the end has the replica's own."""

    replica_id: str
    group_id: str
    queue_s: float
    prefill_s: float
    end: pb.AttemptEnd
    price_per_s: float
    lost_s: float = 0.0
    """From the last that was heard of it to when it was known to be lost."""
    name: str = ""
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED
    failure: str = ""
    """Kind of failure of a lost attempt."""
    times: AttemptTimes | None = None
    record: ReplicaRecord | None = None
    """Record of its replica at the grant."""


class AttemptMetering:
    """Sum over the attempts of a choice. Prompt tokens count once, though later attempts read them again."""

    def __init__(self, choice_index: int, prompt_tokens: int, prices: Prices, *, shares_prompt: bool = True) -> None:
        """`shares_prompt`: whether all choices of the request have the same prompt, which counts once."""
        self._choice_index = choice_index
        self._all_prompt_tokens = prompt_tokens
        self._prompt_tokens = prompt_tokens if choice_index == 0 or not shares_prompt else 0
        self._prices = prices
        self._attempts: list[FinishedAttempt] = []
        self._settled = 0
        """Attempts that the ledger has."""
        self.closed = False
        """Whether the store says that it has had the choice's end: the router that told it has counted that."""

    def add(self, ran: FinishedAttempt) -> None:
        """Note an attempt."""
        self._attempts.append(ran)

    @property
    def attempts(self) -> Sequence[FinishedAttempt]:
        """All attempts that are over."""
        return self._attempts

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, of those that count for this choice."""
        # The others of a shared prompt nearly always find all of it, which is not in the request's prompt tokens again.
        return min(self._attempts[0].end.cached_tokens, self._prompt_tokens) if self._attempts else 0

    @property
    def reasoning_tokens(self) -> int:
        """Output tokens that are reasoning: each attempt counts all output up to its end."""
        return max((ran.end.reasoning_tokens for ran in self._attempts), default=0)

    @property
    def gpu_seconds(self) -> float:
        """Of all attempts."""
        return sum(ran.end.gpu_seconds for ran in self._attempts)

    def cost(self, output_tokens: int) -> float:
        """Of all attempts; choice 0 carries the prompt. What never ran costs nothing, and is not in the ledger."""
        if not self._attempts:
            return 0.0
        return sum(ran.end.gpu_seconds * ran.price_per_s for ran in self._attempts) + self._token_cost(output_tokens)

    def partial(self, output_tokens: int) -> Settlement:
        """Settle the last attempt of a choice that goes on elsewhere."""
        last, self._settled = self._attempts[-1], len(self._attempts)
        return Settlement(output_tokens, gpu_seconds=last.end.gpu_seconds, cost=last.end.gpu_seconds * last.price_per_s)

    def final(self, output_tokens: int) -> Settlement | None:
        """Settle the end of the choice: its last attempt, unless that was settled when the choice went on, and its
        tokens. None where nothing ran.
        """
        if not self._attempts:
            return None
        last = self._attempts[-1]
        gpu_seconds = last.end.gpu_seconds if len(self._attempts) > self._settled else 0.0
        return Settlement(
            output_tokens,
            requests=int(self._choice_index == 0),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self.cached_tokens,
            gpu_seconds=gpu_seconds,
            cost=gpu_seconds * last.price_per_s + self._token_cost(output_tokens),
        )

    def _token_cost(self, output_tokens: int) -> float:
        return self._prices.tokens(self._prompt_tokens, self.cached_tokens, output_tokens)

    @property
    def fresh_prompt_tokens(self) -> int:
        """Prompt tokens that the last attempt computed."""
        cached = self._attempts[-1].end.cached_tokens if self._attempts else 0
        return max(0, self._all_prompt_tokens - cached)

    def receipts(self) -> list[types.AttemptReceipt]:
        """Explain the attempts."""
        return [self._receipt(ran) for ran in self._attempts]

    def _receipt(self, ran: FinishedAttempt) -> types.AttemptReceipt:
        receipt = types.AttemptReceipt(
            choice_index=self._choice_index,
            replica_id=ran.replica_id,
            group_id=ran.group_id,
            output_tokens=ran.end.output_tokens,
            cached_tokens=ran.end.cached_tokens,
            gpu_seconds=ran.end.gpu_seconds,
        )
        set_duration(receipt.queue_time, ran.queue_s)
        set_duration(receipt.prefill_time, ran.prefill_s)
        set_duration(receipt.decode_time, ran.end.decode_s)
        set_duration(receipt.engine_wait_time, ran.end.engine_wait_s)
        set_duration(receipt.lost_time, ran.lost_s)
        return receipt


class Metered(Protocol):
    """Choice, as far as it is counted."""

    @property
    def metering(self) -> AttemptMetering:
        """Attempts of the choice."""
        ...

    @property
    def tokens(self) -> int:
        """Output tokens so far."""
        ...

    @property
    def first_token_at(self) -> float:
        """Monotonic seconds of its first token; 0 before it."""
        ...


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the choices of a request, so far."""

    gpu_seconds: float
    cost: float
    """In the currency of the settings."""
    first_token_at: float | None
    """First token of any choice, monotonic seconds; None before it."""

    @classmethod
    def of(cls, choices: Sequence[Metered]) -> Self:
        """Add up choices."""
        return cls(
            sum(choice.metering.gpu_seconds for choice in choices),
            sum(choice.metering.cost(choice.tokens) for choice in choices),
            min((choice.first_token_at for choice in choices if choice.first_token_at), default=None),
        )
