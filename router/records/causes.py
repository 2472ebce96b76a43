"""Causes of slow requests: what each could have cost a request. Pure: from the record of one call to excesses."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.v1 import records_pb2 as api
from penstock.wire import duration_from_wire, request_class_from_wire
from router.records.pace import LONE, batch_of, first_token_s, itl_s


class Cause(enum.StrEnum):
    """Cause of a slow request."""

    NONE = "none"
    """It took what such a request needs."""
    QUOTA = "quota"
    CONCURRENCY = "concurrency"
    REFUSED = "refused"
    """The queue was full, or the cluster refused it for another reason, and its client came back."""
    NO_REPLICA = "no_replica"
    """No replica took work: all were starting, or gone."""
    NO_ROOM = "no_room"
    OTHER_TENANTS = "other_tenants"
    """Requests of other tenants were ahead, or held the slots."""
    URGENT_CLASS = "urgent_class"
    OWN_REQUESTS = "own_requests"
    AFFINITY = "affinity"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    SUSPECTED = "suspected"
    """An engine died under it, and it had to run alone."""
    ADMISSION = "admission"
    LONG_PROMPT_AHEAD = "long_prompt_ahead"
    COLD_PREFIX = "cold_prefix"
    LONG_PROMPT = "long_prompt"
    """Its own."""
    LONG_OUTPUT = "long_output"
    LARGE_BATCH = "large_batch"
    SLOW_ENGINE = "slow_engine"
    """Steps took longer than usual for their batch."""
    PREEMPTED = "preempted"
    REPLICA_LOST = "replica_lost"
    DRAINED = "drained"
    SLOW_READER = "slow_reader"
    ROUTER_LOST = "router_lost"
    CLIENT_AWAY = "client_away"
    """Its connection broke, and the client took a while to come back."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Excess:
    """Time that a cause added to a request."""

    cause: Cause
    seconds: float
    because: str
    """End of a sentence that begins with how long it took."""


_NAMED = {
    "tokens_per_minute": "tokens per minute",
    "requests_per_minute": "requests per minute",
}
_FAILURES = {
    "link": "its connection broke",
    "engine": "its engine failed the request",
    "engine_died": "its engine died",
    "stalled": "it sent nothing more",
}
_HALF = 0.5
_SLOW = 1.5
"""Factor of the usual time from which steps are slow for their batch."""
_LIKELY_PREFILL = 0.25
"""Least part of a prompt that must have been cached before for a cold prefix to be worth a word."""
_ADMISSION_S = 0.02
"""Usual time for validation, template and tokenization, at most."""
_LEAST_S = 0.001


def excesses(record: api.RequestRecord, *, names: bool) -> Iterator[Excess]:
    """Yield what a call took beyond what it needed. `names`: whether the reader may know other tenants' names."""
    if record.HasField("refused"):
        yield _refused(record)
    admission_s = duration_from_wire(record.admission_time)
    if admission_s > _ADMISSION_S:
        prompt = f"{record.usage.prompt_tokens:,} prompt tokens"
        yield Excess(
            Cause.ADMISSION, admission_s - _ADMISSION_S, f"checking and tokenizing its {prompt} took that long"
        )
    if (choice := longest_choice(record)) is not None:
        yield from _waits(record, choice, names=names)
        yield from _attempts(record, choice)
    delivery_s = duration_from_wire(record.delivery_time)
    if delivery_s:
        yield Excess(Cause.SLOW_READER, delivery_s, "its client read the output so slowly after all of it was made")


def longest_choice(record: api.RequestRecord) -> api.ChoiceRecord | None:
    """Return the choice that ended last; None without choices."""
    return max(record.choices, key=lambda choice: max(map(_ended_s, choice.attempts), default=0.0), default=None)


# --- before its first place -------------------------------------------------------------------------------------------


