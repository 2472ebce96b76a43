"""The usual pace of a pool: how long prefills and tokens take, learned from the records of its requests.

Low quartiles are taken, so that a time in which everything is slow does not soon count as usual.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from penstock.v1 import records_pb2 as api
from penstock.wire import duration_from_wire, set_duration

REMEMBERED = 512
"""Attempts that are remembered."""
ENOUGH = 3
"""Least number of similar attempts that say what is usual."""
LONE = 2
"""Largest batch that counts as empty but for the request itself."""
_LIKE = 1.5
"""Factor within which batches are similar."""
_PROMPT_LIKE = 2.0
"""Factor within which prompts are similar."""
_LEAST_TOKENS = 8
"""Least output tokens that an attempt's mean time between tokens rests on."""
_RENEWED_AFTER = 4
"""A summary is renewed after a quarter of what it rests on: with each request it would cost a millisecond."""


@dataclass(frozen=True, slots=True)
class _Seen:
    batch: float
    computed: int
    """Prompt tokens that were not cached."""
    prefill_s: float
    itl_s: float | None
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class _Usual:
    """Summary of attempts."""

    prompt_tokens: int
    output_tokens: int
    batches: Sequence[float]
    """Batches of attempts with a time between tokens, ascending."""
    itls_s: Sequence[float]
    """Times between tokens, in the order of `batches`."""
    computed: Sequence[int]
    """Computed prompt tokens, ascending."""
    prefills_s: Sequence[float]
    """Prefill times, in the order of `computed`."""
    least_prefill_s: float | None
    prefill_per_token_s: float | None
    known_itls: dict[float, float | None] = field(default_factory=dict)
    """Usual times between tokens that were asked for, by batch."""
    known_prefills: dict[int, float | None] = field(default_factory=dict)
    """Usual prefill times that were asked for, by length."""

    @classmethod
    def of(cls, seen: Sequence[_Seen]) -> Self:
        """Summarize attempts, at least one."""
        tokens = sorted((each.batch, each.itl_s) for each in seen if each.itl_s is not None)
        prefills = sorted((each.computed, each.prefill_s) for each in seen)
        return cls(
            prompt_tokens=round(statistics.median(each.prompt_tokens for each in seen)),
            output_tokens=round(statistics.median(each.output_tokens for each in seen)),
            batches=[batch for batch, _ in tokens],
            itls_s=[itl for _, itl in tokens],
            computed=[computed for computed, _ in prefills],
            prefills_s=[prefill for _, prefill in prefills],
            least_prefill_s=_quartile(prefill for _, prefill in prefills),
            prefill_per_token_s=_quartile(prefill / computed for computed, prefill in prefills),
        )

    def itl_s(self, batch: float) -> float | None:
        """Return the usual time between tokens in a batch of this size; None where too few are known."""
        if batch not in self.known_itls:
            least, most = (0.0, LONE) if batch <= LONE else (batch / _LIKE, batch * _LIKE)
            like = self.itls_s[bisect_left(self.batches, least) : bisect_right(self.batches, most)]
            self.known_itls[batch] = _quartile(like)
        return self.known_itls[batch]

    def prefill_s(self, computed: int) -> float | None:
        """Return the usual time of a prefill of this length; None where too few are known."""
        if computed not in self.known_prefills:
            least, most = computed / _PROMPT_LIKE, computed * _PROMPT_LIKE
            like = self.prefills_s[bisect_left(self.computed, least) : bisect_right(self.computed, most)]
            self.known_prefills[computed] = _quartile(like)
        return self.known_prefills[computed]


