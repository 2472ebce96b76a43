"""Inputs of a simulation besides the trace and the policies."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.errors import SettingsError
from cluster.queue.entries import QueueLimits
from cluster.settings import SimSettings
from cluster.standby.rule import StandbyLimits
from loadtest.simulate.parts.settings import Parts
from penstock.models import RequestClass


@dataclass(frozen=True, slots=True)
class Slo:
    """SLO that a request of a class must keep to count as attained, in seconds."""

    ttft_s: float = 2.0
    itl_s: float = 0.1
    """Bound on the 95th percentile of the request's own gaps between tokens."""


@dataclass(frozen=True, slots=True)
class Death:
    """Sudden end of replicas."""

    at_s: float
    replicas: int = 1
    """Number of replicas that die, the oldest ready ones."""


@dataclass(frozen=True, slots=True)
class SlowNodes:
    """Replicas on slow nodes: the first ones that start."""

    replicas: int = 0
    factor: float = 1.0
    """How many times as long their steps take."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Setup of the simulated cluster. Times in seconds."""

    engine: SimSettings = field(default_factory=SimSettings)
    """Engine of each replica. `max_num_seqs` is the batch limit unless a batch policy moves it."""
    replicas: int = 1
    """Replicas that are ready when the trace begins."""
    min_replicas: int = 1
    max_replicas: int = 1024
    routers: int = 1
    limits: QueueLimits = field(default_factory=QueueLimits)
    queue_timeout_s: float = 0.0
    """Time within which a request must start. A request is refused at once when its estimated wait is longer. 0 is no
    bound."""
    expected_output_tokens: int = 256
    """Estimate that the KV window and shares use, as in the router's settings."""
    default_class: RequestClass = RequestClass.STANDARD
    heartbeat_s: float = 1.0
    """Also the period of batch policies."""
    slow_period_s: float = 15.0
    relief: bool = True
    """Whether the relief of a replica policy takes effect, as under `autoscale.mode = "active"`. With too few replicas
    the pool then gives up latency up to the SLO, then batch work, then requests that would wait longer than their class
    is promised. False moves the number of replicas only."""
    cold_start_s: float = 180.0
    standby: StandbyLimits = field(default_factory=StandbyLimits)
    """Standbys of a policy that keeps some. A wake-up takes the seconds that are assumed here."""
    deaths: tuple[Death, ...] = ()
    slow: SlowNodes = field(default_factory=SlowNodes)
    """Policies know the step model of the others."""
    late_last: bool = True
    """Whether requests of `default_class` that can no longer keep `slo` let others pass, as with `queue.late_last`."""
    prefix_cache: bool = True
    """Only for traces that tell which prompts begin alike."""
    overhead_s: float = 0.0
    """Seconds of a first token beside queue and steps: from the client to the engine and back."""
    overhead_steps: float = 0.0
    """Steps that a prompt waits for beside the rest of the one that runs: those that an engine prepares in advance."""
    slo: Slo = field(default_factory=Slo)
    seed: int = 1
    give_up_s: float = 3600.0
    """Time without an arrival, a running request or a start after which the run ends. Requests that still wait count as
    unfinished."""
    parts: Parts = field(default_factory=Parts)
    scripts: bool = False
    """Whether the queue's scripts run also where its twin would choose as they do."""
    samples: int = 400
    """Approximate number of points of the timeline."""

    def __post_init__(self) -> None:
        if self.engine.max_num_batched_tokens < self.engine.max_num_seqs:
            raise SettingsError(
                f"max_num_batched_tokens must be at least max_num_seqs = {self.engine.max_num_seqs}, "
                f"got {self.engine.max_num_batched_tokens}"
            )
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise SettingsError(
                f"min_replicas must be 0 to max_replicas = {self.max_replicas}, got {self.min_replicas}"
            )
        if not 0 <= self.replicas <= self.max_replicas:
            raise SettingsError(f"replicas must be 0 to max_replicas = {self.max_replicas}, got {self.replicas}")
        if self.routers < 1:
            raise SettingsError(f"routers must be at least 1, got {self.routers}")
