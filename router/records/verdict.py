"""Why a request was slow. Pure: from the records of its calls to the parts of its time, a cause and one sentence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.v1 import records_pb2 as api
from penstock.wire import duration_from_wire
from router.records.causes import Cause, Excess, excesses, longest_choice
from router.records.pace import first_token_s

_WORTH = 0.2
"""Least part of the time that a cause must have taken. Below that a request took what it needed."""
_LEAST_S = 0.02
_LONG = 3.0
"""Factor of the pool's median from which a prompt or output is long."""
_BEFORE_FIRST_TOKEN = frozenset(
    {
        *(Cause.QUOTA, Cause.CONCURRENCY, Cause.REFUSED, Cause.NO_REPLICA, Cause.NO_ROOM, Cause.OTHER_TENANTS),
        *(Cause.URGENT_CLASS, Cause.OWN_REQUESTS, Cause.AFFINITY, Cause.QUEUE_UNAVAILABLE, Cause.SUSPECTED),
        *(Cause.ADMISSION, Cause.LONG_PROMPT_AHEAD, Cause.COLD_PREFIX, Cause.LONG_PROMPT, Cause.ROUTER_LOST),
    }
)
_WAITED = _BEFORE_FIRST_TOKEN - {Cause.COLD_PREFIX, Cause.LONG_PROMPT, Cause.ADMISSION}


@dataclass(frozen=True, slots=True)
class Explained:
    """Where the time of a request went."""

    parts: tuple[tuple[str, float], ...]
    """Names and seconds, in order. They add up to the total of the last call."""
    cause: str
    summary: str


def explain(calls: Sequence[api.RequestRecord], *, names: bool = True) -> Explained:
    """Explain the calls of one request; there is at least one. `names`: whether the reader may know other tenants'
    names.
    """
    last = calls[-1]
    parts = time_parts(last)
    total_s = _whole_s(calls)
    found = _merge(excess for excess in _all(calls, names=names) if excess.seconds > 0)
    most = max(_that_count(found, last), key=lambda excess: excess.seconds, default=None)
    if most is None or most.seconds < max(_LEAST_S, _WORTH * total_s):
        most = _needed(last, total_s)
    if most is None:
        return Explained(parts, Cause.NONE, f"It took {_seconds(total_s)}, which is usual for such a request.")
    verb = "Waited" if most.cause in _WAITED else "Spent"
    share = f"{verb} {_seconds(most.seconds)} of {_seconds(max(total_s, most.seconds))}"
    return Explained(parts, most.cause, f"{share} because {most.because}.")


def _that_count(found: Sequence[Excess], record: api.RequestRecord) -> Sequence[Excess]:
    """Return the excesses that made the request miss its SLO where it missed one, else all."""
    if record.slo.outcome == "ttft":
        early = [each for each in found if each.cause in _BEFORE_FIRST_TOKEN | {Cause.SLOW_ENGINE, Cause.REPLICA_LOST}]
        return early or found
    if record.slo.outcome == "itl":
        later = [each for each in found if each.cause not in _BEFORE_FIRST_TOKEN]
        return later or found
    return found


def _all(calls: Sequence[api.RequestRecord], *, names: bool) -> Iterator[Excess]:
    for call in calls:
        yield from excesses(call, names=names)
    first = calls[0]
    if first.resumed:
        yield _lost_call(first)
    for before, after in itertools.pairwise(calls):
        away_s = (after.arrived_at_ms - before.arrived_at_ms) / 1000 - duration_from_wire(before.total_time)
        # Its tokens were made meanwhile.
        away_s -= (after.usage.output_tokens - before.usage.output_tokens) * _lone_itl_s(after)
        yield Excess(Cause.CLIENT_AWAY, away_s, "its connection broke, and its client took that long to come back")


def _lost_call(record: api.RequestRecord) -> Excess:
    """Return what it cost that the router of an earlier call left no record: most likely it died. The time in which
    that call's tokens were made was not lost.
    """
    made_s = record.earlier_tokens * _lone_itl_s(record)
    tokens = f" after {record.earlier_tokens:,} tokens" if record.earlier_tokens else ""
    because = f"the router of its first call was lost{tokens}, and its client went on at {record.router_id}"
    return Excess(Cause.ROUTER_LOST, duration_from_wire(record.after_first_call) - made_s, because)


