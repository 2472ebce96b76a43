"""A leader's state about a pool, which it hands to its successor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from cluster.announced.belief import Belief
from cluster.announced.stored import belief_values, read_belief
from cluster.autoscaler.ahead.hours import HoursAhead, read_hours
from cluster.autoscaler.meter import ClassRates, Meter
from cluster.autoscaler.router_report import ClassCounts
from cluster.autoscaler.starts import Starts
from cluster.control.bursts.hold import Hold
from cluster.control.load_forecast import Check, Need
from cluster.control.rails import Move
from cluster.control.replica_rules import SlowRules, SlowState
from cluster.control.step_model import Shape
from cluster.rollout.scaling import Beyond, read_beyond
from cluster.standby.rule import StandbyState
from penstock.models import RequestClass
from penstock.values.steps import Relief

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Part = TypeVar("Part", bound="DataclassInstance")
"""Part of a stored state."""

_RULES = SlowRules()
_GRACE_S = _RULES.attainment_s - _RULES.fill_period_s
"""How far into the future the replica policy may set the time of its last look at the fill: on purpose, after a
shortage."""
_SHAPE = attrgetter(*(each.name for each in fields(Shape)))


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """State that a leader hands to its successor."""

    slow: SlowState = field(default_factory=SlowState)
    meter: Meter = field(default_factory=Meter)
    starts: Starts = field(default_factory=Starts)
    group: str = ""
    """Group of the last replicas, whose step model is used while there are none; empty if there never were any."""
    standby: StandbyState = field(default_factory=StandbyState)
    belief: Belief = field(default_factory=Belief)
    """How right tenants who announced load have been."""
    hours: HoursAhead | None = None
    """What is foreseen for the next hours, for those who look; no decision uses it."""
    beyond: Beyond | None = None
    """Replicas that a roll-out has beyond the number; None where none has any."""

    def up_to(self, at: float) -> PoolMemory:
        """Return the state with no time after `at`: pool time can be earlier than before if the store was replaced."""
        slow, starts = self.slow, self.starts
        fill_at = None if slow.fill_at is None else slow.fill_at - _GRACE_S
        hold = slow.hold
        held = (hold.checked_at, hold.changed_at, hold.late_since, hold.suspended_at)
        known = (fill_at, slow.active_at, slow.regretted_at, slow.since, *held, starts.last_failure_at)
        ahead = [one for one in known if one is not None]
        times = [*ahead, *(need.at for need in slow.needs), *(move.at for move in slow.moves), *starts.asked]
        belief = self.belief.up_to(at)
        if max(times, default=at) <= at and belief is self.belief:
            return self
        return replace(
            self,
            belief=belief,
            slow=replace(
                slow,
                needs=tuple(need for need in slow.needs if need.at <= at),
                moves=tuple(move for move in slow.moves if move.at <= at),
                fill_at=_clamped(slow.fill_at, at + _GRACE_S),
                active_at=_clamped(slow.active_at, at),
                regretted_at=_clamped(slow.regretted_at, at),
                since=_clamped(slow.since, at),
                hold=replace(
                    hold,
                    checked_at=_clamped(hold.checked_at, at),
                    changed_at=_clamped(hold.changed_at, at),
                    late_since=_clamped(hold.late_since, at),
                    suspended_at=_clamped(hold.suspended_at, at),
                ),
            ),
            starts=replace(
                starts,
                asked=tuple(min(asked, at) for asked in starts.asked),
                last_failure_at=_clamped(starts.last_failure_at, at),
            ),
        )

    def after_break(self, at: float, break_s: float, start_timeout_s: float) -> PoolMemory:
        """Return the state after a time without a leader, which must not count as a time without requests, as one in
        which fewer replicas were enough, or as a part of a cold start.

        Args:
            at: now.
            break_s: a longer time since the last tick is a time without a leader.
            start_timeout_s: after a longer one pending starts are forgotten: their outcome is unknown.
        """
        if self.meter.at is None or at - self.meter.at <= break_s:
            return self
        starts = replace(self.starts, asked=(), unseen=0) if at - self.meter.at > start_timeout_s else self.starts
        slow = replace(self.slow, since=at, active_at=None if self.slow.active_at is None else at)
        return replace(self, slow=slow, starts=starts)

    def to_bytes(self) -> bytes:
        """Return the state as JSON. The needs of two hours are most of it, some 35 KB."""
        # Not the needs: `asdict` copies each of them, and takes most of a decision's time.
        slow, starts = asdict(replace(self.slow, needs=(), moves=())), asdict(self.starts)
        slow["needs"] = [_need_fields(need) for need in self.slow.needs]
        slow["moves"] = [[move.at, move.replicas, move.before] for move in self.slow.moves]
        starts["known"] = sorted(self.starts.known)
        # A release before this one refuses fields of these parts that it does not know, and empties its memory. It
        # reads past other parts, so what is new has its own.
        stored: dict[str, Any] = {"slow": slow, "meter": asdict(self.meter), "starts": starts, "group": self.group}
        stored |= {"hold": slow.pop("hold"), "since": slow.pop("since"), "fill_from": slow.pop("fill_from")}
        stored |= {"standby": asdict(self.standby)}
        stored["belief"] = belief_values(self.belief)
        stored["hours"] = None if self.hours is None else self.hours.values()
        stored["beyond"] = None if self.beyond is None else self.beyond.values()
        return json.dumps(stored).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> PoolMemory:
        """Read what `to_bytes` wrote. Fields that only a later release knows are left out.

        Raises:
            ValueError, KeyError, TypeError: the text is anything else.
        """
        stored = json.loads(text)
        slow, starts = stored["slow"], stored["starts"]
        # The last leader may have been of a release that stored it there.
        slow["hold"] = _known(Hold, stored.get("hold", slow.get("hold", {})))
        slow["since"], slow["fill_from"] = stored.get("since"), stored.get("fill_from")
        slow["needs"] = tuple(map(_need, slow["needs"]))
        slow["moves"] = tuple(Move(*move[: len(fields(Move))]) for move in slow["moves"])
        slow["check"] = _known(Check, slow.get("check", {}))
        slow["relief"] = Relief.of(slow.get("relief", ""))
        starts["known"] = frozenset(starts["known"])
        for name in ("asked", "samples"):
            starts[name] = tuple(starts[name])
        # The last leader may have been of a release that did not store the group, or knew no standbys.
        group = str(stored.get("group", ""))
        standby = stored.get("standby", {})
        for name in ("released", "returns", "names"):
            standby[name] = tuple(standby.get(name, ()))
        return cls(
            _known(SlowState, slow), _meter(stored["meter"]), _known(Starts, starts), group,
            _known(StandbyState, standby), read_belief(stored.get("belief", {})), read_hours(stored.get("hours")),
            read_beyond(stored.get("beyond")),
        )  # fmt: skip


def _known(part: type[Part], values: Mapping[str, Any]) -> Part:
    """Make a part of the state from the values that this release knows."""
    names = {each.name for each in fields(part)}
    return part(**{name: value for name, value in values.items() if name in names})


def _need_fields(need: Need) -> list[float]:
    shape = () if need.shape is None else _SHAPE(need.shape)
    return [round(need.at, 3), _short(need.work), need.replicas, _short(need.requests), *map(_short, shape)]


def _need(values: Sequence[float]) -> Need:
    # The last leader may have been of a release that did not store requests and shape, or stored more.
    at, work, replicas, *more = values
    shape = more[1 : 1 + len(fields(Shape))]
    return Need(at, work, int(replicas), more[0] if more else 0.0, Shape(*shape) if shape else None)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _clamped(value: float | None, most: float) -> float | None:
    return None if value is None else min(value, most)


def _meter(values: Mapping[str, Any]) -> Meter:
    counters = {
        router: {RequestClass(int(number)): _known(ClassCounts, counts) for number, counts in classes.items()}
        for router, classes in values["counters"].items()
    }
    rates = {
        RequestClass(int(number)): ClassRates(
            rate["requests"], Shape(**rate["shape"]) if rate["shape"] is not None else None
        )
        for number, rate in values["rates"].items()
    }
    return _known(Meter, {**values, "counters": counters, "rates": rates})
