"""Sizing of a group: arriving, running and piled-up work against what one replica does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from cluster.control.length_shift import enough_came, longer_work
from cluster.control.load_forecast import Check, Need, burst_work, growth, steady_window_s, steady_work
from cluster.control.rails import growth_time_s
from cluster.control.replica_rules import SlowRules, SlowState
from cluster.control.replica_seconds import Demand, demand_of, mean_shape
from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_model import Shape, StepModel
from cluster.forecast.announced import AnnouncedRise
from cluster.forecast.plan import AheadPlan, plan_ahead
from cluster.plural import counted
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Step


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """Load that a group is sized for."""

    requests: float
    """Requests that arrive per second, without those that have a deadline."""
    shape: Shape | None
    """Mean of those requests."""
    check: Check
    fresh: Demand | None
    """Demand of the last minute, corrected by the check; None without a step model."""
    demand: Demand | None
    """The same, averaged over a cold start unless it jumps, and without the term that the decision leaves out."""
    longer: bool
    """Whether each request asks for more work than earlier ones did."""

    def has(self, term: str) -> bool:
        """Whether the load may be another one without this term. A backlog and work with a deadline are apart."""
        return term == "burst" or (term == "check" and self.check.factor != 1.0) or (term == "lengths" and self.longer)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Replicas that a group needs before hysteresis and rails, with the values that led there."""

    needed: int
    total: float
    """The same, not rounded; 0 without a step model."""
    growth: float
    """Factor on the work within a cold start."""
    load: GroupLoad
    fill: float
    """Part of a replica's time that is planned for in a group with this load."""
    idle: bool
    """Whether nothing came, waited or ran for a time after which a group may have no replica."""
    steps: tuple[Step, ...]
    """One for each term that counted."""
    later: float = 0.0
    """Replicas for the largest load that a pattern foretells until a removed one could be back; 0 without a pattern."""
    falls: bool = False
    """Whether a pattern foretells less load for as long."""
    announced: bool = False
    """Whether announced work asks for more than the load does."""


def size_group(
    point: OperatingPoint,
    seen: GroupSnapshot,
    state: SlowState,
    rules: SlowRules,
    most: int,
    *,
    without: str = "",
    usual: GroupLoad | None = None,
) -> Sizing:
    """Return the replicas that a group needs.

    Args:
        point: the pool's operating point.
        seen: the group now.
        state: of the last decision.
        rules: the constants.
        most: replicas that the group can have. It may need more.
        without: the term to leave out; empty for none.
        usual: the load with all terms, if known. Most terms change nothing in it, and it takes most of the time; its
            steps are left out where it is used.
    """
    return _Sizer(point, seen, state, rules, most, without, usual).size()


def base_fill(state: SlowState, rules: SlowRules) -> float:
    """Return the part of a replica's time that is planned for in a group of `fill_replicas`."""
    return rules.fill if state.fill is None else state.fill


def drain_time_s(seen: GroupSnapshot, rules: SlowRules) -> float:
    """Return the seconds in which a backlog is to be worked off."""
    return max(rules.drain_s, seen.cold_start_s)


def planned_fill(work: float, state: SlowState, rules: SlowRules) -> float:
    """Return the part of a replica's time to plan for with this work. The free part grows with the root of the load, as
    the scatter of the load does (square-root staffing; Halfin and Whitt, Operations Research 29, 1981).
    """
    work, base = max(0.1, work), base_fill(state, rules)
    # The work of a group of `fill_replicas`.
    usual = rules.fill_replicas * base
    free = (rules.fill_replicas - usual) * math.sqrt(work / usual)
    return max(min(rules.least_fill, base), min(rules.most_fill, work / (work + free)))


def _idle(seen: GroupSnapshot, state: SlowState, rules: SlowRules) -> bool:
    busy = seen.running or seen.waiting or seen.filled or any(each.queued for each in seen.demands)
    if state.active_at is None or busy:
        return False
    # Averages never tell that nothing comes.
    return seen.at - max(state.active_at, seen.arrived_at or state.active_at) >= rules.idle_s