class Pace:
    """Pace of one pool, as one router sees it."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=REMEMBERED)
        self._usual: _Usual | None = None
        self._learned = 0
        """Attempts since the summary was renewed."""

    def learn(self, record: api.RequestRecord) -> None:
        """Learn from the attempts of a record that made all of their choice's output."""
        for choice in record.choices:
            if len(choice.attempts) != 1 or record.resumed:
                continue
            ran = choice.attempts[0]
            first_s = first_token_s(ran)
            if ran.outcome != api.ATTEMPT_OUTCOME_COMPLETED or first_s is None:
                continue
            computed = max(1, choice.prompt_tokens - ran.cached_tokens)
            self._seen.append(
                _Seen(batch_of(ran), computed, first_s, itl_s(ran), choice.prompt_tokens, ran.output_tokens)
            )
            self._learned += 1
        if self._learned and self._learned * _RENEWED_AFTER >= len(self._seen):
            self._usual, self._learned = _Usual.of(self._seen), 0

    def fill(self, record: api.RequestRecord) -> None:
        """Write into a record what would have been usual for it."""
        if self._usual is not None:
            record.usual_prompt_tokens = self._usual.prompt_tokens
            record.usual_output_tokens = self._usual.output_tokens
        for choice in record.choices:
            for ran in choice.attempts:
                context = choice.prompt_tokens + ran.output_tokens / 2
                computed = max(1, choice.prompt_tokens - ran.cached_tokens)
                if (prefill := self._prefill_s(computed, ran.load_at_grant)) is not None:
                    set_duration(ran.usual_prefill, prefill)
                if (lone := self._itl_s(1.0, context, ran.load_at_grant)) is not None:
                    set_duration(ran.lone_itl, lone)
                if (usual := self._itl_s(batch_of(ran), context, ran.load_at_grant)) is not None:
                    set_duration(ran.usual_itl, max(usual, lone or 0.0))

    def _itl_s(self, batch: float, context: float, load: api.ReplicaLoad) -> float | None:
        found = self._usual.itl_s(batch) if self._usual is not None else None
        if found is None and load.step_a:
            return load.step_a + load.step_b * batch + load.step_g * batch * context
        return found

    def _prefill_s(self, computed: int, load: api.ReplicaLoad) -> float | None:
        usual = self._usual
        found = usual.prefill_s(computed) if usual is not None else None
        if found is not None:
            return found
        if load.step_a and load.step_tokens:
            steps = -(-computed // load.step_tokens)
            return steps * load.step_a + load.step_b * computed + load.step_g * computed * steps / 2
        if usual is None or usual.prefill_per_token_s is None or usual.least_prefill_s is None:
            return None
        return max(usual.least_prefill_s, usual.prefill_per_token_s * computed)


class Paces:
    """Pace of every pool: what fills the records of a router, and learns from them."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def note(self, record: api.RequestRecord) -> None:
        """Write into a record what would have been usual for it, and learn from it."""
        pace = self._paces.setdefault(record.pool, Pace())
        pace.fill(record)
        pace.learn(record)


def _quartile(values: Iterable[float]) -> float | None:
    known = sorted(values)
    return known[len(known) // 4] if len(known) >= ENOUGH else None


def batch_of(ran: api.AttemptRecord) -> float:
    """Return the sequences in the batch of an attempt, itself included: the mean of what is known."""
    known = [ran.load_at_grant.running] if ran.HasField("load_at_grant") else []
    if ran.HasField("load_at_end"):
        known.append(ran.load_at_end.running)
    return max(1.0, sum(known) / len(known)) if known else 1.0


def first_token_s(ran: api.AttemptRecord) -> float | None:
    """Return the seconds from grant to first token; None where it had none, or another router got the place."""
    if not (ran.HasField("granted_at") and ran.HasField("first_token_at")):
        return None
    return max(0.0, duration_from_wire(ran.first_token_at) - duration_from_wire(ran.granted_at))


def itl_s(ran: api.AttemptRecord) -> float | None:
    """Return the mean seconds between two tokens of an attempt; None with too few of them."""
    if ran.output_tokens < _LEAST_TOKENS or not ran.HasField("first_token_at"):
        return None
    last_s = duration_from_wire(ran.ended_at) - duration_from_wire(ran.lost_time)
    return max(0.0, last_s - duration_from_wire(ran.first_token_at)) / (ran.output_tokens - 1)
