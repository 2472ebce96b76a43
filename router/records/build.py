"""From a generation that is over to its record. Pure: it reads what its choices know, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.queue.heartbeats import ReplicaRecord
from penstock.models import ReplicaState
from penstock.v1 import records_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.values.slo import ClassSlo
from penstock.wire import duration_to_wire, model_task_to_wire, request_class_to_wire, set_duration
from router.admission.demand import Verdict, verdict_of
from router.generation.choice import Choice
from router.generation.generation import Generation
from router.generation.metering import AttemptOutcome, FinishedAttempt, Totals
from router.generation.wait import Wait, WaitReason

_OUTCOMES = {
    AttemptOutcome.COMPLETED: api.ATTEMPT_OUTCOME_COMPLETED,
    AttemptOutcome.CANCELLED: api.ATTEMPT_OUTCOME_CANCELLED,
    AttemptOutcome.PREEMPTED: api.ATTEMPT_OUTCOME_PREEMPTED,
    AttemptOutcome.DRAINED: api.ATTEMPT_OUTCOME_DRAINED,
    AttemptOutcome.LOST: api.ATTEMPT_OUTCOME_LOST,
    AttemptOutcome.REFUSED: api.ATTEMPT_OUTCOME_REFUSED,
    AttemptOutcome.TAKEN_OVER: api.ATTEMPT_OUTCOME_TAKEN_OVER,
}
_WORST = (Verdict.NOT_SERVED, Verdict.BOTH, Verdict.TTFT, Verdict.ITL, Verdict.MET)
_LONGEST_ERROR = 300
"""Characters of an error's sentence that are kept."""
_SHORTEST_WAIT_S = 0.001
"""Shorter waits are the way to the queue and back."""
_MOST_HOLDERS = 8


@dataclass(frozen=True, slots=True)
class Closed:
    """When a call ended, and what its router knew then."""

    at: float
    """Monotonic seconds."""
    wall_ms: int
    """The same moment, milliseconds since the Unix epoch."""
    slo: ClassSlo
    replicas: Mapping[str, ReplicaRecord]


def record_of(generation: Generation, closed: Closed) -> api.RequestRecord:
    """Return the record of a call."""
    first, arrived_at = generation.choices[0], generation.arrived_at
    totals = Totals.of(generation.choices)
    record = api.RequestRecord(
        request_id=generation.request_id,
        pool=generation.pool,
        tenant=generation.tenant,
        request_class=request_class_to_wire(first.entry.request_class),
        arrived_at_ms=closed.wall_ms - round((closed.at - arrived_at) * 1000),
        router_id=generation.router_id,
        origin=generation.origin.api,
        task=model_task_to_wire(generation.task),
        gpu_seconds=totals.gpu_seconds,
        cost=totals.cost,
        alias=generation.alias,
        lora_adapter=generation.adapter,
        plain_prompt=generation.plain_prompt,
        resumed=bool(generation.since_ms) or any(each.wait.adopted or each.inherited for each in generation.choices),
    )
    set_duration(record.admission_time, generation.admitted_at - arrived_at)
    set_duration(record.total_time, closed.at - arrived_at)
    _add_slo(record.slo, generation, closed.slo)
    record.usage.CopyFrom(generation.usage())
    for choice in generation.choices:
        _add_choice(record.choices.add(), choice, arrived_at, closed)
    if (trace := generation.trace) is not None:
        record.trace_id, record.span_id, record.sampled = trace.own.trace_id, trace.own.span_id, trace.own.sampled
        record.parent_span_id = trace.parent.span_id if trace.parent is not None else ""
        record.job_span = generation.origin.submitted_by
        record.first_span, record.trace_state = first.wait.first_span, trace.own.state
    if (error := generation.error) is not None:
        record.error_reason = error.reason
        record.error = str(error)[:_LONGEST_ERROR]
    if totals.first_token_at is not None:
        set_duration(record.time_to_first_token, totals.first_token_at - arrived_at)
    _add_before(record, generation)
    ends = [ran.times.ended_at for choice in generation.choices for ran in choice.metering.attempts if ran.times]
    if ends and generation.finished:
        set_duration(record.delivery_time, max(0.0, closed.at - max(ends)))
    return record


def _add_before(record: api.RequestRecord, generation: Generation) -> None:
    """Add what happened before the call came."""
    if (refused := generation.refused) is not None:
        record.refused.CopyFrom(
            api.EarlierRefusals(
                times=refused.times,
                time=duration_to_wire(max(0.0, generation.arrived_at - refused.first_at)),
                reason=refused.reason,
                error=refused.error[:_LONGEST_ERROR],
                quota=refused.quota,
                limit=refused.limit,
            )
        )
    if record.resumed:
        first_s = min(choice.wait.first_arrived_at for choice in generation.choices)
        before_s = generation.arrived_at - first_s
        if generation.since_ms:
            before_s = max(before_s, (record.arrived_at_ms - generation.since_ms) / 1000)
        set_duration(record.after_first_call, max(0.0, before_s))
        record.earlier_tokens = sum(
            choice.last_attempt.tokens_before
            for choice in generation.choices
            if choice.last_attempt is not None and not choice.last_attempt.granted_at
        )


def missed(record: api.RequestRecord) -> bool:
    """Return whether a request missed its SLO, or failed by no fault of its client."""
    return record.slo.outcome not in ("", Verdict.MET.value) or _failed(record)


def _failed(record: api.RequestRecord) -> bool:
    return bool(record.error_reason) and any(each.finish_reason == types.FINISH_REASON_ERROR for each in record.choices)