def _refused(record: api.RequestRecord) -> Excess:
    refused = record.refused
    seconds, times = duration_from_wire(refused.time), _times(refused.times)
    tenant = record.tenant
    if refused.quota == "concurrency":
        because = f"tenant {tenant} had its {_requests(refused.limit)} at a time already (refused {times})"
        return Excess(Cause.CONCURRENCY, seconds, because)
    if refused.quota in ("cost_per_day", "cost_per_month"):
        period = refused.quota.removeprefix("cost_per_")
        return Excess(Cause.QUOTA, seconds, f"tenant {tenant} had used its budget of the {period} (refused {times})")
    if refused.quota:
        what = f"{refused.limit:,} {_NAMED.get(refused.quota, refused.quota)}"
        return Excess(Cause.QUOTA, seconds, f"tenant {tenant} had used its {what} (refused {times})")
    if refused.reason == "NO_REPLICA":
        return Excess(Cause.NO_REPLICA, seconds, f"pool {record.pool} had no replica that took work (refused {times})")
    if refused.reason == "QUEUE_UNAVAILABLE":
        return Excess(Cause.QUEUE_UNAVAILABLE, seconds, f"Redis did not answer (refused {times})")
    return Excess(Cause.REFUSED, seconds, f"the call was refused {times}: {refused.error}")


def _waits(record: api.RequestRecord, choice: api.ChoiceRecord, *, names: bool) -> Iterator[Excess]:
    """Yield the waits for its first place; those after an attempt that ended early count to that."""
    again_s = sum(_wait_s(ran) for ran in choice.attempts[1:])
    for part in reversed(choice.waits):
        seconds = duration_from_wire(part.time)
        if part.reason == api.WAIT_REASON_SUSPECTED:
            yield Excess(Cause.SUSPECTED, seconds, "an engine died under it, and it had to wait to run alone")
            again_s -= seconds
    for part in reversed(choice.waits):
        if part.reason == api.WAIT_REASON_SUSPECTED:
            continue
        seconds = duration_from_wire(part.time)
        # What it waited later came after most of what it waited first, and there is no more to tell them apart.
        later_s = min(max(0.0, again_s), seconds)
        again_s -= later_s
        if seconds - later_s >= _LEAST_S:
            cause, because = _why(part.reason, record, choice, names=names)
            yield Excess(cause, seconds - later_s, because)


def _why(
    reason: api.WaitReason.ValueType, record: api.RequestRecord, choice: api.ChoiceRecord, *, names: bool
) -> tuple[Cause, str]:
    pool, tenant = record.pool, record.tenant
    if reason == api.WAIT_REASON_NO_REPLICA:
        return Cause.NO_REPLICA, f"pool {pool} had no replica that took work"
    if reason == api.WAIT_REASON_QUEUE_UNAVAILABLE:
        return Cause.QUEUE_UNAVAILABLE, "Redis did not answer"
    if reason == api.WAIT_REASON_QUOTA:
        return Cause.QUOTA, f"tenant {tenant} had used its quota"
    if reason == api.WAIT_REASON_AFFINITY:
        return Cause.AFFINITY, "requests whose prefix was cached on the free replica were granted before it"
    if choice.full_window == "prefill":
        return Cause.LONG_PROMPT_AHEAD, "long prompts ahead of it filled the replicas' prefill windows"
    if reason == api.WAIT_REASON_CLASS:
        return Cause.URGENT_CLASS, _urgent(record, choice)
    if reason == api.WAIT_REASON_TENANTS:
        return Cause.OTHER_TENANTS, _others(record, choice, names=names)
    if reason == api.WAIT_REASON_OWN_TENANT:
        own = _ahead(choice, lambda each: each.tenant == tenant and each.request_class == record.request_class)
        return Cause.OWN_REQUESTS, f"{_earlier(own, tenant)} of the same class were ahead of it"
    return _no_room(record, choice, names=names)


def _no_room(record: api.RequestRecord, choice: api.ChoiceRecord, *, names: bool) -> tuple[Cause, str]:
    """Tell who had the slots while it was the next in line."""
    urgent = sum(each.share for each in choice.holders if each.request_class < record.request_class)
    if urgent > _HALF:
        return Cause.URGENT_CLASS, f"more urgent requests held {urgent:.0%} of the slots"
    other = max(
        (each for each in choice.holders if each.tenant != record.tenant), key=lambda each: each.share, default=None
    )
    if other is not None and other.share > _HALF:
        whose = f"tenant {other.tenant}" if names and other.tenant else "another tenant"
        return Cause.OTHER_TENANTS, f"requests of {whose} held {other.share:.0%} of the slots"
    own = sum(each.share for each in choice.holders if each.tenant == record.tenant)
    if own > _HALF:
        return Cause.OWN_REQUESTS, f"earlier requests of tenant {record.tenant} held {own:.0%} of the slots"
    what = "KV cache" if choice.full_window == "kv" else "batch"
    return Cause.NO_ROOM, f"every replica of pool {record.pool} had a full {what}"


