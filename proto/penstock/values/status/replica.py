"""State of a replica."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models import DrainReason, ReplicaState
from penstock.v1 import admin_pb2
from penstock.wire import drain_reason_from_wire, duration_from_wire, replica_state_from_wire


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """State of a replica as the answering router knows it. Times are seconds."""

    replica_id: str
    group_id: str
    state: ReplicaState
    address: str
    running: int
    batch_limit: int
    kv_usage: float
    """Used part of the KV cache, 0 to 1."""
    heartbeat_age: float
    linked: bool
    metrics_port: int
    """Port of the Prometheus endpoint; 0 when off."""
    output_tokens: int
    accepted_draft_tokens: int
    kv_tokens: int = 0
    """Capacity of the KV cache in tokens; 0 from an older router, which does not send it."""
    prefill_window_tokens: int = 0
    """Most prompt tokens that the replica may have been given and not yet computed."""
    step_time: float = 0.0
    """Mean duration of the engine's steps over its measuring window of some seconds; 0 without steps, and from an older
    replica, as for the next ones."""
    itl_mean: float = 0.0
    """Mean inter-token latency over that window."""
    itl_p95: float = 0.0
    """95th percentile of it. The operating point of the pool has the SLO."""
    overloaded: bool = False
    """Whether even the smallest batch misses the SLO of the inter-token latency."""
    engine_waiting: int = 0
    """Number of sequences inside the engine that have no place in its batch yet."""
    up_time: float = 0.0
    """Time since the replica took its first work."""
    start_time: float = 0.0
    """Time that its start took, from process to first work."""
    drain_reason: DrainReason | None = None
    """Reason why it drains; None unless it does."""
    draining_for: float | None = None
    """Time since it began to drain; None unless it drains."""
    model: str = ""
    """Model that it was started with: a folder, a hub id or "demo"."""
    hardware: str = ""
    gpus: int = 0
    """Number of accelerators that it holds."""
    tensor_parallel_size: int = 0
    cost_per_hour: float = 0.0
    """Price of all its accelerators per hour, in the operator's currency."""
    wake_time: float | None = None
    """Time that its last wake-up took, from the order to the first token; None before the first one."""
    asleep: bool = False
    """Whether its engine sleeps, so that its accelerators' memory is free."""
    link_error: str = ""
    """Reason why the router that answered has no link to it; empty where it has one, and from an older router."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.ReplicaStatus) -> ReplicaStatus:
        return cls(
            replica_id=wire.replica_id,
            group_id=wire.group_id,
            state=replica_state_from_wire(wire.state),
            address=wire.address,
            running=wire.running,
            batch_limit=wire.batch_limit,
            kv_usage=wire.kv_usage,
            heartbeat_age=duration_from_wire(wire.heartbeat_age),
            linked=wire.linked,
            metrics_port=wire.metrics_port,
            output_tokens=wire.output_tokens,
            accepted_draft_tokens=wire.accepted_draft_tokens,
            kv_tokens=wire.kv_tokens,
            prefill_window_tokens=wire.prefill_window_tokens,
            step_time=duration_from_wire(wire.step_time),
            itl_mean=duration_from_wire(wire.itl_mean),
            itl_p95=duration_from_wire(wire.itl_p95),
            overloaded=wire.overloaded,
            engine_waiting=wire.engine_waiting,
            up_time=duration_from_wire(wire.up_time),
            start_time=duration_from_wire(wire.start_time),
            drain_reason=drain_reason_from_wire(wire.drain_reason),
            draining_for=duration_from_wire(wire.draining_for) if wire.HasField("draining_for") else None,
            model=wire.model,
            hardware=wire.hardware,
            gpus=wire.gpus,
            tensor_parallel_size=wire.tensor_parallel_size,
            cost_per_hour=wire.cost_per_hour,
            wake_time=duration_from_wire(wire.wake_time) if wire.HasField("wake_time") else None,
            asleep=wire.asleep,
            link_error=wire.link_error,
        )
