"""A pool's number of replicas in a roll-out and after it. Pure.

A roll-out keeps the number, and may have some beyond it: its surge, and standbys, which serve meanwhile. They are no
part of the number when it ends. Whoever counted them would keep one too many wherever that is little enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cluster.control.replica_rules import GroupBounds
from cluster.control.snapshot import GroupSnapshot
from cluster.rollout.record import Rollout
from cluster.standby.rule import StandbyState
from penstock.values.admin.rollout import RolloutState


@dataclass(frozen=True, slots=True)
class Beyond:
    """Replicas beyond a pool's number, from the beginning of a roll-out until they have gone."""

    number: int
    """Replicas that are to serve without the roll-out."""
    extra: int
    """The most that there are beyond them."""
    standby: int | None = None
    """Replicas that stood by before; None once these are decided anew."""

    def surplus(self, seen: GroupSnapshot) -> int:
        """Count the replicas of a group that are there for the roll-out only."""
        return max(0, min(self.extra, seen.ready + seen.starting - self.number))

    def resumed(self, state: StandbyState, seen: GroupSnapshot) -> StandbyState:
        """Return what the rule of standbys remembers, as if nobody had served for the roll-out only: it is not that
        load that has gone when they go.
        """
        return state if self.standby is None else replace(state, serving=seen.coming, standby=self.standby)

    def after(self, seen: GroupSnapshot, replicas: int) -> Beyond | None:
        """Return what still has to go after a decision; None for nothing, also where the load needs them."""
        return Beyond(replicas, seen.surplus) if replicas < seen.coming + seen.surplus else None

    def values(self) -> dict[str, Any]:
        """Return what `read_beyond` reads."""
        return asdict(self)


def follow(beyond: Beyond | None, rollout: Rollout | None, before: StandbyState) -> Beyond | None:
    """Return what is beyond a pool's number now.

    Args:
        beyond: as it was at the last look.
        rollout: the one that goes on; None without any.
        before: numbers of the last decision.
    """
    if rollout is None:
        return beyond
    if beyond is None or beyond.standby is None:
        # Without a decision, or after those of a leader that did not know this, the roll-out tells the number.
        number = rollout.size if before.serving is None else min(rollout.size, before.serving)
        beyond = Beyond(number, 0, before.standby)
    return replace(beyond, extra=rollout.extra + (beyond.standby or 0))


def bounds_in(rollout: Rollout | None, bounds: GroupBounds) -> GroupBounds:
    """Return the bounds of a decision. While a roll-out goes on the pool keeps its number, and has the surge beyond it:
    each replica that changes is missing for a while.
    """
    if rollout is None:
        return bounds
    number = rollout.size + rollout.extra
    if rollout.state is RolloutState.HELD:
        # It may stay so for days.
        return GroupBounds(number, max(number, bounds.largest), "a roll-out is stopped")
    why = "a roll-out goes on, and keeps the number"
    return GroupBounds(number, number, why, why)


def read_beyond(stored: Mapping[str, Any] | None) -> Beyond | None:
    """Read what `Beyond.values` returned. Fields that only a later release knows are left out.

    Raises:
        ValueError, KeyError, TypeError: the values are anything else.
    """
    return None if stored is None else Beyond(**{each.name: stored[each.name] for each in fields(Beyond)})
