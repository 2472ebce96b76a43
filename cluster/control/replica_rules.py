"""Inputs of the replica policy besides the group: its bounds, its constants, and what it remembers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cluster.control.bursts.hold import Hold, HoldRules
from cluster.control.load_forecast import Check, LoadRules, Need
from cluster.control.rails import Move, RailRules
from cluster.forecast.plan import AheadRules
from penstock.values.steps import Relief


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds of a group's replicas."""

    smallest: int
    """0 allows a group without replicas while nothing arrives."""
    largest: int
    why_smallest: str = "the smallest number allowed"
    why_largest: str = "the largest number allowed"

    def most(self, affordable: int | None) -> int:
        """Return the most replicas of any decision, where a budget pays for so many; None for no budget."""
        return self.largest if affordable is None else min(self.largest, affordable)


@dataclass(frozen=True, slots=True)
class SlowRules:
    """Constants of the replica policy."""

    drain_s: float = 60.0
    """Seconds in which a backlog is worked off. A longer cold start takes its place: replicas that are ordered for the
    backlog do not work before."""
    drain_fill: float = 0.95
    """Part of a replica's time that is used while there is a backlog."""
    fill: float = 0.66
    """Part of a replica's time that is planned for in a group of `fill_replicas`, at first. It then follows the
    attainment. In a larger group the free part grows with the root of the load, as the scatter of the load does."""
    fill_replicas: float = 4.0
    fill_floor: float = 0.55
    """Lower bound of the planned part, whatever attainment and group size ask for. A lower `fill` lowers it too."""
    fill_give: float = 0.1
    """Part by which it may fall from a start at the floor or above."""
    fill_ceiling: float = 0.95
    """Upper bound of the planned part, in the same way."""
    slack: float = 1.0
    """Misses from which the planned part falls, as a multiple of the promised ones. It rises below half of them."""
    fill_up: float = 0.02
    fill_down: float = 0.05
    fill_period_s: float = 300.0
    attainment_s: float = 600.0
    """Window of the attainment, seconds. For as long the fill stays as it is after a shortage larger than chance."""
    look_back_s: float = 300.0
    """Longest look-back of a removal, seconds. A removal goes down to what was needed within `look_back_starts` cold
    starts. To keep a replica costs less than to start it again so soon."""
    look_back_part: float = 0.95
    """Part of the look-back in which the remaining replicas must have been enough. The highest need may be chance."""
    look_back_starts: float = 3.0
    look_back_least_s: float = 180.0
    regret_s: float = 1800.0
    """A removal that is undone within these seconds came too early. From the second one on, each doubles the look-back.
    0 switches this off."""
    regret_most: float = 6.0
    """Largest factor on the look-back."""
    regret_forgotten_s: float = 7200.0
    """Seconds without such a removal after which the look-back is as before."""
    up_band: float = 0.25
    up_band_least: float = 0.5
    """Replicas that may be missing before one is added: this number or the part `up_band`, whichever is larger. It
    holds while there is no backlog and the present replicas get no fuller than `drain_fill`."""
    history_s: float = 7200.0
    """Seconds for which ticks are remembered. It bounds the look-back."""
    hold_s: float = 30.0
    """Seconds between two changes."""
    down_band: float = 0.15
    """Replicas are removed when at least this part is too many, and at least one."""
    long_look_back_s: float = 1800.0
    long_down_band: float = 0.1
    """The same part, where replicas were too many for `long_look_back_s`. Without it, a load that falls slowly, or that
    settles a little below a peak, would keep the surplus forever."""
    down_step: float = 0.25
    """Largest part that is removed at once."""
    kv_most: float = 0.9
    """Highest KV usage after a removal."""
    fallback_kv: float = 0.8
    fallback_waiting: float = 4.0
    """The fallback rule aims at this number of waiting requests per replica, and at the KV usage `fallback_kv`."""
    fallback_tolerance: float = 0.1
    idle_s: float = 900.0
    """Seconds without a request after which a group may go to 0."""
    load: LoadRules = field(default_factory=LoadRules)
    rails: RailRules = field(default_factory=RailRules)
    ahead: AheadRules = field(default_factory=AheadRules)
    hold: HoldRules = field(default_factory=HoldRules)

    @property
    def least_fill(self) -> float:
        """Smallest part of a replica's time that is ever planned for."""
        return min(self.fill_floor, self.fill)

    @property
    def least_base_fill(self) -> float:
        """Smallest part that attainment can ask for. It is below the first one, unless that is below the floor."""
        return self.fill if self.fill < self.fill_floor else min(self.fill_floor, self.fill - self.fill_give)

    @property
    def most_fill(self) -> float:
        """Largest part of a replica's time that is ever planned for."""
        return max(self.fill_ceiling, self.fill)


@dataclass(frozen=True, slots=True)
class SlowState:
    """What the replica policy remembers. A leader hands it to the next one."""

    needs: tuple[Need, ...] = ()
    moves: tuple[Move, ...] = ()
    fill: float | None = None
    """None until it is first adapted."""
    fill_at: float | None = None
    active_at: float | None = None
    """Time of the last work."""
    check: Check = field(default_factory=Check)
    """Check of the demand by the sequences that run."""
    relief: Relief = Relief.NONE
    """Relief of the last decision."""
    patience: float = 1.0
    """Factor on the look-back, which grows as removals are undone."""
    regretted_at: float | None = None
    """Time at which a removal was last undone."""
    hold: Hold = field(default_factory=Hold)
    """Number that is held through bursts that no start could serve."""
    since: float | None = None
    """End of the last time without a decision; None where there was none. What came in such a time is known as a mean
    only, so no removal rests on it."""
    fill_from: float | None = None
    """Fill of the rules that `fill` was adapted from; None where that was not recorded."""

    def under(self, rules: SlowRules) -> SlowState:
        """Return the state under these rules. A fill that was adapted from that of others is forgotten: whoever turns
        the dial means the new one, and attainment would take hours to lead there, or never do. A held number is chosen
        anew at once, because the looks so far knew another worth of a replica.
        """
        if self.fill_from == rules.fill:
            return self
        if self.fill_from is None:
            return replace(self, fill_from=rules.fill)
        hold = replace(self.hold, looks=0, checked_at=None)
        return replace(self, fill=None, fill_at=None, fill_from=rules.fill, hold=hold)

    def unmoved(self, at: float) -> SlowState:
        """Return the state without the change that was decided at that time. It was not carried out, so nothing must
        wait for its effect.
        """
        return replace(self, moves=tuple(move for move in self.moves if move.at < at))
