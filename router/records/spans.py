"""From the record of a call to the spans of its trace. Pure. Names of attributes: OpenTelemetry's conventions for
generative AI, and `penstock.*` for what they have no name for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.duration_pb2 import Duration

from cluster.telemetry.tracing.context import span_of
from cluster.telemetry.tracing.span import Attribute, Span, SpanKind, SpanLink
from penstock.v1 import records_pb2 as api
from penstock.v1 import types_pb2 as types
from router.records.genai import operation_of

_MS = 1_000_000
_LEAST_DELIVERY_NS = _MS
"""Shortest delivery that gets a span of its own."""


def spans_of(record: api.RequestRecord, texts: Mapping[str, str] | None = None) -> list[Span]:
    """Return the spans of a call that has a trace, its own first. `texts`: attributes with its prompt and output."""
    made = _Spans(record, texts or {})
    return [made.call(), *made.parts()]


class _Spans:
    """Spans of one call, which share its trace and its clock."""

    def __init__(self, record: api.RequestRecord, texts: Mapping[str, str]) -> None:
        self._record, self._texts = record, texts
        self._since_ns = record.arrived_at_ms * _MS

    def call(self) -> Span:
        record = self._record
        operation, links = operation_of(record), list[SpanLink]()
        for span, link in ((record.first_span, "resumes"), (record.job_span, "submitted_by")):
            if span:
                trace_id, span_id = span.split("-")
                links.append(SpanLink(trace_id, span_id, {"penstock.link": link}))
        return Span(
            name=f"{operation} {record.pool}",
            trace_id=record.trace_id,
            span_id=record.span_id,
            parent_id=record.parent_span_id,
            start_ns=self._since_ns,
            end_ns=self._at(record.total_time),
            kind=SpanKind.SERVER,
            attributes={**_call_attributes(record, operation), **self._texts},
            links=tuple(links),
            error=record.error if record.error_reason else "",
            state=record.trace_state,
        )

    def parts(self) -> Iterator[Span]:
        record = self._record
        yield self._part("admission", record.span_id, 0, record.admission_time.ToNanoseconds())
        last_ns = 0
        for choice in record.choices:
            for number, ran in enumerate(choice.attempts):
                yield from self._attempt(choice, number, ran)
                last_ns = max(last_ns, ran.ended_at.ToNanoseconds())
        total_ns = record.total_time.ToNanoseconds()
        if record.delivery_time.ToNanoseconds() >= _LEAST_DELIVERY_NS and last_ns < total_ns:
            yield self._part("delivery", record.span_id, last_ns, total_ns)

    def _attempt(self, choice: api.ChoiceRecord, number: int, ran: api.AttemptRecord) -> Iterator[Span]:
        record, waits_ns, ended_ns = self._record, ran.waits_from.ToNanoseconds(), ran.ended_at.ToNanoseconds()
        # Another router got the place, and the attempt runs on from the arrival of this call.
        granted_ns = ran.granted_at.ToNanoseconds() if ran.HasField("granted_at") else waits_ns
        first_ns = ran.first_token_at.ToNanoseconds() if ran.HasField("first_token_at") else None
        lost_ns = ran.lost_time.ToNanoseconds()
        index = {"penstock.choice": choice.index}
        wait = "hand_over" if number or record.resumed else "queue"
        if ran.HasField("granted_at"):
            yield self._part(wait, record.span_id, waits_ns, granted_ns, {**index, **_wait_attributes(choice, number)})
        own_id, links = span_of(ran.attempt), list[SpanLink]()
        if number:
            before = span_of(choice.attempts[number - 1].attempt)
            links.append(SpanLink(record.trace_id, before, {"penstock.link": "goes_on_from"}))
        outcome = api.AttemptOutcome.Name(ran.outcome).removeprefix("ATTEMPT_OUTCOME_").lower()
        lost = ran.outcome == api.ATTEMPT_OUTCOME_LOST
        yield Span(
            name="attempt",
            trace_id=record.trace_id,
            span_id=own_id if ran.outcome != api.ATTEMPT_OUTCOME_TAKEN_OVER else span_of(ran.attempt + record.span_id),
            parent_id=record.span_id,
            start_ns=self._since_ns + granted_ns,
            end_ns=self._since_ns + max(granted_ns, ended_ns),
            kind=SpanKind.CLIENT,
            attributes={**index, **_attempt_attributes(ran, outcome)},
            links=tuple(links),
            error=f"{outcome}: {ran.failure}" if lost else "",
        )
        begun_ns = (ended_ns - lost_ns) if first_ns is None else first_ns
        if ran.HasField("granted_at"):
            engine_ns = ran.engine_wait.ToNanoseconds()
            details: dict[str, Attribute] = {"penstock.engine_wait_s": engine_ns / 1e9}
            yield self._part("prefill", own_id, granted_ns, begun_ns, {**index, **details})
        if first_ns is not None:
            details = {"gen_ai.usage.output_tokens": ran.output_tokens}
            yield self._part("decode", own_id, first_ns, ended_ns - lost_ns, {**index, **details})

    def _part(
        self, name: str, parent_id: str, start_ns: int, end_ns: int, attributes: Mapping[str, Attribute] | None = None
    ) -> Span:
        # Ids must not repeat, also where parts of several choices begin at once.
        given = dict(attributes or {})
        own_id = span_of(f"{self._record.span_id} {parent_id} {name} {start_ns} {given.get('penstock.choice', '')}")
        return Span(
            name=name,
            trace_id=self._record.trace_id,
            span_id=own_id,
            parent_id=parent_id,
            start_ns=self._since_ns + start_ns,
            end_ns=self._since_ns + max(start_ns, end_ns),
            attributes=given,
        )

    def _at(self, offset: Duration) -> int:
        return self._since_ns + offset.ToNanoseconds()


def _call_attributes(record: api.RequestRecord, operation: str) -> dict[str, Attribute]:
    finish = types.FinishReason
    reasons = tuple(finish.Name(each.finish_reason).removeprefix("FINISH_REASON_").lower() for each in record.choices)
    found: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": record.alias or record.pool,
        "gen_ai.response.model": record.pool,
        "gen_ai.response.id": record.request_id,
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.request.choice.count": len(record.choices),
        "gen_ai.usage.input_tokens": record.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": record.usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.usage.cached_tokens,
        "penstock.tenant": record.tenant,
        "penstock.class": types.RequestClass.Name(record.request_class).removeprefix("REQUEST_CLASS_").lower(),
        "penstock.origin": record.origin,
        "penstock.router": record.router_id,
        "penstock.slo": record.slo.outcome,
        "penstock.gpu_seconds": record.gpu_seconds,
        "penstock.cost": record.cost,
    }
    if record.HasField("time_to_first_token"):
        found["gen_ai.response.time_to_first_chunk"] = record.time_to_first_token.ToNanoseconds() / 1e9
    if record.error_reason:
        found["error.type"] = record.error_reason
    return found


def _wait_attributes(choice: api.ChoiceRecord, number: int) -> dict[str, Attribute]:
    if number:
        return {}
    found: dict[str, Attribute] = {"penstock.queue.position": choice.position}
    # Of a part of a wait the reason may not be known.
    known = (api.WaitReason.Name(part.reason) for part in choice.waits if part.reason)
    if reasons := tuple(name.removeprefix("WAIT_REASON_").lower() for name in known):
        found["penstock.queue.reasons"] = reasons
    return found


def _attempt_attributes(ran: api.AttemptRecord, outcome: str) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        "penstock.attempt": ran.attempt,
        "penstock.replica": ran.replica_id,
        "penstock.group": ran.group_id,
        "penstock.outcome": outcome,
        "penstock.gpu_seconds": ran.gpu_seconds,
        "gen_ai.usage.output_tokens": ran.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": ran.cached_tokens,
    }
    if ran.HasField("load_at_grant"):
        found["penstock.batch.running"] = ran.load_at_grant.running
        found["penstock.batch.limit"] = ran.load_at_grant.batch_limit
        found["penstock.kv_usage"] = ran.load_at_grant.kv_usage
    return found
