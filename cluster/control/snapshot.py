"""Inputs of the policies: plain values of one moment, and the meaning of each missing value."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.control.step_model import Shape, StepModel, StepSample
from cluster.forecast.announced import AnnouncedWork
from cluster.forecast.pool_forecast import Outlook
from cluster.forecast.schedule import Scheduled
from penstock.models import RequestClass


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """A replica's batch as the replica sees it."""

    at: float
    """Monotonic clock, seconds."""
    limit: int
    """Batch limit in force."""
    running: int
    """Sequences that hold a slot now."""
    samples: tuple[StepSample, ...] = ()
    """Steps of the last seconds, oldest first."""
    kv_usage: float = 0.0
    """Used part of the KV cache, 0 to 1."""
    kv_tokens: int = 0
    """KV cache capacity. 0 is unknown and bounds nothing."""
    step_tokens: int = 0
    """The most tokens that one step computes, decodes and prompts together. 0 is unknown and bounds nothing."""
    preemptions: int = 0
    """Sequences that the engine preempted since the last tick because the KV cache was full."""
    model: StepModel | None = None
    """None while there is no reliable fit."""
    interactive_arrivals: float = 0.0
    """Interactive sequences that start per second. 0 also where classes are not known."""
    interactive_running: int = 0


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """What one class asks of a group."""

    request_class: RequestClass
    rate: float
    """Requests per second, averaged over about a minute. Requests count at arrival, whatever becomes of them."""
    shape: Shape
    """Mean of those requests. Output lengths are those of recent ends."""
    queued: int = 0
    """Requests that wait."""
    oldest_wait_s: float = 0.0
    deadline_s: float | None = None
    """Seconds in which queued batch work must be done. None is "whenever there is room"."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group of equal replicas as its autoscaler sees it."""

    at: float
    """Seconds of a clock that never jumps."""
    ready: int
    """Replicas that serve. One that does not report is not ready, but its load is not zero either: compare `age_s`."""
    starting: int = 0
    """Replicas that are ordered and not ready yet."""
    draining: int = 0
    standby: int = 0
    """Replicas that stand by and can be woken. Those that wake are among `starting`."""
    surplus: int = 0
    """Replicas among `ready` and `starting` that are no part of the number: a roll-out that has ended left them."""
    demands: tuple[ClassDemand, ...] = ()
    model: StepModel | None = None
    """None while there is no reliable fit. The fallback rule decides then."""
    spread: float = 1.0
    """95th percentile over mean of the inter-token latency, as measured."""
    live_batch: float | None = None
    """Batch limit with which the replicas' batch policies hold the ITL SLO; None where none acts."""
    max_sequences: int = 256
    """Largest batch of a replica."""
    step_tokens: int = 0
    """The most tokens that one step of a replica computes, decodes and prompts together. 0 is unknown and bounds
    nothing."""
    kv_tokens: int = 0
    """KV cache capacity of a replica. 0 is unknown and bounds nothing."""
    running: float = 0.0
    """Sequences that run in the group."""
    waiting: float = 0.0
    """Requests that wait for the group."""
    kv_usage: float = 0.0
    """Mean used part of the ready replicas' KV caches, 0 to 1."""
    age_s: float = 0.0
    """Age of the oldest value here. Old values freeze scale-down."""
    cells_away: int = 0
    """Cells of the pool that do not answer, so that their values are those of before. Any freezes scale-down."""
    cold_start_s: float = 180.0
    """Seconds from the order of a replica to its first work, the 90th percentile of what was measured."""
    tick_s: float = 0.0
    """Seconds until the next decision. What is left to it is ordered so much later."""
    failed_starts: int = 0
    """Starts in a row that failed. A good start resets it to 0."""
    last_failure_at: float | None = None
    arrived_at: float | None = None
    """Time of the last request, pool time in seconds; None where it is not counted."""
    attainment: float | None = None
    """Part of the last minutes' requests that were served within their SLO; None with too few."""
    gpus_per_replica: int = 1
    scheduled: Scheduled | None = None
    """Replicas that operators have scheduled for now or soon; None without any."""
    announced: AnnouncedWork | None = None
    """Work that tenants have announced, as far as it is believed and does not come already; None without any."""
    outlook: Outlook | None = None
    """What the record of the load foresees; None where there is no record, or nothing to foresee."""
    outlook_awaited: bool = False
    """Whether the record has a pattern that counts, and the leader is too new to know what it foresees."""

    @property
    def filled(self) -> bool:
        """Whether work with a deadline fills free room. The running sequences then say little about the need."""
        return any(each.deadline_s is not None for each in self.demands)

    @property
    def coming(self) -> int:
        """Replicas that serve or will soon, without the surplus."""
        return self.ready + self.starting - self.surplus
