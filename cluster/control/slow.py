"""The slow loop: how many replicas a group needs, every 15 seconds.

Demand is counted in replica-seconds of work that arrive per second, by length and not by requests, so that longer
prompts show at once. To it come growth over one cold start and what has piled up. Replicas that are starting count as
there. Removal looks back ten minutes and is tried out on the model before it is done. Every term and every rail leaves
a step, and the decision is made again without each term, so that one can say what it was good for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from cluster.control import guard
from cluster.control.decision import Counterfactual, Relief, Step
from cluster.control.demand import Demand, demand_of
from cluster.control.guard import Move, RailRules
from cluster.control.load import Check, LoadRules, Need, burst_work, growth, steady_window_s, steady_work
from cluster.control.relief import relief_of
from cluster.control.slo import OperatingPoint
from cluster.control.snapshot import GroupSnapshot

TERMS = ("check", "burst", "growth", "backlog", "batch", "running")
"""What a decision is made again without."""


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
    fill: float = 0.75
    """Part of a replica's time that is planned for in a group of `fill_replicas`, at first; it then follows the
    attainment. The free part shrinks with the root of the group's size, as the scatter of its load does."""
    fill_replicas: float = 4.0
    fill_floor: float = 0.55
    fill_ceiling: float = 0.95
    fill_up: float = 0.02
    fill_down: float = 0.05
    fill_period_s: float = 300.0
    look_back_s: float = 600.0
    """Removal goes down to what was needed in `look_back_starts` cold starts, at most so long: what would be wanted
    again sooner costs less if it is kept."""
    look_back_part: float = 0.95
    """For so much of that time what is left must have been enough: the very most is what chance brought for a tick."""
    look_back_starts: float = 2.0
    look_back_least_s: float = 180.0
    up_band: float = 0.1
    up_band_least: float = 0.5
    """While nothing has piled up, this part of the replicas, or so many, may be missing before one is added, if those
    that are there get no fuller than `drain_fill`."""
    history_s: float = 7200.0
    hold_s: float = 30.0
    """Between two changes."""
    down_band: float = 0.1
    """Less than this part of the replicas too many, and less than one, is not removed."""
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


@dataclass(frozen=True, slots=True)
class SlowDecision:
    """Is one tick's result."""

    replicas: int
    """To have, those that start included."""
    needed: int
    """Before hysteresis and rails."""
    relief: Relief
    """What to give up meanwhile."""
    alarms: tuple[str, ...]
    steps: tuple[Step, ...]
    counterfactuals: tuple[Counterfactual, ...]
    """Terms without which another number would have been decided."""
    state: SlowState

    @property
    def reason(self) -> str:
        """The last step that changed the number."""
        return self.steps[-1].reason if self.steps else ""


def decide(
    point: OperatingPoint, bounds: GroupBounds, seen: GroupSnapshot, state: SlowState, rules: SlowRules | None = None
) -> SlowDecision:
    """Choose how many replicas to have.

    Args:
        point: what the pool is run for.
        bounds: no decision leaves them.
        seen: the group now.
        state: the last decision's; `SlowState()` at first.
        rules: the constants.
    """
    rules = rules or SlowRules()
    made = _decide(point, bounds, seen, state, rules, without="")
    others = []
    for term in TERMS if seen.model is not None else ():
        other = _decide(point, bounds, seen, state, rules, without=term).replicas
        if other != made.replicas:
            others.append(Counterfactual(term, other))
    return replace(made, counterfactuals=tuple(others))


def _decide(
    point: OperatingPoint, bounds: GroupBounds, seen: GroupSnapshot, state: SlowState, rules: SlowRules, *, without: str
) -> SlowDecision:
    tick = _Tick(point, bounds, seen, state, rules, without)
    needed = tick.needed()
    wanted = tick.change(needed)
    wanted = tick.rails(wanted)
    return SlowDecision(
        replicas=wanted,
        needed=needed,
        relief=tick.relief(wanted),
        alarms=tick.alarms(),
        steps=tuple(tick.steps),
        counterfactuals=(),
        state=tick.next_state(needed, wanted),
    )