@dataclass(frozen=True, slots=True)
class _Sizer:
    """One sizing in the making: its inputs, and the steps so far."""

    point: OperatingPoint
    seen: GroupSnapshot
    state: SlowState
    rules: SlowRules
    most: int
    without: str
    usual: GroupLoad | None
    steps: list[Step] = field(default_factory=list)

    def note(self, name: str, value: float, reason: str) -> None:
        self.steps.append(Step(name, value, reason))

    def size(self) -> Sizing:
        load = self.load()
        fill = planned_fill(load.demand.work if load.demand else 0.0, self.state, self.rules)
        idle = _idle(self.seen, self.state, self.rules)
        later, falls, announced = 0.0, False, False
        if load.demand is None:
            needed, total, grown = self._fallback(idle=idle), 0.0, 1.0
        else:
            ahead = self._ahead()
            grown = self._growing(load.demand, fill, ahead)
            arriving = load.demand.work * grown / fill
            soon, later = self._announced(load)
            announced, falls = soon > arriving, ahead is not None and ahead.later < 1.0 and not later
            idle = idle and not later
            if ahead is not None:
                later = max(later, load.demand.work * ahead.later / fill)
            total = self._total(load.demand, fill, grown, max(arriving, soon))
            needed = self._whole(total, idle=idle)
        return Sizing(needed, total, grown, load, fill, idle, tuple(self.steps), later, falls, announced)

    # --- the load -----------------------------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether the history is long enough to compare with."""
        needs = self.state.needs
        return bool(needs) and self.seen.at - needs[0].at >= self.rules.load.known_after_s

    def load(self) -> GroupLoad:
        load = self.usual if self.usual is not None and not self.usual.has(self.without) else self._load()
        return load if load.demand is None else replace(load, demand=self._left_out(load.demand))

    def _load(self) -> GroupLoad:
        arriving = tuple(each for each in self.seen.demands if each.deadline_s is None and each.rate > 0)
        requests, shape = sum(each.rate for each in arriving), mean_shape(arriving)
        check = self._check()
        model = self._corrected(check)
        fresh = demand_of(self.point, self.seen if model is self.seen.model else replace(self.seen, model=model))
        if fresh is None or model is None:
            return GroupLoad(requests, shape, check, None, None, longer=False)
        work, longer = self._steady(Need(self.seen.at, fresh.work, 0, requests, shape), fresh.batch, model)
        return GroupLoad(requests, shape, check, fresh, replace(fresh, work=work), longer)

    def _check(self) -> Check:
        if not self.known:
            return self.state.check
        passed_s = self.seen.at - self.state.needs[-1].at
        return self.state.check.next(self.seen, passed_s, self.rules.load)

    def _corrected(self, check: Check) -> StepModel | None:
        """Return a model that fits the running sequences. Work and the batch within the ITL SLO both follow from it."""
        model = self.seen.model
        factor = check.factor if self.without != "check" else 1.0
        if model is None or factor == 1.0:
            return model
        self.note("check", factor, f"steps are taken to be x{factor:.2f} as long, as so much more or less runs")
        return model.times(factor)

    def _steady(self, now: Need, batch: float, model: StepModel) -> tuple[float, bool]:
        """Return the work to plan for, and whether requests are longer than before. The work is averaged over a cold
        start unless it jumps. That holds during a backlog too: the backlog is added separately, and the largest of
        several ticks' chances would be ordered otherwise.
        """
        rules, needs = self.rules.load, self.state.needs
        window_s = steady_window_s(self.seen.cold_start_s, rules)
        usual = work = steady_work(now.work, now.requests, needs, now.at - window_s, rules)
        asked = self._longer(now, batch, model, window_s)
        longer = asked > work
        if longer:
            self.note("lengths", asked, f"requests of late ask for more each than those before; {work:.3g} if not")
            work = asked
        burst = burst_work(now.work, now.requests, needs, now.at, rules) if self.known else None
        if burst is not None and burst > work and self.without != "burst":
            self.note("burst", burst, f"what came lately, far over {work:.3g}: no chance")
            work = burst
        if work == usual != now.work:
            self.note("steady", work, f"the average of {window_s:.0f} s, where {now.work:.3g} came lately")
        return work, longer

    def _longer(self, now: Need, batch: float, model: StepModel, window_s: float) -> float:
        """Return the work of requests that each ask for more than earlier ones; 0 where they do not."""
        if not self.known or self.without == "lengths":
            return 0.0
        rules, needs, budget = self.rules.load, self.state.needs, self.seen.step_tokens
        if not enough_came(now, needs, rules):
            return 0.0
        counts = [Need(need.at, need.requests, 0) for need in needs if need.shape is not None]
        usual = steady_work(now.requests, now.requests, counts, now.at - window_s, rules)
        return longer_work(now, usual, needs, lambda shape: model.gpu_seconds(shape, batch, budget), rules) or 0.0

    def _left_out(self, demand: Demand) -> Demand:
        """Remove the term that the decision leaves out, so that it counts nowhere."""
        if self.without == "backlog":
            return replace(demand, backlog=0.0)
        if self.without == "batch":
            return replace(demand, deadline_work=0.0, due_work=0.0)
        return demand

    # --- the replicas for it ------------------------------------------------------------------------------------------

    def _ahead(self) -> AheadPlan | None:
        """Return the plan for what earlier days and weeks foretell."""
        return plan_ahead(self.seen.outlook, self.rules.ahead) if self.known and self.without != "ahead" else None

    def _growth(self, demand: Demand) -> float:
        if not self.known or self.without == "growth":
            return 1.0
        return growth(self.state.needs, demand.work, self.seen.at, self.seen.cold_start_s, self.rules.load)

    def _announced(self, load: GroupLoad) -> tuple[float, float]:
        """Return the replicas for what comes and what is announced: one cold start from now, and until a replica that
        is removed now could be back. Both are 0 without announced work.
        """
        announced, demand = self.seen.announced, load.demand
        if announced is None or demand is None or load.fresh is None or self.without == "announced":
            return 0.0, 0.0
        # Averages over a cold start do not show yet what has just begun.
        comes = max(demand.work, load.fresh.work) if announced.recent else demand.work
        factor = load.check.factor if self.without != "check" else 1.0
        start_s = self.seen.cold_start_s + self.seen.tick_s
        due = kept = AnnouncedRise(start_s, announced.soon, announced.said)
        for rise in announced.rises:
            whole = min(self.most, math.ceil(self._replicas(comes + factor * rise.soon) - 1e-9))
            # An addition is bounded, so the first of many replicas are ordered sooner than the last.
            if rise.in_s <= start_s + self._growth_s(whole):
                due = rise
            # After a removal the growth begins at less, and takes a window more.
            if rise.in_s <= start_s + self.seen.cold_start_s + self._growth_s(2 * whole):
                kept = rise
        if not kept.soon:
            return 0.0, 0.0
        soon, later = (self._replicas(comes + factor * each.soon) for each in (due, kept))
        self.note(
            "announced", soon, f"{due.said:.3g} replica-seconds per second are announced for the next "
            f"{due.in_s:.0f} s; {due.soon:.3g} of them are believed, and do not come yet",
        )  # fmt: skip
        return soon, later

    def _growth_s(self, replicas: int) -> float:
        return growth_time_s(replicas, self.seen, self.state.moves, self.rules.rails)

    def _replicas(self, work: float) -> float:
        """Return the replicas for so much work."""
        return work / planned_fill(work, self.state, self.rules)

    def _total(self, demand: Demand, fill: float, grown: float, arriving: float) -> float:
        total = arriving + self._piled_up(demand, arriving) + self._batch(demand, fill, grown)
        counts = self.without != "running" and not self.seen.filled
        return max(total, self._running(demand, fill, total) if counts else 0.0)

    def _whole(self, total: float, *, idle: bool) -> int:
        needed = math.ceil(total - 1e-9)
        self.note("needed", needed, f"{total:.2f} replicas, rounded up")
        if needed < 1 and (self.seen.waiting or self.seen.running or any(each.queued for each in self.seen.demands)):
            needed = 1
            self.note("work", needed, "something waits or runs")
        elif needed < 1 and self._came_lately:
            # It may have been refused because nobody was there to take it.
            needed = 1
            self.note("work", needed, "somebody came lately, with very little work")
        elif needed and idle:
            needed = 0
            self.note("idle", needed, f"nobody came for {self.rules.idle_s:.0f} s")
        return needed

    @property
    def _came_lately(self) -> bool:
        arrived_at = self.seen.arrived_at
        return arrived_at is not None and self.seen.at - arrived_at < self.rules.idle_s

    def _growing(self, demand: Demand, fill: float, ahead: AheadPlan | None) -> float:
        """Return the factor on the work within a cold start: the larger one of trend and pattern, or the fall that a
        pattern foretells.
        """
        self._arriving(demand, fill)
        trend = self._growth(demand)
        outlook = self.seen.outlook
        if ahead is not None and outlook is not None and outlook.pattern is not None:
            known = outlook.pattern
            if ahead.change > trend or ahead.change < 1.0 == trend:
                self.note(
                    "ahead", demand.work * (ahead.change - 1.0) / fill, f"x{ahead.change:.2f} within "
                    f"{outlook.ahead_s:.0f} s, by the {known.name}: its forecasts were {known.skill:.0%} less wrong "
                    "than the present load",
                )  # fmt: skip
                return ahead.change
        if trend > 1.0:
            self.note(
                "growth", demand.work * (trend - 1.0) / fill, f"x{trend:.2f} within a cold start of "
                f"{self.seen.cold_start_s:.0f} s, as if it goes on as lately",
            )  # fmt: skip
        return trend

    def _arriving(self, demand: Demand, fill: float) -> None:
        self.note(
            "demand", demand.work / fill, f"{demand.work:.3g} replica-seconds arrive per second; replicas are planned "
            f"to be {fill:.0%} full, in batches of {demand.batch:.4g}",
        )  # fmt: skip

    def _piled_up(self, demand: Demand, arriving: float) -> float:
        """Return the replicas for a backlog. It takes the free part of the others first, and more only for the rest."""
        if demand.backlog <= 0:
            return 0.0
        rules, within = self.rules, drain_time_s(self.seen, self.rules)
        together = (demand.work + demand.backlog / within) / rules.drain_fill
        value = max(0.0, together - arriving)
        self.note(
            "backlog", value, f"{demand.backlog:.3g} replica-seconds wait beyond what the SLO allows, to be worked off "
            f"in {within:.0f} s with replicas {rules.drain_fill:.0%} full",
        )  # fmt: skip
        return value

    def _batch(self, demand: Demand, fill: float, grown: float) -> float:
        """Return the replicas for work with a deadline. It runs in the room that the rest leaves free. That room counts
        as needed too, or it would be removed.
        """
        value = demand.deadline_work / fill
        if value > 0:
            spare = max(0.0, self.seen.coming * fill - demand.work * grown)
            self.note("batch", value, f"deadlines need {demand.deadline_work:.3g} replicas' time, {spare:.3g} is spare")
        return value

    def _running(self, demand: Demand, fill: float, total: float) -> float:
        """Return the replicas for the running sequences, which need places whatever the model says of arrivals."""
        value = self.seen.running / demand.batch / fill
        if value > total:
            self.note("running", value, f"{self.seen.running:.4g} sequences run, in batches of {demand.batch:.4g}")
        return value

    def _fallback(self, *, idle: bool) -> int:
        """Follow waiting requests and KV usage, as an autoscaler does that knows nothing of the engine."""
        seen, rules = self.seen, self.rules
        if not seen.ready:
            # A router without a tokenizer refuses the requests that it would otherwise put in line, and counts them.
            came = sum(each.rate for each in seen.demands)
            needed = max(seen.coming, 1 if seen.waiting or (came and not idle) else 0)
            self.note(
                "fallback", needed, f"no model and nothing ready; {seen.waiting:.0f} requests wait, {came:.3g} come "
                "per second",
            )  # fmt: skip
            return needed
        ratio = max(seen.kv_usage / rules.fallback_kv, seen.waiting / seen.ready / rules.fallback_waiting)
        needed = seen.ready if abs(ratio - 1.0) <= rules.fallback_tolerance else math.ceil(seen.ready * ratio - 1e-9)
        # A group without work keeps one replica until it was idle for long. Its bounds may allow none then.
        needed = 0 if idle else max(1, needed)
        self.note(
            "fallback", needed, f"no step model to rely on: {seen.waiting:.0f} requests wait, KV caches are "
            f"{seen.kv_usage:.0%} full on {counted(seen.ready, 'replica')}",
        )  # fmt: skip
        return needed
