"""The usual pace of a pool: how long prefills and tokens take, learned from the records of its requests.

Low quartiles are taken, so that a time in which everything is slow does not soon count as usual.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.v1 import records_pb2 as api
from penstock.wire import duration_from_wire, duration_to_wire

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


@dataclass(frozen=True, slots=True)
class _Seen:
    batch: float
    computed: int
    """Prompt tokens that were not cached."""
    prefill_s: float
    itl_s: float | None
    prompt_tokens: int
    output_tokens: int


class Pace:
    """Pace of one pool, as one router sees it."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=REMEMBERED)

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

    def fill(self, record: api.RequestRecord) -> None:
        """Write into a record what would have been usual for it."""
        if self._seen:
            record.usual_prompt_tokens = round(statistics.median(each.prompt_tokens for each in self._seen))
            record.usual_output_tokens = round(statistics.median(each.output_tokens for each in self._seen))
        for choice in record.choices:
            for ran in choice.attempts:
                context = choice.prompt_tokens + ran.output_tokens / 2
                computed = max(1, choice.prompt_tokens - ran.cached_tokens)
                if (prefill := self._prefill_s(computed, ran.load_at_grant)) is not None:
                    ran.usual_prefill.CopyFrom(duration_to_wire(prefill))
                if (lone := self._itl_s(1.0, context, ran.load_at_grant)) is not None:
                    ran.lone_itl.CopyFrom(duration_to_wire(lone))
                if (usual := self._itl_s(batch_of(ran), context, ran.load_at_grant)) is not None:
                    ran.usual_itl.CopyFrom(duration_to_wire(max(usual, lone or 0.0)))

    def _itl_s(self, batch: float, context: float, load: api.ReplicaLoad) -> float | None:
        def similar(other: float) -> bool:
            if batch <= LONE:
                return other <= LONE
            return batch / _LIKE <= other <= batch * _LIKE

        found = self._quartile(each.itl_s for each in self._seen if similar(each.batch))
        if found is None and load.step_a:
            return load.step_a + load.step_b * batch + load.step_g * batch * context
        return found

    def _prefill_s(self, computed: int, load: api.ReplicaLoad) -> float | None:
        like = [each for each in self._seen if 1 / _PROMPT_LIKE <= each.computed / computed <= _PROMPT_LIKE]
        found = self._quartile(each.prefill_s for each in like)
        if found is not None:
            return found
        if load.step_a and load.step_tokens:
            steps = -(-computed // load.step_tokens)
            return steps * load.step_a + load.step_b * computed + load.step_g * computed * steps / 2
        per_token = self._quartile(each.prefill_s / each.computed for each in self._seen)
        least = self._quartile(each.prefill_s for each in self._seen)
        if per_token is None or least is None:
            return None
        return max(least, per_token * computed)

    @staticmethod
    def _quartile(values: Iterable[float | None]) -> float | None:
        known: Sequence[float] = sorted(each for each in values if each is not None)
        return known[len(known) // 4] if len(known) >= ENOUGH else None


class Paces:
    """Pace of every pool: what fills the records of a router, and learns from them."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def note(self, record: api.RequestRecord) -> None:
        """Write into a record what would have been usual for it, and learn from it."""
        pace = self._paces.setdefault(record.pool, Pace())
        pace.fill(record)
        pace.learn(record)


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
