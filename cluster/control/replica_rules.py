"""What the slow loop is given besides the group it looks at: bounds, constants, and what it remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.control.load_forecast import Check, LoadRules, Need
from cluster.control.rails import Move, RailRules
from penstock.values.steps import Relief


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds a group's replicas."""

    smallest: int
    """0 allows a group without replicas while nothing arrives."""
    largest: int


@dataclass(frozen=True, slots=True)
class SlowRules:
    """Are the loop's constants."""

    drain_s: float = 60.0
    """What has piled up is to be worked off in so long, or in a cold start if that is longer: replicas that are ordered
    for it do not work before."""
    drain_fill: float = 0.95
    """Part of a replica's time that is used while something has piled up."""
    fill: float = 0.66
    """Part of a replica's time that is planned for in a group of `fill_replicas`, at first; it then follows the
    attainment. In a larger group what is free grows with the root of the load, as its scatter does."""
    fill_replicas: float = 4.0
    fill_floor: float = 0.55
    """Attainment and a small group's size make the planned part no smaller, unless `fill` is."""
    fill_ceiling: float = 0.95
    """The other way round."""
    fill_up: float = 0.02
    fill_down: float = 0.05
    fill_period_s: float = 300.0
    attainment_s: float = 600.0
    """What the attainment counts over; it is left alone for so long after more was missing than chance brings."""
    look_back_s: float = 300.0
    """Removal goes down to what was needed in `look_back_starts` cold starts, at most so long: what would be wanted
    again sooner costs less if it is kept."""
    look_back_part: float = 0.95
    """For so much of that time what is left must have been enough: the very most is what chance brought for a tick."""
    look_back_starts: float = 3.0
    look_back_least_s: float = 180.0
    regret_s: float = 1800.0
    """A removal that is taken back within so long came too early: the look-back doubles. 0 never regrets."""
    regret_most: float = 6.0
    """At most so many times the look-back."""
    regret_forgotten_s: float = 7200.0
    """After so long without another one it is as before."""
    up_band: float = 0.25
    up_band_least: float = 0.5
    """While nothing has piled up, this part of the replicas, or so many, may be missing before one is added, if those
    that are there get no fuller than `drain_fill`."""
    history_s: float = 7200.0
    """How long ticks are remembered, and so the longest look-back there is."""
    hold_s: float = 30.0
    """Between two changes."""
    down_band: float = 0.15
    """Less than this part of the replicas too many, and less than one, is not removed."""
    long_look_back_s: float = 1800.0
    long_down_band: float = 0.1
    """Unless it was too many for so long: then down to this part. A load that falls slowly, or has settled a little
    below what a peak left, would else keep as many too many for good."""
    down_step: float = 0.25
    """Largest part that goes at once."""
    kv_most: float = 0.9
    """KV usage after a removal."""
    fallback_kv: float = 0.8
    fallback_waiting: float = 4.0
    """Waiting requests per replica, and KV usage, that the fallback rule aims at."""
    fallback_tolerance: float = 0.1
    idle_s: float = 900.0
    """Without a request for so long a group may go to 0."""
    load: LoadRules = field(default_factory=LoadRules)
    rails: RailRules = field(default_factory=RailRules)

    @property
    def least_fill(self) -> float:
        """The smallest part of a replica's time that is ever planned for."""
        return min(self.fill_floor, self.fill)

    @property
    def most_fill(self) -> float:
        """The largest."""
        return max(self.fill_ceiling, self.fill)


@dataclass(frozen=True, slots=True)
class SlowState:
    """Is what the loop remembers; a leader hands it to the next one."""

    needs: tuple[Need, ...] = ()
    moves: tuple[Move, ...] = ()
    fill: float | None = None
    """None until first adapted."""
    fill_at: float | None = None
    active_at: float | None = None
    """When there was work last."""
    check: Check = field(default_factory=Check)
    """Of the demand, by what runs."""
    relief: Relief = Relief.NONE
    """What was given up."""
    patience: float = 1.0
    """So many times the look-back, since removals were taken back."""
    regretted_at: float | None = None
    """When the last one was."""