# Parts are written where they belong: one that is made before is serialized and parsed to get there.


def _add_slo(found: api.SloRecord, generation: Generation, slo: ClassSlo) -> None:
    verdicts = {verdict_of(choice, slo) for choice in generation.choices}
    found.outcome = next((each.value for each in _WORST if each in verdicts), "")
    if slo.ttft_p99_s is not None:
        set_duration(found.ttft, slo.ttft_p99_s)
    if slo.itl_p95_s is not None:
        set_duration(found.itl, slo.itl_p95_s)


def _add_choice(found: api.ChoiceRecord, choice: Choice, since: float, closed: Closed) -> None:
    wait, attempts = choice.wait, _attempts(choice)
    found.index, found.output_tokens, found.position = choice.index, choice.tokens, wait.first_position
    found.prompt_tokens, found.known_prefix_tokens = choice.entry.prompt_tokens, wait.known_tokens
    if choice.end is not None:
        found.finish_reason = choice.end.finish_reason
    if wait.windows:
        found.full_window = max(wait.windows, key=wait.windows.__getitem__)
    for ran in attempts:
        _add_attempt(found.attempts.add(), ran, choice, since)
    if attempts and (load := closed.replicas.get(attempts[-1].replica_id)) is not None:
        _add_load(found.attempts[-1].load_at_end, load)
    found.waits.extend(_waits(choice, attempts, closed.at))
    for each, tenant, waiting in wait.ahead or ():
        found.ahead.add(request_class=request_class_to_wire(each), tenant=tenant, waiting=waiting)
    found.holders.extend(_holders(wait))
    if wait.predicted_s is not None:
        set_duration(found.predicted_wait, wait.predicted_s)


def _waits(choice: Choice, attempts: Sequence[FinishedAttempt], now: float) -> list[api.WaitPart]:
    """Divide the time that a choice waited among its reasons, longest first. The parts add up to that time."""
    times = [ran.times for ran in attempts if ran.times is not None]
    left_s = sum(each.granted_at - each.queued_at for each in times if each.granted_at)
    if not times or (times[-1].queued_at != choice.queued_at and choice.link is None):
        left_s += now - choice.queued_at
    parts = dict[WaitReason | None, float]()
    for reason, seconds in choice.wait.parts.items():
        parts[reason] = min(seconds, left_s)
        left_s -= parts[reason]
    if left_s > 0:
        # After the last look it waited for the last reason.
        last = next(reversed(parts), None)
        parts[last] = parts.get(last, 0.0) + left_s
    return [
        api.WaitPart(
            reason=api.WAIT_REASON_UNSPECIFIED
            if reason is None
            else api.WaitReason.Value(f"WAIT_REASON_{reason.name}"),
            time=duration_to_wire(seconds),
        )
        for reason, seconds in sorted(parts.items(), key=lambda part: -part[1])
        if seconds >= _SHORTEST_WAIT_S
    ]


def _holders(wait: Wait) -> list[api.SlotHolder]:
    most = sorted(wait.holders.items(), key=lambda each: -each[1])[:_MOST_HOLDERS]
    return [
        api.SlotHolder(request_class=request_class_to_wire(each), tenant=tenant, share=total / wait.looks)
        for (each, tenant), total in most
    ]


def _attempts(choice: Choice) -> list[FinishedAttempt]:
    """Return a choice's attempts, with one that goes on without it."""
    found, last = list(choice.metering.attempts), choice.last_attempt
    if last is not None and choice.link is not None and (not found or found[-1].name != last.name):
        found.append(last.over(None, choice.tokens, AttemptOutcome.TAKEN_OVER))
    return found


def _add_attempt(found: api.AttemptRecord, ran: FinishedAttempt, choice: Choice, since: float) -> None:
    found.replica_id, found.group_id, found.attempt = ran.replica_id, ran.group_id, ran.name
    found.outcome, found.failure = _OUTCOMES[ran.outcome], ran.failure
    found.output_tokens, found.cached_tokens = ran.end.output_tokens, ran.end.cached_tokens
    found.gpu_seconds = ran.end.gpu_seconds
    set_duration(found.engine_wait, ran.end.engine_wait_s)
    set_duration(found.lost_time, ran.lost_s)
    if ran.times is not None:
        moments = (
            (found.waits_from, ran.times.queued_at),
            (found.granted_at, ran.times.granted_at),
            (found.first_token_at, ran.times.began_at),
            (found.ended_at, ran.times.ended_at),
        )
        for field, moment in moments:
            if moment:
                # An attempt that was taken over may have begun before the call came.
                set_duration(field, max(0.0, moment - since))
    if ran.record is not None:
        _add_load(found.load_at_grant, ran.record)
    if choice.entry.preferred_replicas:
        found.preferred = ran.replica_id in choice.entry.preferred_replicas


def _add_load(found: api.ReplicaLoad, record: ReplicaRecord) -> None:
    stats = record.stats
    found.running = int(stats.get("running", record.sequences))
    found.batch_limit = int(stats.get("batch_limit", record.windows.sequences))
    found.kv_usage = stats.get("kv_usage", 0.0)
    found.prefill_tokens = max(0, record.prefill_tokens)
    found.draining = record.state is ReplicaState.DRAINING
    if "step_a" in stats:
        found.step_a, found.step_b, found.step_g = stats["step_a"], stats["step_b"], stats["step_g"]
        found.step_tokens = int(stats.get("step_tokens", 0))
    if (itl_s := stats.get("itl_p95_s", 0.0)) > 0:
        set_duration(found.itl_p95, itl_s)