def _lone_itl_s(record: api.RequestRecord) -> float:
    return max((duration_from_wire(ran.lone_itl) for each in record.choices for ran in each.attempts), default=0.0)


def _needed(record: api.RequestRecord, total_s: float) -> Excess | None:
    """Return what made a request long that had no excess; None where it is an ordinary one."""
    choice = longest_choice(record)
    if choice is None or not choice.attempts:
        return None
    decode_s = sum(seconds for name, seconds in time_parts(record) if name == "decode")
    prefill_s = first_token_s(choice.attempts[0]) or 0.0
    usual_output, usual_prompt = record.usual_output_tokens, record.usual_prompt_tokens
    if decode_s >= prefill_s and decode_s > total_s / 2 and choice.output_tokens >= _LONG * max(1, usual_output):
        usual = f"; {usual_output:,} are usual" if usual_output else ""
        return Excess(Cause.LONG_OUTPUT, decode_s, f"it made {choice.output_tokens:,} output tokens{usual}")
    if prefill_s > decode_s and prefill_s > total_s / 2 and choice.prompt_tokens >= _LONG * max(1, usual_prompt):
        usual = f"; {usual_prompt:,} are usual" if usual_prompt else ""
        return Excess(Cause.LONG_PROMPT, prefill_s, f"its prompt has {choice.prompt_tokens:,} tokens{usual}")
    return None


def _merge(found: Iterator[Excess]) -> list[Excess]:
    """Add up the excesses of each cause, with the reason of the largest."""
    merged: dict[Cause, Excess] = {}
    largest: dict[Cause, float] = {}
    for excess in found:
        known = merged.get(excess.cause)
        total = excess.seconds + (known.seconds if known is not None else 0.0)
        because = excess.because if known is None or excess.seconds > largest[excess.cause] else known.because
        largest[excess.cause] = max(excess.seconds, largest.get(excess.cause, 0.0))
        merged[excess.cause] = Excess(excess.cause, total, because)
    return list(merged.values())


def _whole_s(calls: Sequence[api.RequestRecord]) -> float:
    """Return the seconds from when the client first asked to the end of the last call."""
    first, last = calls[0], calls[-1]
    before_s = duration_from_wire(first.refused.time) + duration_from_wire(first.after_first_call)
    return before_s + (last.arrived_at_ms - first.arrived_at_ms) / 1000 + duration_from_wire(last.total_time)


def time_parts(record: api.RequestRecord) -> tuple[tuple[str, float], ...]:
    """Divide the time of a call among its parts, by the choice that took longest."""
    total_s, admission_s = duration_from_wire(record.total_time), duration_from_wire(record.admission_time)
    delivery_s = duration_from_wire(record.delivery_time)
    queue_s = prefill_s = decode_s = lost_s = 0.0
    if record.choices:
        longest = max(record.choices, key=_ended_at)
        for ran in longest.attempts:
            ended_s, lost = duration_from_wire(ran.ended_at), duration_from_wire(ran.lost_time)
            granted_s = duration_from_wire(ran.granted_at) if ran.HasField("granted_at") else None
            first_s = duration_from_wire(ran.first_token_at) if ran.HasField("first_token_at") else None
            if granted_s is not None:
                queue_s += max(0.0, granted_s - duration_from_wire(ran.waits_from))
                prefill_s += max(0.0, (ended_s - lost if first_s is None else first_s) - granted_s)
            if first_s is not None:
                decode_s += max(0.0, ended_s - lost - first_s)
            lost_s += lost
        if not longest.attempts:
            queue_s = max(0.0, total_s - admission_s)
    known = admission_s + queue_s + prefill_s + decode_s + lost_s + delivery_s
    return (
        ("admission", admission_s),
        ("queue", queue_s),
        ("prefill", prefill_s),
        ("decode", decode_s),
        ("lost", lost_s),
        ("delivery", delivery_s),
        ("other", max(0.0, total_s - known)),
    )


def _ended_at(choice: api.ChoiceRecord) -> float:
    return max((duration_from_wire(ran.ended_at) for ran in choice.attempts), default=0.0)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
