"""Settings of a pool as its scaler uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.autoscaler.assemble import GroupFacts
from cluster.control.bursts.hold import HoldRules
from cluster.control.load_forecast import LoadRules
from cluster.control.rails import RailRules
from cluster.control.replica_rules import GroupBounds, SlowRules
from cluster.control.settings import ControlMode, operating_point
from cluster.forecast.schedule import ScheduledTime
from cluster.settings import AutoscaleSettings, PoolSettings
from cluster.settings.control.headroom import Headroom
from cluster.standby.rule import StandbyLimits
from penstock.values.slo import OperatingPoint


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    """Settings of a pool, and what follows from them for its decisions."""

    pool: PoolSettings
    mode: ControlMode
    forecast: ControlMode
    """Effect of the forecast on decisions."""
    announced: ControlMode
    """Effect of announced load on decisions."""
    schedule: tuple[ScheduledTime, ...]
    """Replicas that are wanted at given times."""
    bounds: GroupBounds
    facts: GroupFacts
    rules: SlowRules
    point: OperatingPoint
    """Operating point of the settings."""
    standby: StandbyLimits

    @classmethod
    def of(cls, pool: PoolSettings) -> ScalerSettings:
        """Derive the rest from a pool's settings."""
        own = pool.autoscale
        return cls(
            pool,
            ControlMode(own.mode),
            ControlMode(own.forecast),
            ControlMode(own.announced),
            tuple(each.value for each in own.schedule),
            GroupBounds(own.min_replicas, own.max_replicas or pool.replicas),
            GroupFacts(own.cold_start_s, pool.ranks),
            slow_rules(own),
            operating_point(pool),
            StandbyLimits(own.standby_least, own.standby, own.standby_price, own.wake_s),
        )


@dataclass(frozen=True, slots=True)
class DialStep:
    """What one step of the dial stands for."""

    fill: float
    """Part of a replica's time that is planned for at first."""
    ceiling: float
    """The largest part that is ever planned for."""
    slack: float
    """Misses from which less is planned for, as a multiple of the promised ones."""
    worth: float
    """Part of its relative cost that another held replica must take off the misses."""


DIAL: Mapping[Headroom, DialStep] = {
    "less": DialStep(0.75, 0.95, 2.0, 0.2),
    "balanced": DialStep(0.66, 0.95, 1.0, 0.1),
    "more": DialStep(0.55, 0.78, 0.5, 0.05),
}
"""Steps of the dial `headroom`, from the cheapest on."""


def slow_rules(settings: AutoscaleSettings) -> SlowRules:
    """Return the constants of the replica policy from the settings."""
    step = DIAL[settings.headroom]
    return SlowRules(
        drain_s=settings.drain_s,
        fill=step.fill if settings.fill is None else settings.fill,
        fill_ceiling=step.ceiling if settings.fill is None else SlowRules().fill_ceiling,
        slack=step.slack,
        hold=HoldRules(worth=step.worth),
        look_back_s=settings.look_back_s,
        hold_s=settings.hold_s,
        idle_s=settings.idle_s,
        load=LoadRules(rate_window_s=settings.rate_window_s),
        rails=RailRules(
            stale_s=settings.stale_s, up_window_s=settings.up_window_s, down_window_s=settings.down_window_s
        ),
    )