class _Tick:
    """Is one decision in the making."""

    def __init__(
        self,
        point: OperatingPoint,
        bounds: GroupBounds,
        seen: GroupSnapshot,
        state: SlowState,
        rules: SlowRules,
        without: str,
    ) -> None:
        self.point, self.bounds, self.seen, self.state, self.rules = point, bounds, seen, state, rules
        self.without = without
        self.steps: list[Step] = []
        passed_s = seen.at - state.needs[-1].at if state.needs else 0.0
        self.known = bool(state.needs) and seen.at - state.needs[0].at >= rules.load.known_after_s
        self.check = state.check.next(seen, passed_s, rules.load) if self.known else state.check
        self.fresh = self._checked(demand_of(point, seen))
        """The demand of the last minute, corrected."""
        self.demand = self._steady(self.fresh)
        self.growth = 1.0
        self.total = 0.0
        """Replicas needed, not rounded."""
        self.look_back_s = min(
            rules.look_back_s, max(rules.look_back_least_s, rules.look_back_starts * seen.cold_start_s)
        )

    def note(self, name: str, value: float, reason: str) -> None:
        self.steps.append(Step(name, value, reason))

    def _checked(self, demand: Demand | None) -> Demand | None:
        factor = self.check.factor if self.without != "check" else 1.0
        if demand is None or factor == 1.0:
            return demand
        self.note("check", factor, f"the work is taken to be x{factor:.2f}, as so much more or less runs than should")
        return demand.times(factor)

    def _steady(self, demand: Demand | None) -> Demand | None:
        """Average over what a cold start lasts, unless something has piled up."""
        if demand is None:
            return None
        window_s = steady_window_s(self.seen.cold_start_s, self.rules.load)
        work = steady_work(demand.work, self.state.needs, self.seen.at - window_s, self.rules.load)
        if demand.backlog:
            work = max(work, demand.work)
        requests = sum(each.rate for each in self.seen.demands if each.deadline_s is None)
        burst = burst_work(demand.work, requests, self.state.needs, self.seen.at, self.rules.load) if self.known else None
        if burst is not None and burst > work and self.without != "burst":
            self.note("burst", burst, f"what came lately, far over {work:.3g}: no chance")
            work = burst
        elif work != demand.work:
            self.note("steady", work, f"the average of {window_s:.0f} s, where {demand.work:.3g} came lately")
        return replace(demand, work=work)

    @property
    def within_s(self) -> float:
        """In how long what has piled up is to be worked off."""
        return max(self.rules.drain_s, self.seen.cold_start_s)

    @property
    def base_fill(self) -> float:
        return self.rules.fill if self.state.fill is None else self.state.fill

    @property
    def fill(self) -> float:
        """The part of a replica's time that is planned for in a group of this load."""
        rules = self.rules
        work = max(0.1, self.demand.work if self.demand else 0.0)
        # The work of a group of `fill_replicas`.
        usual = rules.fill_replicas * self.base_fill
        free = (1.0 - self.base_fill) * math.sqrt(usual / work)
        return max(rules.fill_floor, min(rules.fill_ceiling, 1.0 - free))

    # --- how many are needed ------------------------------------------------------------------------------------------

    def needed(self) -> int:
        if self.demand is None:
            return self._fallback()
        parts = {
            "demand": self._arriving(self.demand),
            "growth": self._growing(self.demand),
            "backlog": self._piled_up(self.demand),
            "batch": self._batch(self.demand),
        }
        total = sum(value for name, value in parts.items() if name != self.without)
        total = self.total = max(total, self._running(self.demand, total) if self.without != "running" else 0.0)
        needed = math.ceil(total - 1e-9)
        self.note("needed", needed, f"{total:.2f} replicas, rounded up")
        if needed < 1 and (self.seen.waiting or self.seen.running or any(each.queued for each in self.seen.demands)):
            needed = 1
            self.note("work", needed, "something waits or runs")
        return needed

    def _arriving(self, demand: Demand) -> float:
        value = demand.work / self.fill
        self.note(
            "demand", value, f"{demand.work:.3g} replica-seconds arrive per second; replicas are planned to be "
            f"{self.fill:.0%} full, in batches of {demand.batch:.4g}",
        )  # fmt: skip
        return value

    def _running(self, demand: Demand, total: float) -> float:
        """What runs needs places, whatever the model makes of what arrives."""
        value = self.seen.running / demand.batch / self.fill
        if value > total:
            self.note("running", value, f"{self.seen.running:.4g} sequences run, in batches of {demand.batch:.4g}")
        return value

    def _growing(self, demand: Demand) -> float:
        rules = self.rules
        self.growth = growth(self.state.needs, self.seen.cold_start_s, rules.load)
        value = demand.work * (self.growth - 1.0) / self.fill
        if value > 0:
            self.note(
                "growth", value, f"x{self.growth:.2f} within a cold start of {self.seen.cold_start_s:.0f} s, as "
                f"{rules.load.growth_part:.0%} of what was seen lately",
            )  # fmt: skip
        return value

    def _piled_up(self, demand: Demand) -> float:
        """What has piled up takes the free part of the replicas first, and more only for what does not fit there."""
        if demand.backlog <= 0:
            return 0.0
        rules = self.rules
        within = self.within_s
        together = (demand.work + demand.backlog / within) / rules.drain_fill
        value = max(0.0, together - demand.work * self.growth / self.fill)
        self.note(
            "backlog", value, f"{demand.backlog:.3g} replica-seconds wait beyond what the SLO allows, to be worked off "
            f"in {within:.0f} s with replicas {rules.drain_fill:.0%} full",
        )  # fmt: skip
        return value

    def _batch(self, demand: Demand) -> float:
        """Work with a deadline takes what the rest leaves free, and more replicas for what does not fit."""
        spare = max(0.0, self.seen.coming * self.fill - demand.work * self.growth)
        value = max(0.0, demand.deadline_work - spare) / self.fill
        if value > 0:
            self.note("batch", value, f"deadlines need {demand.deadline_work:.3g} replicas' time, {spare:.3g} is spare")
        return value

    def _fallback(self) -> int:
        """Follow waiting requests and KV usage, as an autoscaler that knows nothing of the engine does."""
        seen, rules = self.seen, self.rules
        if not seen.ready:
            needed = max(seen.coming, 1 if seen.waiting else 0)
            self.note("fallback", needed, f"no model and nothing ready; {seen.waiting:.0f} requests wait")
            return needed
        ratio = max(seen.kv_usage / rules.fallback_kv, seen.waiting / seen.ready / rules.fallback_waiting)
        needed = seen.ready if abs(ratio - 1.0) <= rules.fallback_tolerance else math.ceil(seen.ready * ratio - 1e-9)
        # Nothing running and nothing waiting still is one replica: bounds alone may say none.
        needed = max(1, needed)
        self.note(
            "fallback", needed, f"no step model to rely on: {seen.waiting:.0f} requests wait, KV caches are "
            f"{seen.kv_usage:.0%} full on {seen.ready} replicas",
        )  # fmt: skip
        return needed

    # --- whether to change --------------------------------------------------------------------------------------------

    def change(self, needed: int) -> int:
        have = self.seen.coming
        if needed > have and have and self._within_band(have):
            self.note("keep", have, f"{self.total:.2f} replicas are too little more to add one")
            return have
        if needed > have:
            self.note("up", needed, f"{self.seen.ready} ready and {self.seen.starting} starting are too few")
            return needed
        recent = [each.replicas for each in self.state.needs if each.at > self.seen.at - self.look_back_s]
        usual = sorted([needed, *recent])
        lasting = max(needed, usual[math.ceil(self.rules.look_back_part * len(usual)) - 1])
        band = max(1.0, self.rules.down_band * have)
        if lasting > have - band:
            self.note(
                "keep",
                have,
                f"{lasting} were enough for {self.rules.look_back_part:.0%} of the last {self.look_back_s:.0f} s",
            )
            return have
        if (why := self._not_now()) is not None:
            self.note("keep", have, why)
            return have
        target = max(lasting, have - max(1, math.floor(self.rules.down_step * have)))
        while target < have and (why := self._unsafe(target)) is not None:
            self.note("removal", target + 1, f"{target} replicas would not do: {why}")
            target += 1
        if target < have:
            self.note(
                "down",
                target,
                f"{lasting} were enough for {self.rules.look_back_part:.0%} of the last {self.look_back_s:.0f} s",
            )
        return target

    def _within_band(self, have: int) -> bool:
        demand, rules = self.demand, self.rules
        if demand is None or demand.backlog or demand.work * self.growth > rules.drain_fill * have:
            return False
        return self.total <= have + max(rules.up_band_least, rules.up_band * have)

    def _not_now(self) -> str | None:
        seen, rules = self.seen, self.rules
        if seen.starting:
            return f"{seen.starting} replicas are starting"
        if self.state.moves and seen.at - self.state.moves[-1].at < rules.hold_s:
            return f"the last change was {seen.at - self.state.moves[-1].at:.0f} s ago"
        history = seen.at - self.state.needs[0].at if self.state.needs else 0.0
        if history < self.look_back_s - 1e-6:
            return f"{history:.0f} s were seen, removal looks back {self.look_back_s:.0f} s"
        return None

    def _unsafe(self, replicas: int) -> str | None:
        """Say what would go wrong with so many replicas; None for nothing."""
        seen, rules = self.seen, self.rules
        if replicas < 1:
            idle = seen.at - (self.state.active_at if self.state.active_at is not None else seen.at)
            return None if idle >= rules.idle_s else f"there was work {idle:.0f} s ago"
        if seen.kv_usage * seen.ready / replicas > rules.kv_most:
            return f"KV caches would be {seen.kv_usage * seen.ready / replicas:.0%} full"
        if self.demand is None or seen.model is None:
            return None
        fullness = (self.demand.work + self.demand.deadline_work) * self.growth / replicas
        if fullness > rules.fill_ceiling:
            return f"each would be {fullness:.0%} full"
        slo, batch = self.point.itl_p95_s, seen.running / replicas
        if slo is not None and self.demand.mix is not None:
            itl = seen.model.itl(batch, self.demand.mix) * seen.spread
            if batch >= 1 and itl > slo:
                return f"p95 ITL would be {itl * 1e3:.3g} ms in batches of {batch:.3g}"
        return None

    # --- rails, in this order -----------------------------------------------------------------------------------------

    def rails(self, wanted: int) -> int:
        seen, rails, moves = self.seen, self.rules.rails, self.state.moves
        wanted = self._rail(wanted, guard.not_down_when_stale(wanted, seen, rails))
        wanted = self._rail(wanted, guard.not_up_after_failures(wanted, seen, rails))
        wanted = self._rail(wanted, guard.not_up_too_fast(wanted, seen, moves, rails))
        wanted = self._rail(wanted, guard.not_down_too_fast(wanted, seen, moves, rails))
        affordable = self.point.affordable(seen.gpus_per_replica)
        wanted = self._rail(wanted, guard.at_most(wanted, affordable, "budget", "the budget pays for no more"))
        wanted = self._rail(
            wanted, guard.at_most(wanted, self.bounds.largest, "max_replicas", "the largest number allowed")
        )
        return self._rail(
            wanted, guard.at_least(wanted, self.bounds.smallest, "min_replicas", "the smallest number allowed")
        )

    def _rail(self, wanted: int, step: Step | None) -> int:
        if step is None:
            return wanted
        self.steps.append(step)
        return int(step.value)

    # --- what else ----------------------------------------------------------------------------------------------------

    def relief(self, wanted: int) -> Relief:
        """Say what to give up until there are enough. What came in the last minute counts: it waits now."""
        if self.fresh is None:
            return Relief.NONE
        to_come = max(wanted, self.seen.coming) - self.seen.ready
        step = relief_of(self.fresh, self.seen.ready, to_come, wanted, self.fill, self.within_s)
        if step is None:
            return Relief.NONE
        self.steps.append(step)
        return Relief.of(step.name.removeprefix("relief_"))

    def alarms(self) -> tuple[str, ...]:
        found = []
        if self.seen.failed_starts:
            found.append(f"{self.seen.failed_starts} starts in a row failed")
        if self.seen.age_s > self.rules.rails.stale_s:
            found.append(f"values are {self.seen.age_s:.0f} s old")
        return tuple(found)

    def next_state(self, needed: int, wanted: int) -> SlowState:
        seen, state, rules = self.seen, self.state, self.rules
        work = self.fresh.work if self.fresh else 0.0
        needs = (*(n for n in state.needs if n.at > seen.at - rules.history_s), Need(seen.at, work, needed))
        kept = max(rules.rails.up_window_s, rules.rails.down_window_s, rules.hold_s)
        moves = tuple(move for move in state.moves if move.at > seen.at - kept)
        if wanted != seen.coming:
            moves = (*moves, Move(seen.at, wanted))
        active = bool(work or seen.running or seen.waiting)
        active_at = seen.at if active or state.active_at is None else state.active_at
        fill, fill_at = self._adapted()
        return SlowState(needs, moves, fill, fill_at, active_at, self.check)

    def _adapted(self) -> tuple[float | None, float | None]:
        """Follow the attainment: fuller replicas while it is good, emptier ones at once when it is not."""
        seen, state, rules = self.seen, self.state, self.rules
        if state.fill_at is None:
            return state.fill, seen.at
        if seen.at - state.fill_at < rules.fill_period_s or seen.attainment is None or seen.starting:
            return state.fill, state.fill_at
        aim = self.point.attainment
        if seen.attainment < aim:
            return max(rules.fill_floor, self.base_fill - rules.fill_down), seen.at
        if seen.attainment > (1.0 + aim) / 2:
            return min(rules.fill_ceiling, self.base_fill + rules.fill_up), seen.at
        return state.fill, seen.at
