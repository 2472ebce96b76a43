"""Records of requests that have ended, and explanations of where their time went, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from penstock.models import RequestClass
from penstock.v1 import admin_pb2, records_pb2
from penstock.v1 import types_pb2 as types
from penstock.values.decisions import Decision
from penstock.values.results import Usage
from penstock.wire import duration_from_wire, request_class_from_wire


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Load of a replica, as the router that placed an attempt knew it."""

    running: int
    batch_limit: int
    kv_usage: float
    """0 to 1."""
    itl_p95: float | None
    """Seconds between two tokens, 95th percentile over the last seconds; None where it is not known."""
    prefill_tokens: int
    draining: bool

    @classmethod
    def from_proto(cls, wire: records_pb2.ReplicaLoad) -> ReplicaLoad:
        return cls(
            wire.running,
            wire.batch_limit,
            wire.kv_usage,
            _seconds(wire, "itl_p95"),
            wire.prefill_tokens,
            wire.draining,
        )


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt of a choice. Moments are seconds since the arrival of the call; None for what did not happen."""

    replica_id: str
    group_id: str
    attempt: str
    outcome: str
    """"completed", "cancelled", "preempted", "drained", "lost", "refused" or "taken_over"."""
    failure: str
    """Kind of failure of a lost attempt; else empty."""
    waits_from: float | None
    granted_at: float | None
    first_token_at: float | None
    ended_at: float | None
    engine_wait: float
    """Seconds inside the engine before its first step."""
    lost_time: float
    """Seconds from the last sign of a lost attempt to when the loss was noticed."""
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    load_at_grant: ReplicaLoad | None
    load_at_end: ReplicaLoad | None
    preferred: bool | None
    """Whether its replica was preferred for its prefix cache; None without a preference."""
    usual_prefill: float | None = None
    """Seconds that the prompt tokens which it computed usually take in an empty batch; None where that is not known."""
    usual_itl: float | None = None
    """Usual seconds between two tokens in a batch of this size."""
    lone_itl: float | None = None
    """Usual seconds between two tokens in an empty batch."""

    @classmethod
    def from_proto(cls, wire: records_pb2.AttemptRecord) -> AttemptRecord:
        return cls(
            wire.replica_id,
            wire.group_id,
            wire.attempt,
            records_pb2.AttemptOutcome.Name(wire.outcome).removeprefix("ATTEMPT_OUTCOME_").lower(),
            wire.failure,
            _seconds(wire, "waits_from"),
            _seconds(wire, "granted_at"),
            _seconds(wire, "first_token_at"),
            _seconds(wire, "ended_at"),
            duration_from_wire(wire.engine_wait),
            duration_from_wire(wire.lost_time),
            wire.output_tokens,
            wire.cached_tokens,
            wire.gpu_seconds,
            ReplicaLoad.from_proto(wire.load_at_grant) if wire.HasField("load_at_grant") else None,
            ReplicaLoad.from_proto(wire.load_at_end) if wire.HasField("load_at_end") else None,
            wire.preferred if wire.HasField("preferred") else None,
            _seconds(wire, "usual_prefill"),
            _seconds(wire, "usual_itl"),
            _seconds(wire, "lone_itl"),
        )


@dataclass(frozen=True, slots=True)
class LineAhead:
    """Requests of one class and tenant that waited ahead of a choice."""

    request_class: RequestClass
    tenant: str
    """Empty where the caller may not know it."""
    waiting: int


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A tenant that held slots while a choice waited."""

    request_class: RequestClass
    tenant: str
    """Empty where the caller may not know it."""
    share: float
    """Mean part of the held slots, 0 to 1."""


