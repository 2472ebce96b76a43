"""The autoscaler's decisions and its operating point, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from penstock.models import RequestClass
from penstock.v1 import admin_pb2
from penstock.values.fields import build, duration_field, unfit
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Counterfactual, Relief, Step
from penstock.wire import duration_from_wire, request_class_from_wire

_MODES = {
    admin_pb2.CONTROL_MODE_OFF: "off",
    admin_pb2.CONTROL_MODE_ADVISORY: "advisory",
    admin_pb2.CONTROL_MODE_ACTIVE: "active",
}
_RELIEFS = {
    admin_pb2.RELIEF_LATENCY: Relief.LATENCY,
    admin_pb2.RELIEF_PREEMPT_BATCH: Relief.PREEMPT_BATCH,
    admin_pb2.RELIEF_SHED: Relief.SHED,
}
_CLASSES = ("interactive", "standard", "batch")


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """Demand of one class on a pool."""

    request_class: RequestClass
    rate: float
    """Requests per second."""
    prompt_tokens: float
    """Mean per request, like the next two."""
    cached_tokens: float
    output_tokens: float
    queued: int
    oldest_wait: float
    """Longest wait of these, in seconds."""
    deadline: float | None = None
    """Seconds within which queued items of a job are to be done; None for requests that clients wait for."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.ClassDemand) -> ClassDemand:
        return cls(
            request_class_from_wire(wire.request_class),
            wire.rate,
            wire.prompt_tokens,
            wire.cached_tokens,
            wire.output_tokens,
            wire.queued,
            duration_from_wire(wire.oldest_wait),
            duration_from_wire(wire.deadline) if wire.HasField("deadline") else None,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision on a pool's number of replicas, with the observations it rests on."""

    number: int
    """Number of the decision; grows by one with each decision of the pool."""
    at_ms: int
    """Milliseconds since the Unix epoch."""
    mode: str
    """"active" decisions are carried out; "advisory" ones are not."""
    leader: str
    fence: int
    replicas_before: int
    replicas: int
    needed: int
    """Replicas needed, before hysteresis and rails."""
    relief: Relief
    reason: str
    steps: tuple[Step, ...]
    counterfactuals: tuple[Counterfactual, ...]
    alarms: tuple[str, ...]
    ready: int
    starting: int
    draining: int
    running: float
    waiting: float
    kv_usage: float
    """Mean used part of the KV caches, 0 to 1."""
    age: float
    """Age of the oldest value, seconds."""
    cold_start: float
    """Time that a start takes, in seconds: 90th percentile of the measured starts."""
    failed_starts: int
    attainment: float | None
    """Part of the requests within their SLO, 0 to 1; None where too few requests ended."""
    demands: tuple[ClassDemand, ...]
    standby: int = 0
    """Replicas that are to stand by beside `replicas`: loaded, and without work."""
    standing_by: int = 0
    """Replicas that stood by and could be woken."""
    work: float | None = None
    """Replica-seconds of work that arrived per second, averaged; None without a step model to tell."""
    gpus_per_replica: int = 1

    @classmethod
    def from_proto(cls, wire: admin_pb2.Decision) -> Decision:
        seen = wire.seen
        return cls(
            number=wire.number,
            at_ms=wire.at_ms,
            mode=control_mode_from_wire(wire.mode),
            leader=wire.leader,
            fence=wire.fence,
            replicas_before=wire.replicas_before,
            replicas=wire.replicas,
            needed=wire.needed,
            relief=relief_from_wire(wire.relief),
            reason=wire.reason,
            steps=tuple(Step(step.name, step.value, step.reason) for step in wire.steps),
            counterfactuals=tuple(Counterfactual(one.without, one.replicas) for one in wire.counterfactuals),
            alarms=tuple(wire.alarms),
            ready=seen.ready,
            starting=seen.starting,
            draining=seen.draining,
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            age=duration_from_wire(seen.age),
            cold_start=duration_from_wire(seen.cold_start),
            failed_starts=seen.failed_starts,
            attainment=seen.attainment if seen.HasField("attainment") else None,
            demands=tuple(map(ClassDemand.from_proto, seen.demands)),
            standby=wire.standby,
            standing_by=seen.standby,
            work=seen.work if seen.HasField("work") else None,
            gpus_per_replica=max(1, seen.gpus_per_replica),
        )


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """Load of a pool over the last weeks, on which its forecast rests."""

    first_ms: int
    """Time at which the first value begins, milliseconds since the Unix epoch."""
    slot: float
    """Seconds that each value is the mean of."""
    loads: tuple[float | None, ...]
    """Mean loads, oldest first, in requests of 512 prompt tokens and 256 output tokens per second that would be as much
    work; None where the load is not known."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.LoadRecord) -> RecordedLoad:
        loads = tuple(None if math.isnan(load) else load for load in wire.loads)
        return cls(wire.first_ms, duration_from_wire(wire.slot), loads)


@dataclass(frozen=True, slots=True)
class DecisionList:
    """Latest decisions of an autoscaler."""

    decisions: tuple[Decision, ...]
    """Newest first."""
    operating_point: OperatingPoint
    """In force now."""
    operating_point_set: bool
    """Whether the operating point differs from the settings because it was set by a call."""
    load_record: RecordedLoad | None = None
    """Record of the pool's load; None where it was not asked for, or where there is none."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.ListDecisionsResponse) -> DecisionList:
        return cls(
            tuple(map(Decision.from_proto, wire.decisions)),
            point_from_proto(wire.operating_point),
            wire.operating_point_set,
            RecordedLoad.from_proto(wire.load_record) if wire.HasField("load_record") else None,
        )


def control_mode_from_wire(number: admin_pb2.ControlMode.ValueType) -> str:
    """Return the mode's name; "unknown" for one that is unset, or unknown to this build."""
    return _MODES.get(number, "unknown")


def relief_from_wire(number: admin_pb2.Relief.ValueType) -> Relief:
    """Convert a measure; an unknown number is NONE."""
    return _RELIEFS.get(number, Relief.NONE)


def point_from_proto(wire: admin_pb2.OperatingPoint) -> OperatingPoint:
    budget = wire.budget_per_hour if wire.HasField("budget_per_hour") else None
    attainment = wire.attainment if wire.HasField("attainment") else OperatingPoint().attainment
    slos = _slo(wire.interactive), _slo(wire.standard), _slo(wire.batch)
    return OperatingPoint(*slos, attainment, wire.price_per_gpu_hour, budget)


def point_to_proto(point: OperatingPoint) -> admin_pb2.OperatingPoint:
    """Convert an operating point to the wire; the router checks it.

    Raises:
        ValueError: a value is outside the range of its type on the wire; names the field.
        TypeError: a value is of another type; names the field.
    """
    if not isinstance(point, OperatingPoint):
        raise unfit("operating_point", "an OperatingPoint or None", point)
    wire = build(
        admin_pb2.OperatingPoint,
        "operating_point.",
        attainment=point.attainment,
        price_per_gpu_hour=point.price_per_gpu_hour,
        budget_per_hour=point.budget_per_hour,
    )
    for name in _CLASSES:
        slo, target = getattr(point, name), getattr(wire, name)
        if not isinstance(slo, ClassSlo):
            raise unfit(f"operating_point.{name}", "a ClassSlo", slo)
        if slo.ttft_p99_s is not None:
            target.ttft_p99.CopyFrom(duration_field(f"operating_point.{name}.ttft_p99_s", slo.ttft_p99_s))
        if slo.itl_p95_s is not None:
            target.itl_p95.CopyFrom(duration_field(f"operating_point.{name}.itl_p95_s", slo.itl_p95_s))
    return wire


def _slo(wire: admin_pb2.ClassSlo) -> ClassSlo:
    def seconds(field: str, duration: Duration) -> float | None:
        return duration_from_wire(duration) if wire.HasField(field) else None  # type: ignore[arg-type]

    return ClassSlo(seconds("ttft_p99", wire.ttft_p99), seconds("itl_p95", wire.itl_p95))
