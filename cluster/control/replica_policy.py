"""The replica policy: chooses how many replicas a group has, every 15 seconds.

Demand is counted in replica-seconds of work that arrive per second. It goes by length and not by requests, so that
longer prompts show at once. It is averaged over a cold start unless it jumps, because a new replica can't help with a
peak that ends sooner. It is corrected by the number of sequences that really run. The backlog is added to it. Replicas
that are starting count as present. A removal looks back five minutes at most, or thirty where few replicas are too
many, and is tried out on the model first. Every term and every rail leaves a step. The policy also decides again
without each term, which shows the term's effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from cluster.control import rails
from cluster.control.held_number import HeldNumber, after_look, held_number
from cluster.control.load_forecast import Need
from cluster.control.rails import Move
from cluster.control.relief import ReplicaCounts, relief_of, relief_without_model
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.sizing import Sizing, base_fill, drain_time_s, size_group
from cluster.control.snapshot import GroupSnapshot
from cluster.plural import counted
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Counterfactual, Relief, Step

TERMS = ("check", "lengths", "burst", "growth", "ahead", "announced", "backlog", "batch", "running", "hold")
"""Terms that the policy decides again without."""


@dataclass(frozen=True, slots=True)
class SlowDecision:
    """Result of one tick."""

    replicas: int
    """Replicas to have, those that start included."""
    needed: int
    """Replicas needed, before hysteresis and rails."""
    relief: Relief
    """What to give up meanwhile."""
    alarms: tuple[str, ...]
    steps: tuple[Step, ...]
    counterfactuals: tuple[Counterfactual, ...]
    """Terms without which the number would be another one."""
    state: SlowState
    work: float | None = None
    """Replica-seconds that arrive per second, averaged over about a minute; None without a step model."""

    @property
    def reason(self) -> str:
        """Reason of the last step that changed the number."""
        # Relief and standbys come last and change no number.
        told = [step for step in self.steps if not step.name.startswith(("relief_", "standby"))]
        return told[-1].reason if told else ""


def decide(
    point: OperatingPoint,
    bounds: GroupBounds,
    seen: GroupSnapshot,
    state: SlowState,
    rules: SlowRules | None = None,
    *,
    explain: bool = True,
) -> SlowDecision:
    """Choose how many replicas to have.

    Args:
        point: the pool's operating point.
        bounds: of every decision.
        seen: the group now.
        state: of the last decision; `SlowState()` at first.
        rules: the constants.
        explain: whether to decide again without each term, which takes most of the time.
    """
    rules = rules or SlowRules()
    state = replace(state, hold=after_look(point, seen, state, rules))
    most = bounds.most(point.affordable(seen.gpus_per_replica))
    sizing = size_group(point, seen, state, rules, most)
    made = _decide(point, bounds, seen, state, rules, sizing)
    others = []
    for term in TERMS if explain and seen.model is not None else ():
        one = size_group(point, seen, state, rules, most, without=term, usual=sizing.load)
        other = _decide(point, bounds, seen, state, rules, one, without=term).replicas
        if other != made.replicas:
            others.append(Counterfactual(term, other))
    return replace(made, counterfactuals=tuple(others))


def _decide(
    point: OperatingPoint,
    bounds: GroupBounds,
    seen: GroupSnapshot,
    state: SlowState,
    rules: SlowRules,
    sizing: Sizing,
    *,
    without: str = "",
) -> SlowDecision:
    # A pool without requests is to go; its bursts are over.
    held = held_number(point, seen, state, rules) if without != "hold" and not sizing.idle else None
    tick = _Tick(point, bounds, seen, state, rules, sizing, held)
    wanted = tick.rails(asked := tick.change())
    relief = tick.relief(wanted)
    return SlowDecision(
        replicas=wanted,
        needed=_needed(sizing, held),
        relief=relief,
        alarms=tick.alarms(),
        steps=(*sizing.steps, *tick.steps),
        counterfactuals=(),
        state=tick.next_state(wanted, relief, asked),
        work=sizing.load.fresh.work if sizing.load.fresh else None,
    )


def _needed(sizing: Sizing, held: HeldNumber | None) -> int:
    if held is None or held.outlasted:
        return sizing.needed
    return max(sizing.needed, held.replicas) if sizing.announced else held.replicas


@dataclass(frozen=True, slots=True)
class _Tick:
    """One decision in the making: the group, its sizing, and the steps so far."""

    point: OperatingPoint
    bounds: GroupBounds
    seen: GroupSnapshot
    state: SlowState
    rules: SlowRules
    sizing: Sizing
    held: HeldNumber | None
    """Number that is held through bursts; None where the group follows its load."""
    steps: list[Step] = field(default_factory=list)

    def note(self, name: str, value: float, reason: str) -> None:
        self.steps.append(Step(name, value, reason))

    # --- whether to change --------------------------------------------------------------------------------------------

    def change(self) -> int:
        if self.held is None:
            return self._followed()
        have, replicas = self.seen.coming, self.held.replicas
        if self.held.outlasted:
            self.note("hold", replicas, "at least, for the bursts that come and go; this one outlasts them")
            return max(self._followed(), replicas)
        if self.sizing.announced and self.sizing.needed > replicas:
            self.note("hold", replicas, "at least, for the bursts that come and go; more is announced")
            return max(self._followed(), replicas)
        if replicas < have and (why := self._waits() or self._not_now()) is not None:
            self.note("keep", have, why)
            return have
        target = self._safe(replicas) if replicas < have else replicas
        self.note("hold", target, "for bursts that end before a replica is ready")
        return target

    def _followed(self) -> int:
        needed, have = self.sizing.needed, self.seen.coming
        if needed > have and have and self._within_band(have):
            self.note("keep", have, f"{self.sizing.total:.2f} replicas are too little more to add one")
            return have
        if needed > have:
            self.note("up", needed, f"{self.seen.ready} ready and {self.seen.starting} starting are too few")
            return needed
        lasting, look_back_s, clear = self._lasting(have)
        enough = f"{lasting} were enough for {self.rules.look_back_part:.0%} of the last {look_back_s:.0f} s"
        if not clear:
            self.note("keep", have, enough)
            return have
        if (why := self._not_now()) is not None:
            self.note("keep", have, why)
            return have
        target = self._safe(lasting)
        if target < have:
            self.note("down", target, enough)
        return target

    def _safe(self, fewer: int) -> int:
        """Return the replicas that are left after a removal: a quarter goes at most, and none that would be missed."""
        have = self.seen.coming
        target = max(fewer, have - max(1, math.floor(self.rules.down_step * have)))
        while target < have and (why := self._unsafe(target)) is not None:
            self.note("removal", target + 1, f"{counted(target, 'replica')} would not do: {why}")
            target += 1
        return target

    @property
    def _look_back_s(self) -> float:
        rules = self.rules
        if self.sizing.falls:
            # What is foretold need not show for so long.
            return max(rules.load.steady_least_s, self.seen.cold_start_s)
        starts_s = max(rules.look_back_least_s, rules.look_back_starts * self.seen.cold_start_s)
        # No look-back can be longer than the history.
        return min(rules.history_s, self.state.patience * min(rules.look_back_s, starts_s))

    def _lasting(self, have: int) -> tuple[int, float, bool]:
        """Return the replicas that were enough, the seconds looked back, and whether replicas can go."""
        rules, needed, look_back_s = self.rules, self.sizing.needed, self._look_back_s
        if self.sizing.idle:
            return needed, rules.idle_s, needed < have
        short = self._enough(look_back_s)
        if short <= have - max(1.0, rules.down_band * have):
            return short, look_back_s, True
        long_s = max(look_back_s, rules.long_look_back_s)
        if self._history_s >= long_s - 1e-6:
            steady = self._enough(long_s)
            if steady <= have - max(1.0, rules.long_down_band * have):
                return steady, long_s, True
        return short, look_back_s, False

    def _enough(self, seconds: float) -> int:
        needed = self.sizing.needed
        recent = [each.replicas for each in self.state.needs if each.at > self.seen.at - seconds]
        usual = sorted([needed, *recent])
        later = math.ceil(self.sizing.later - 1e-9)
        return max(needed, later, usual[math.ceil(self.rules.look_back_part * len(usual)) - 1])

    @property
    def _history_s(self) -> float:
        """Return the seconds that were seen without a break."""
        if not self.state.needs:
            return 0.0
        return self.seen.at - max(self.state.needs[0].at, self.state.since or 0.0)

    def _within_band(self, have: int) -> bool:
        demand, rules = self.sizing.load.demand, self.rules
        if demand is None or demand.backlog or self.sizing.announced:
            return False
        if demand.work * max(1.0, self.sizing.growth) > rules.drain_fill * have:
            return False
        return self.sizing.total <= have + max(rules.up_band_least, rules.up_band * have)

    def _waits(self) -> str | None:
        fresh = self.sizing.load.fresh
        return "requests wait for longer than the SLO allows" if fresh is not None and fresh.backlog > 0 else None

    def _not_now(self) -> str | None:
        seen, rules = self.seen, self.rules
        if seen.outlook_awaited:
            return "a pattern of earlier days is known, and not looked up yet"
        if seen.starting:
            return counted(seen.starting, "replica is starting", "replicas are starting")
        if self.state.moves and seen.at - self.state.moves[-1].at < rules.hold_s:
            return f"the last change was {seen.at - self.state.moves[-1].at:.0f} s ago"
        if self._history_s < self._look_back_s - 1e-6:
            return f"{self._history_s:.0f} s were seen, removal looks back {self._look_back_s:.0f} s"
        return None

    def _unsafe(self, replicas: int) -> str | None:
        """Return what would go wrong with this number of replicas; None for nothing."""
        seen, rules, demand = self.seen, self.rules, self.sizing.load.demand
        if replicas < 1:
            idle = seen.at - (self.state.active_at if self.state.active_at is not None else seen.at)
            return None if idle >= rules.idle_s else f"there was work {idle:.0f} s ago"
        if not seen.filled and seen.kv_usage * seen.ready / replicas > rules.kv_most:
            return f"KV caches would be {seen.kv_usage * seen.ready / replicas:.0%} full"
        if demand is None or seen.model is None:
            return None
        fullness = (demand.work * max(1.0, self.sizing.growth) + demand.due_work) / replicas
        if fullness > rules.most_fill:
            return f"each would be {fullness:.0%} full"
        return None

    # --- rails, in this order -----------------------------------------------------------------------------------------

    def rails(self, wanted: int) -> int:
        seen, rules, moves, sure = self.seen, self.rules.rails, self.state.moves, self.sizing.load.longer
        wanted = self._rail(wanted, rails.down_by_surplus(wanted, seen))
        wanted = self._rail(wanted, rails.not_down_when_stale(wanted, seen, rules))
        wanted = self._rail(wanted, rails.not_up_too_fast(wanted, seen, moves, rules, sure=sure))
        if (due := seen.scheduled) is not None:
            # The rate bounds what an estimate that is wrong can order. A number that is given is none.
            wanted = self._rail(wanted, rails.at_least(wanted, due.replicas, "schedule", due.reason))
        wanted = self._rail(wanted, rails.not_up_after_failures(wanted, seen, rules))
        wanted = self._rail(wanted, rails.not_down_too_fast(wanted, seen, moves, rules))
        affordable = self.point.affordable(seen.gpus_per_replica)
        wanted = self._rail(wanted, rails.at_most(wanted, affordable, "budget", "the budget pays for no more"))
        wanted = self._rail(wanted, rails.at_most(wanted, self.bounds.largest, "max_replicas", self.bounds.why_largest))
        return self._rail(
            wanted, rails.at_least(wanted, self.bounds.smallest, "min_replicas", self.bounds.why_smallest)
        )

    def _rail(self, wanted: int, step: Step | None) -> int:
        if step is None:
            return wanted
        self.steps.append(step)
        return int(step.value)

    # --- what else ----------------------------------------------------------------------------------------------------

    def relief(self, wanted: int) -> Relief:
        """Return what to give up until there are enough replicas. The last minute's demand counts, because it waits
        now.
        """
        seen, rules, fresh = self.seen, self.rules, self.sizing.load.fresh
        if self.sizing.idle and not wanted:
            # Averages of what came fade, and never end. What comes next waits for a start.
            return Relief.NONE
        held = self.held is not None and not self.held.outlasted and not seen.failed_starts
        most = self.bounds.most(self.point.affordable(seen.gpus_per_replica))
        counts = ReplicaCounts(seen.ready, max(wanted, seen.coming) - seen.ready, wanted, most, held)
        if fresh is not None:
            step = relief_of(fresh, counts, self.sizing.fill, drain_time_s(seen, rules))
        else:
            batch = sum(each.queued for each in seen.demands if each.request_class is RequestClass.BATCH)
            crowded_at = seen.ready * rules.fallback_waiting * (1.0 + rules.fallback_tolerance)
            urgent = max(0.0, seen.waiting - batch)
            step = relief_without_model(self.state.relief, urgent, seen.waiting, crowded_at, counts)
        if step is None:
            return Relief.NONE
        self.steps.append(step)
        return Relief.of(step.name.removeprefix("relief_"))

    def alarms(self) -> tuple[str, ...]:
        found = []
        if self.seen.failed_starts:
            found.append(f"starts that failed in a row: {self.seen.failed_starts}")
        return (*found, *rails.stale_alarms(self.seen, self.rules.rails))

    def next_state(self, wanted: int, relief: Relief, asked: int) -> SlowState:
        """Return what is remembered; `asked`: the replicas that the load alone asks for."""
        seen, state, rules, load = self.seen, self.state, self.rules, self.sizing.load
        work = load.fresh.work if load.fresh else 0.0
        # One older need is kept too. Without it the history would always be a little shorter than its time.
        older = sum(need.at <= seen.at - rules.history_s for need in state.needs)
        needs = (*state.needs[max(0, older - 1) :], Need(seen.at, work, self.sizing.needed, load.requests, load.shape))
        kept = max(rules.rails.up_window_s, rules.rails.down_window_s, rules.hold_s, rules.regret_s)
        moves = tuple(move for move in state.moves if move.at > seen.at - kept)
        if wanted != seen.coming:
            moves = (*moves, Move(seen.at, wanted, seen.coming))
        active_at = self._active_at(work)
        fill, fill_at = self._adapted()
        patience, regretted_at = self._patience(min(wanted, asked))
        return replace(
            state, needs=needs, moves=moves, fill=fill, fill_at=fill_at, active_at=active_at, check=load.check,
            relief=relief, patience=patience, regretted_at=regretted_at,
            hold=state.hold.next(seen.at, waits=self._waits() is not None),
        )  # fmt: skip

    def _patience(self, wanted: int) -> tuple[float, float | None]:
        """Return the factor on the look-back, and the time of the last removal that was undone. The factor grows with
        such removals: a load with a period longer than the look-back would order and remove replicas in turns. So only
        what the load `wanted` undoes one. A schedule, or a larger `min_replicas`, says nothing about the look-back.
        """
        seen, state, rules = self.seen, self.state, self.rules
        down = [each for each in state.moves if each.before is not None and each.replicas < each.before]
        # More than was wanted before: the replacement of a dead replica does not count. And once per removal.
        if (
            down
            and wanted > max(seen.coming, state.moves[-1].replicas)
            and seen.at - down[-1].at < rules.regret_s
            and (state.regretted_at is None or down[-1].at > state.regretted_at)
        ):
            # The first one may be chance.
            again = state.regretted_at is not None
            return min(rules.regret_most, (2.0 if again else 1.0) * state.patience), seen.at
        if state.regretted_at is not None and seen.at - state.regretted_at >= rules.regret_forgotten_s:
            return 1.0, None
        return state.patience, state.regretted_at

    def _active_at(self, work: float) -> float:
        """Return the time of the last work."""
        seen, before = self.seen, self.state.active_at
        if seen.running or seen.waiting or seen.filled or before is None:
            return seen.at
        if seen.arrived_at is not None:
            return max(before, seen.arrived_at)
        return seen.at if work else before

    def _short(self) -> bool:
        """Return whether there is more work than the ready replicas do, and clearly more replicas are starting."""
        seen, rules, fresh = self.seen, self.rules, self.sizing.load.fresh
        if fresh is None or fresh.work <= rules.fill_ceiling * seen.ready:
            return False
        return seen.starting > rules.up_band * seen.ready

    def _adapted(self) -> tuple[float | None, float | None]:
        """Return the planned fill and the time of its last change. The fill follows the attainment: replicas get fuller
        while it is good, and emptier at once when it is not.
        """
        seen, state, rules = self.seen, self.state, self.rules
        if self._short():
            # Misses of a shortage stay in the attainment this long, and tell nothing about the right fill.
            return state.fill, seen.at + rules.attainment_s - rules.fill_period_s
        if state.fill_at is None:
            return state.fill, seen.at
        if seen.at - state.fill_at < rules.fill_period_s or seen.attainment is None or seen.starting:
            return state.fill, state.fill_at
        missed, allowed = 1.0 - seen.attainment, rules.slack * (1.0 - self.point.attainment)
        if missed > allowed:
            return max(rules.least_base_fill, base_fill(state, rules) - rules.fill_down), seen.at
        if missed < allowed / 2:
            return min(rules.most_fill, base_fill(state, rules) + rules.fill_up), seen.at
        return state.fill, seen.at
