"""Settings of a pool's autoscaling."""

from __future__ import annotations

from pydantic import Field, model_validator

from cluster.settings.control.headroom import Headroom
from cluster.settings.control.mode import Mode
from cluster.settings.control.schedule import ScheduleSettings
from cluster.settings.section import Section


class AutoscaleSettings(Section):
    """Control of a pool's number of replicas by its SLO and load. With mode "off" the number stays at `replicas`."""

    mode: Mode = "off"
    """"off" makes no decisions. "advisory" decides, records the decisions and exports them as metrics, but does not
    act. "active" acts."""
    min_replicas: int = Field(default=1, ge=0, le=1024)
    """Fewest replicas. 0 lets a pool without requests give up its last replica; the next request then waits for a
    start."""
    max_replicas: int | None = Field(default=None, ge=1, le=1024)
    """Most replicas. Must be set where the mode is not "off"."""
    cold_start_s: float = Field(default=180.0, gt=0, le=7200)
    """Assumed duration of a replica's start in seconds, until starts were measured."""
    start_timeout_s: float = Field(default=900.0, gt=0, le=14_400)
    """Seconds after which a replica that was asked for and takes no work yet counts as a failed start."""
    headroom: Headroom = "balanced"
    """How much room replicas keep for what can't be foreseen: "less" spends less and misses the SLO more often, "more"
    the other way round. `penstock decisions --headroom` shows what each would cost and attain with the recorded
    load."""
    fill: float | None = Field(default=None, ge=0.1, le=1)
    """For experts, in place of what `headroom` stands for: part of a replica's time that is planned to be busy, at
    first, in a pool with the work of four replicas; the autoscaler then adapts it to the measured attainment. A larger
    pool needs a smaller free part, because its load varies less: with the work of 16 replicas half as large a part,
    relative to the work, as with that of four. Default: 0.75 with headroom "less", 0.66 with "balanced", 0.55 with
    "more"."""
    rate_window_s: float = Field(default=60.0, ge=1, le=3600)
    """Seconds over which the rate of arrivals is averaged. A shorter time reacts sooner, but also to random peaks."""
    drain_s: float = Field(default=60.0, ge=1, le=3600)
    """Seconds within which a backlog beyond the SLO is to be worked off. A shorter time starts more replicas."""
    hold_s: float = Field(default=30.0, ge=0, le=3600)
    """Least time between a change of the number of replicas and a removal, in seconds."""
    look_back_s: float = Field(default=300.0, ge=1, le=86_400)
    """Longest look-back of a removal, in seconds: as many replicas stay as were needed in that time. The look-back is
    three cold starts or three minutes, whichever is longer, but at most this value. It becomes up to six times as long
    after removals that had to be undone, within the two hours of history that are kept. Raise it where load soon
    returns; lower it to save replicas."""
    forecast: Mode = "active"
    """Forecast of the load a cold start ahead, from the pool's own record of four weeks. "off" records nothing.
    "advisory" records and forecasts, and exports how right it has been, but decides nothing. "active" also orders
    replicas before a rise that comes at the same time of each day or week, and keeps them for one. It does so only
    where such forecasts were better than the present load over at least a day."""
    schedule: tuple[ScheduleSettings, ...] = Field(default=(), max_length=64)
    """Times at which the pool has at least so many replicas, ordered a cold start sooner: office hours, or a launch."""
    announced: Mode = "active"
    """Load that tenants announce before it comes (`penstock announce`). "off" takes no announcements. "advisory" takes
    them, and exports how right they were, but decides nothing. "active" also has the replicas before, as far as the
    tenant's earlier announcements came true."""
    announced_per_tenant: int = Field(default=16, ge=1, le=1024)
    """Most announcements that a tenant may have in the pool at once."""
    announced_ahead_s: float = Field(default=2_678_400.0, ge=60, le=31_622_400)
    """Longest time in seconds from now to the beginning of an announced load; 31 days by default."""
    announced_rate: float = Field(default=100_000.0, gt=0, le=1e9)
    """Most requests per second that one announcement may name; as tokens, a thousand times as many."""
    idle_s: float = Field(default=900.0, ge=1, le=86_400)
    """Seconds without a request after which a pool may go to 0 replicas, where min_replicas is 0."""
    up_window_s: float = Field(default=60.0, ge=1, le=3600)
    """Window in seconds of the limit on additions: within it the replicas at most double, or grow by four where that is
    more. Replicas of `schedule` and `min_replicas` are ordered at once."""
    down_window_s: float = Field(default=300.0, ge=1, le=86_400)
    """Window in seconds of the limit on removals: within it at most a quarter of the replicas go, but one may always
    go."""
    stale_s: float = Field(default=30.0, ge=1, le=3600)
    """Age in seconds of reported values beyond which no replica is removed."""
    standby: int = Field(default=0, ge=0, le=1024)
    """Most replicas that stand by: loaded, without work, and awake again within seconds, where a start takes minutes. A
    replica that is no longer needed stands by while that costs less than to miss it; `standby_price` decides. Standbys
    count towards max_replicas and the budget. vLLM sleeps in them where its platform can (GPUs), and is loaded without
    work elsewhere."""
    standby_least: int = Field(default=0, ge=0, le=1024)
    """Fewest replicas that stand by, whatever it costs. At most `standby`."""
    standby_price: float = Field(default=1.0, ge=0, le=1)
    """Cost of a standby, as part of that of a replica that serves. 1 where its GPUs stay reserved, less where others
    use them meanwhile. The lower it is, the longer replicas stand by."""
    wake_s: float = Field(default=20.0, ge=0, le=7200)
    """Assumed duration of a standby's wake-up in seconds, until one was measured."""

    @model_validator(mode="after")
    def _has_bounds(self) -> AutoscaleSettings:
        if self.mode != "off" and self.max_replicas is None:
            raise ValueError(f"max_replicas must be set where mode is {self.mode!r}")
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas must be at least min_replicas = {self.min_replicas}, got {self.max_replicas}"
            )
        for number, each in enumerate(self.schedule):
            if self.max_replicas is not None and each.min_replicas > self.max_replicas:
                raise ValueError(
                    f"schedule.{number}.min_replicas must be at most max_replicas = {self.max_replicas}, "
                    f"got {each.min_replicas}"
                )
        if self.standby_least > self.standby:
            raise ValueError(f"standby_least must be at most standby = {self.standby}, got {self.standby_least}")
        return self
