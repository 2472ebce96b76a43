"""What policies see: plain values of one moment, with what it means when one is missing."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.control.step_model import Shape, StepModel, StepSample
from penstock.models import RequestClass


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """Is a replica's batch as it sees it itself."""

    at: float
    """Seconds of the monotonic clock."""
    limit: int
    """The batch limit in force."""
    running: int
    """Sequences that hold a slot now."""
    samples: tuple[StepSample, ...] = ()
    """Steps of the last seconds, oldest first."""
    kv_usage: float = 0.0
    """Used part of the KV cache, 0 to 1."""
    kv_tokens: int = 0
    """KV cache capacity; 0 is unknown and bounds nothing."""
    step_tokens: int = 0
    """The most that one step computes, decodes and prompts together; 0 is unknown and bounds nothing."""
    preemptions: int = 0
    """Sequences that the engine preempted for want of KV cache since the last tick."""
    model: StepModel | None = None
    """None while there is no fit to rely on."""
    interactive_arrivals: float = 0.0
    """Interactive sequences that start per second; 0 also where classes are not known."""
    interactive_running: int = 0


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """Is what one class asks of a group."""

    request_class: RequestClass
    rate: float
    """Requests per second that arrive, averaged over about a minute, counted at arrival whatever becomes of them."""
    shape: Shape
    """Of those requests; output lengths as they turned out lately."""
    queued: int = 0
    """Requests that wait."""
    oldest_wait_s: float = 0.0
    deadline_s: float | None = None
    """Seconds in which what is queued must be done; for batch work. None is "whenever there is room"."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Is a group of equal replicas as its autoscaler sees it."""

    at: float
    """Seconds of a clock that never jumps."""
    ready: int
    """Replicas that serve. One that does not report is not ready, but its load is not zero either: see `age_s`."""
    starting: int = 0
    """Asked for and not ready yet."""
    draining: int = 0
    demands: tuple[ClassDemand, ...] = ()
    model: StepModel | None = None
    """None while there is no fit to rely on: the fallback rule decides."""
    spread: float = 1.0
    """95th percentile over mean of the inter-token latency, as measured."""
    live_batch: float | None = None
    """Batch limit that the replicas' fast loops hold the ITL SLO with; None where none acts."""
    max_sequences: int = 256
    """Largest batch of a replica."""
    step_tokens: int = 0
    """The most that one step of a replica computes, decodes and prompts together; 0 is unknown and bounds nothing."""
    kv_tokens: int = 0
    """KV cache capacity of a replica; 0 is unknown and bounds nothing."""
    running: float = 0.0
    """Sequences that run in the group."""
    waiting: float = 0.0
    """Requests that wait for the group."""
    kv_usage: float = 0.0
    """Mean used part of the ready replicas' KV caches, 0 to 1."""
    age_s: float = 0.0
    """Age of the oldest value here; old ones freeze scale-down."""
    cold_start_s: float = 180.0
    """From asking for a replica to its first work, the 90th percentile of what was measured."""
    failed_starts: int = 0
    """Starts in a row that failed; 0 after a good one."""
    last_failure_at: float | None = None
    arrived_at: float | None = None
    """When a request came last, pool time in seconds; None where nobody counts."""
    attainment: float | None = None
    """Part of the last minutes' requests that were served within their SLO; None where too few."""
    gpus_per_replica: int = 1

    @property
    def filled(self) -> bool:
        """Whether work with a deadline fills what the rest leaves free; what runs then says little of the need."""
        return any(each.deadline_s is not None for each in self.demands)

    @property
    def coming(self) -> int:
        """Replicas that serve or will soon."""
        return self.ready + self.starting