def _urgent(record: api.RequestRecord, choice: api.ChoiceRecord) -> str:
    count = _ahead(choice, lambda each: each.request_class != record.request_class)
    mine = request_class_from_wire(record.request_class).name
    if not count:
        return f"more urgent requests came before it: its class is {mine}"
    return f"{_requests(count)} of other classes came before it: its class is {mine}"


def _others(record: api.RequestRecord, choice: api.ChoiceRecord, *, names: bool) -> str:
    def other(each: api.LineAhead) -> bool:
        return each.tenant != record.tenant and each.request_class == record.request_class

    count = _ahead(choice, other)
    most = next((each for each in choice.ahead if other(each)), None)
    if most is None or not count:
        return "it was the turn of other tenants"
    if not names or not most.tenant:
        return f"{_requests(count)} of other tenants were ahead of it"
    if most.waiting == count:
        return f"{_requests(count)} of tenant {most.tenant} were ahead of it"
    return f"{_requests(count)} of other tenants were ahead of it, most of them ({most.waiting:,}) of {most.tenant}"


# --- on its replicas --------------------------------------------------------------------------------------------------


def _attempts(record: api.RequestRecord, choice: api.ChoiceRecord) -> Iterator[Excess]:
    before: api.AttemptRecord | None = None
    for ran in choice.attempts:
        if before is not None:
            yield _again(before, ran, choice)
        elif not record.resumed:
            yield from _prefill(choice, ran)
        if ran.outcome == api.ATTEMPT_OUTCOME_LOST and (lost_s := duration_from_wire(ran.lost_time)):
            yield Excess(Cause.REPLICA_LOST, lost_s, _lost(ran))
        yield from _decode(ran)
        before = ran


def _again(before: api.AttemptRecord, ran: api.AttemptRecord, choice: api.ChoiceRecord) -> Excess:
    """Return what it cost that an attempt ended early: the wait for another place, and a prefill of all there was."""
    suspected_s = sum(
        duration_from_wire(part.time) for part in choice.waits if part.reason == api.WAIT_REASON_SUSPECTED
    )
    seconds = max(0.0, _wait_s(ran) - suspected_s) + (first_token_s(ran) or 0.0)
    if before.outcome == api.ATTEMPT_OUTCOME_PREEMPTED:
        because = f"it gave way to a more urgent request after {_tokens(before)} and was computed again later"
        return Excess(Cause.PREEMPTED, seconds, because)
    if before.outcome == api.ATTEMPT_OUTCOME_DRAINED:
        because = f"replica {before.replica_id} stopped after {_tokens(before)}, and it went on at {ran.replica_id}"
        return Excess(Cause.DRAINED, seconds, because)
    if before.outcome == api.ATTEMPT_OUTCOME_LOST:
        return Excess(Cause.REPLICA_LOST, seconds, _lost(before))
    return Excess(Cause.OTHER, seconds, f"its attempt on replica {before.replica_id} did not go on")


def _lost(ran: api.AttemptRecord) -> str:
    failure = _FAILURES.get(ran.failure, "it failed")
    return f"replica {ran.replica_id} was lost after {_tokens(ran)} ({failure})"