@dataclass(frozen=True, slots=True)
class EarlierRefusals:
    """Refusals of the same call before it was let in."""

    times: int
    time: float
    """Seconds from the first refusal to the arrival of the call."""
    reason: str
    """Reason of the first error, such as "QUOTA_EXCEEDED"."""
    error: str
    quota: str
    """Name of the limit where a quota refused it, such as "tokens_per_minute"; else empty."""
    limit: int

    @classmethod
    def from_proto(cls, wire: records_pb2.EarlierRefusals) -> EarlierRefusals:
        return cls(wire.times, duration_from_wire(wire.time), wire.reason, wire.error, wire.quota, wire.limit)


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """One choice of a request."""

    index: int
    finish_reason: str
    """As in a result, such as "stop"; empty where the call left the choice to another one."""
    prompt_tokens: int
    output_tokens: int
    position: int
    """Requests ahead when it was put in line."""
    predicted_wait: float | None
    """First estimate of its wait, in seconds."""
    waits: tuple[tuple[str, float], ...]
    """Reasons of its waits and their seconds, longest first."""
    ahead: tuple[LineAhead, ...]
    attempts: tuple[AttemptRecord, ...]
    holders: tuple[SlotHolder, ...] = ()
    """Tenants that held the slots while it waited, most first."""
    known_prefix_tokens: int = 0
    """Number of the prompt's first tokens that its router had seen run on a replica before."""
    full_window: str = ""
    """Window of the replicas that was full for most of the wait: "sequences", "kv" or "prefill"."""

    @classmethod
    def from_proto(cls, wire: records_pb2.ChoiceRecord) -> ChoiceRecord:
        finish = types.FinishReason.Name(wire.finish_reason).removeprefix("FINISH_REASON_").lower()
        return cls(
            wire.index,
            "" if finish == "unspecified" else finish,
            wire.prompt_tokens,
            wire.output_tokens,
            wire.position,
            _seconds(wire, "predicted_wait"),
            tuple(
                (
                    records_pb2.WaitReason.Name(part.reason).removeprefix("WAIT_REASON_").lower(),
                    duration_from_wire(part.time),
                )
                for part in wire.waits
            ),
            tuple(
                LineAhead(request_class_from_wire(each.request_class), each.tenant, each.waiting) for each in wire.ahead
            ),
            tuple(AttemptRecord.from_proto(each) for each in wire.attempts),
            tuple(
                SlotHolder(request_class_from_wire(each.request_class), each.tenant, each.share)
                for each in wire.holders
            ),
            wire.known_prefix_tokens,
            wire.full_window,
        )


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Record of one call of a request. Times are seconds."""

    request_id: str
    pool: str
    tenant: str
    request_class: RequestClass
    arrived_at_ms: int
    """Milliseconds since the Unix epoch, by the router's clock."""
    router_id: str
    origin: str
    """"grpc", "openai", "anthropic", "responses", "job" or "shadow"."""
    error_reason: str
    """Reason of the error that ended it; empty where none did."""
    error: str
    admission_time: float
    time_to_first_token: float | None
    total_time: float
    delivery_time: float
    """From the end of the last attempt to the end of the call."""
    slo_ttft: float | None
    """None where it is not promised, like the next one."""
    slo_itl: float | None
    slo_outcome: str
    """"met", "ttft", "itl", "ttft_and_itl", "not_served", or empty where it says nothing about the cluster."""
    usage: Usage
    gpu_seconds: float
    cost: float
    choices: tuple[ChoiceRecord, ...]
    trace_id: str
    """Empty without traces."""
    span_id: str
    resumed: bool
    """Whether the call went on with a request that an earlier call had begun."""
    refused: EarlierRefusals | None = None
    """Refusals of the same call in the two minutes before; None where there were none."""
    after_first_call: float = 0.0
    """Seconds from the arrival of the request's first call to that of this one, where this one went on with it."""
    earlier_tokens: int = 0
    """Output tokens that earlier calls had delivered."""
    usual_prompt_tokens: int = 0
    """Median of the pool's requests of late, like the next one; 0 where it is not known."""
    usual_output_tokens: int = 0
    alias: str = ""
    """Alias by which the caller named the model; empty where it used the pool's own name."""
    lora_adapter: str = ""
    """LoRA adapter; empty for the base model."""
    plain_prompt: bool = False
    """Whether the prompt was a text or token ids, and not a conversation."""

    @classmethod
    def from_proto(cls, wire: records_pb2.RequestRecord) -> RequestRecord:
        return cls(
            wire.request_id,
            wire.pool,
            wire.tenant,
            request_class_from_wire(wire.request_class),
            wire.arrived_at_ms,
            wire.router_id,
            wire.origin,
            wire.error_reason,
            wire.error,
            duration_from_wire(wire.admission_time),
            _seconds(wire, "time_to_first_token"),
            duration_from_wire(wire.total_time),
            duration_from_wire(wire.delivery_time),
            _seconds(wire.slo, "ttft"),
            _seconds(wire.slo, "itl"),
            wire.slo.outcome,
            Usage.from_proto(wire.usage),
            wire.gpu_seconds,
            wire.cost,
            tuple(ChoiceRecord.from_proto(each) for each in wire.choices),
            wire.trace_id,
            wire.span_id,
            wire.resumed,
            EarlierRefusals.from_proto(wire.refused) if wire.HasField("refused") else None,
            duration_from_wire(wire.after_first_call),
            wire.earlier_tokens,
            wire.usual_prompt_tokens,
            wire.usual_output_tokens,
            wire.alias,
            wire.lora_adapter,
            wire.plain_prompt,
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one request: where its time went."""

    calls: tuple[RequestRecord, ...]
    """Records of its calls, in order of arrival."""
    parts: tuple[tuple[str, float], ...]
    """Names and seconds of the parts of its time, in order."""
    cause: str
    """Cause of most of the time above what the request needed; "none" where it was as fast as it could be."""
    summary: str
    """One sentence."""
    decisions: tuple[Decision, ...]
    """Decisions of the autoscaler around it, oldest first; empty below role operator."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.ExplainResponse) -> Explanation:
        return cls(
            tuple(RequestRecord.from_proto(each) for each in wire.calls),
            tuple((part.name, duration_from_wire(part.time)) for part in wire.parts),
            wire.cause,
            wire.summary,
            tuple(Decision.from_proto(each) for each in wire.decisions),
        )


def requests_from_proto(wire: admin_pb2.ListRequestsResponse) -> tuple[RequestRecord, ...]:
    """Convert a list of requests from the wire."""
    return tuple(RequestRecord.from_proto(each) for each in wire.requests)


def _seconds(wire: Message, name: str) -> float | None:
    value = getattr(wire, name)
    if not isinstance(value, Duration):
        raise TypeError(f"{name} is no duration")
    return duration_from_wire(value) if wire.HasField(name) else None