def _prefill(choice: api.ChoiceRecord, ran: api.AttemptRecord) -> Iterator[Excess]:
    took_s = first_token_s(ran)
    if took_s is None:
        if ran.outcome != api.ATTEMPT_OUTCOME_LOST and ran.HasField("granted_at"):
            took_s = _ended_s(ran) - duration_from_wire(ran.granted_at)
        else:
            return
    usual_s = duration_from_wire(ran.usual_prefill) if ran.HasField("usual_prefill") else took_s
    computed = max(1, choice.prompt_tokens - ran.cached_tokens)
    cold = choice.known_prefix_tokens - ran.cached_tokens
    if cold > _LIKELY_PREFILL * choice.prompt_tokens:
        cached = f"only {ran.cached_tokens:,}" if ran.cached_tokens else "none"
        because = (
            f"{cached} of its {choice.prompt_tokens:,} prompt tokens were in the prefix cache of "
            f"replica {ran.replica_id}, although {choice.known_prefix_tokens:,} had been computed before"
        )
        yield Excess(Cause.COLD_PREFIX, min(took_s, usual_s) * min(1.0, cold / computed), because)
    if (over_s := took_s - usual_s) <= 0:
        return
    slow, itl = _slowness(ran)
    if slow > _SLOW and itl > 0:
        slow_s = min(over_s, usual_s * (slow - 1))
        over_s -= slow_s
        yield Excess(Cause.SLOW_ENGINE, slow_s, _slow_engine(ran, slow))
    yield Excess(Cause.LONG_PROMPT_AHEAD, over_s, _ahead_of_prefill(ran))


def _ahead_of_prefill(ran: api.AttemptRecord) -> str:
    tokens = ran.load_at_grant.prefill_tokens
    what = f"{tokens:,} prompt tokens" if tokens else "other prompts"
    return f"replica {ran.replica_id} had {what} to compute before or beside its own"


def _decode(ran: api.AttemptRecord) -> Iterator[Excess]:
    measured = itl_s(ran)
    if measured is None or not ran.HasField("lone_itl"):
        return
    lone = duration_from_wire(ran.lone_itl)
    usual = duration_from_wire(ran.usual_itl) if ran.HasField("usual_itl") else max(lone, measured)
    steps = ran.output_tokens - 1
    slow, _ = _slowness(ran)
    if slow > _SLOW:
        yield Excess(Cause.SLOW_ENGINE, (measured - usual) * steps, _slow_engine(ran, slow))
    batch_s = (min(measured, usual) if slow > _SLOW else measured) - lone
    if batch_s > 0 and batch_of(ran) > LONE:
        because = (
            f"it shared the batch of replica {ran.replica_id} with some {round(batch_of(ran)) - 1} others, and "
            f"a token took {_ms(measured)} instead of {_ms(lone)}"
        )
        yield Excess(Cause.LARGE_BATCH, batch_s * steps, because)


def _slowness(ran: api.AttemptRecord) -> tuple[float, float]:
    """Return how many times as long as usual in such a batch its steps took, and the time between its tokens."""
    measured = itl_s(ran)
    if measured is None or not ran.HasField("usual_itl"):
        return 1.0, 0.0
    return measured / max(1e-6, duration_from_wire(ran.usual_itl)), measured


def _slow_engine(ran: api.AttemptRecord, slow: float) -> str:
    batch = round(batch_of(ran))
    return (
        f"the steps of replica {ran.replica_id} took {slow:.1f} times as long as usual with "
        f"{batch} {'sequence' if batch == 1 else 'sequences'} in the batch"
    )


# --- words ------------------------------------------------------------------------------------------------------------


def _ahead(choice: api.ChoiceRecord, which: Callable[[api.LineAhead], bool]) -> int:
    return sum(each.waiting for each in choice.ahead if which(each))


def _earlier(count: int, tenant: str) -> str:
    if not count:
        return f"earlier requests of tenant {tenant}"
    return f"{count:,} earlier {'request' if count == 1 else 'requests'} of tenant {tenant}"


def _requests(count: int) -> str:
    return f"{count:,} {'request' if count == 1 else 'requests'}"


def _tokens(ran: api.AttemptRecord) -> str:
    return f"{ran.output_tokens:,} {'token' if ran.output_tokens == 1 else 'tokens'}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _wait_s(ran: api.AttemptRecord) -> float:
    if not ran.HasField("granted_at"):
        return 0.0
    return max(0.0, duration_from_wire(ran.granted_at) - duration_from_wire(ran.waits_from))


def _ended_s(ran: api.AttemptRecord) -> float:
    return duration_from_wire(ran.ended_at)
