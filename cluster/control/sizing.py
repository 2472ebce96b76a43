"""How many replicas a group needs: what arrives, what runs, and what has piled up, against what a replica does."""

from __future__ import annotations

import math
from dataclasses import replace

from cluster.control.demand import Demand, demand_of, mean_shape
from cluster.control.length_shift import longer_work
from cluster.control.load_forecast import Need, burst_work, growth, steady_window_s, steady_work
from cluster.control.replica_rules import SlowRules, SlowState
from cluster.control.snapshot import GroupSnapshot
from cluster.plural import counted
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Step


class Sizing:
    """Works out how many replicas a group needs, before hysteresis and rails. Every term leaves a step."""

    def __init__(
        self,
        point: OperatingPoint,
        seen: GroupSnapshot,
        state: SlowState,
        rules: SlowRules,
        without: str,
    ) -> None:
        self.point, self.seen, self.state, self.rules = point, seen, state, rules
        self.without = without
        self.steps: list[Step] = []
        passed_s = seen.at - state.needs[-1].at if state.needs else 0.0
        self.known = bool(state.needs) and seen.at - state.needs[0].at >= rules.load.known_after_s
        self.check = state.check.next(seen, passed_s, rules.load) if self.known else state.check
        arriving = tuple(each for each in seen.demands if each.deadline_s is None and each.rate > 0)
        self.requests = sum(each.rate for each in arriving)
        """That arrive per second."""
        self.shape = mean_shape(arriving)
        self.model = seen.model
        """Corrected."""
        self.longer = False
        """Whether each request asks for more than those before."""
        self.fresh = self._checked()
        """The demand of the last minute, corrected."""
        self.demand = self._left_out(self._steady(self.fresh))
        self.growth = 1.0
        self.total = 0.0
        """Replicas needed, not rounded."""

    def note(self, name: str, value: float, reason: str) -> None:
        """Leave a step."""
        self.steps.append(Step(name, value, reason))

    def _checked(self) -> Demand | None:
        """Count with a model that fits what runs: work and the batch that an ITL SLO allows follow from it alike."""
        seen, model = self.seen, self.seen.model
        factor = self.check.factor if self.without != "check" else 1.0
        if model is not None and factor != 1.0:
            self.note("check", factor, f"steps are taken to be x{factor:.2f} as long, as so much more or less runs")
            self.model = model.times(factor)
            seen = replace(seen, model=self.model)
        return demand_of(self.point, seen)

    def _steady(self, demand: Demand | None) -> Demand | None:
        """Average over what a cold start lasts, unless it jumps. Also while something has piled up: that is added by
        itself, and the largest of several ticks' chances would be ordered.
        """
        if demand is None:
            return None
        rules, needs, at, requests = self.rules.load, self.state.needs, self.seen.at, self.requests
        window_s = steady_window_s(self.seen.cold_start_s, rules)
        work = steady_work(demand.work, requests, needs, at - window_s, rules)
        usual = work
        longer = self._longer(demand, window_s)
        self.longer = longer > work
        if self.longer:
            self.note("lengths", longer, f"requests of late ask for more each than those before; {work:.3g} if not")
            work = longer
        burst = burst_work(demand.work, requests, needs, at, rules) if self.known else None
        if burst is not None and burst > work and self.without != "burst":
            self.note("burst", burst, f"what came lately, far over {work:.3g}: no chance")
            work = burst
        if work == usual != demand.work:
            self.note("steady", work, f"the average of {window_s:.0f} s, where {demand.work:.3g} came lately")
        return replace(demand, work=work)

    def _left_out(self, demand: Demand | None) -> Demand | None:
        """Leave out what the decision is made without, wherever else it would count, too."""
        if demand is not None and self.without == "backlog":
            return replace(demand, backlog=0.0)
        if demand is not None and self.without == "batch":
            return replace(demand, deadline_work=0.0, due_work=0.0)
        return demand

    def _longer(self, demand: Demand, window_s: float) -> float:
        """Return the work of requests that each ask for more than those before, else 0."""
        model = self.model
        if not self.known or model is None or self.without == "lengths":
            return 0.0
        rules, needs, at = self.rules.load, self.state.needs, self.seen.at
        counts = [Need(need.at, need.requests, 0) for need in needs if need.shape is not None]
        usual = steady_work(self.requests, self.requests, counts, at - window_s, rules)
        now = Need(at, demand.work, 0, self.requests, self.shape)
        batch, budget = demand.batch, self.seen.step_tokens
        return longer_work(now, usual, needs, lambda shape: model.gpu_seconds(shape, batch, budget), rules) or 0.0

    @property
    def within_s(self) -> float:
        """In how long what has piled up is to be worked off."""
        return max(self.rules.drain_s, self.seen.cold_start_s)

    @property
    def base_fill(self) -> float:
        """The same in a group of `fill_replicas`."""
        return self.rules.fill if self.state.fill is None else self.state.fill

    @property
    def fill(self) -> float:
        """The part of a replica's time that is planned for in a group of this load: what is free grows with the root of
        the load, as its scatter does (square-root staffing; Halfin and Whitt, Operations Research 29, 1981).
        """
        rules = self.rules
        work = max(0.1, self.demand.work if self.demand else 0.0)
        # The work of a group of `fill_replicas`.
        usual = rules.fill_replicas * self.base_fill
        free = (rules.fill_replicas - usual) * math.sqrt(work / usual)
        return max(rules.least_fill, min(rules.most_fill, work / (work + free)))

    def needed(self) -> int:
        """Return the replicas that are needed."""
        demand = self.demand
        if demand is None:
            return self._fallback()
        total = self._arriving(demand) + self._growing(demand) + self._piled_up(demand) + self._batch(demand)
        counts = self.without != "running" and not self.seen.filled
        total = self.total = max(total, self._running(demand, total) if counts else 0.0)
        needed = math.ceil(total - 1e-9)
        self.note("needed", needed, f"{total:.2f} replicas, rounded up")
        if needed < 1 and (self.seen.waiting or self.seen.running or any(each.queued for each in self.seen.demands)):
            needed = 1
            self.note("work", needed, "something waits or runs")
        elif needed and self.idle:
            needed = 0
            self.note("idle", needed, f"nobody came for {self.rules.idle_s:.0f} s")
        return needed

    @property
    def idle(self) -> bool:
        """Whether nothing came, waited or ran for so long that a group may have no replica; averages never say so."""
        seen, active_at = self.seen, self.state.active_at
        busy = seen.running or seen.waiting or seen.filled or any(each.queued for each in seen.demands)
        if active_at is None or busy:
            return False
        return seen.at - max(active_at, seen.arrived_at or active_at) >= self.rules.idle_s

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
        if self.known and self.without != "growth":
            ahead_s = self.seen.cold_start_s
            self.growth = growth(self.state.needs, demand.work, self.seen.at, ahead_s, rules.load)
        value = demand.work * (self.growth - 1.0) / self.fill
        if value > 0:
            self.note(
                "growth", value, f"x{self.growth:.2f} within a cold start of {self.seen.cold_start_s:.0f} s, as "
                "if it goes on as lately",
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
        """Work with a deadline takes what the rest leaves free, and more replicas for what does not fit. What is free
        is needed for it, too, or it would be removed.
        """
        value = demand.deadline_work / self.fill
        if value > 0:
            spare = max(0.0, self.seen.coming * self.fill - demand.work * self.growth)
            self.note("batch", value, f"deadlines need {demand.deadline_work:.3g} replicas' time, {spare:.3g} is spare")
        return value

    def _fallback(self) -> int:
        """Follow waiting requests and KV usage, as an autoscaler that knows nothing of the engine does."""
        seen, rules = self.seen, self.rules
        if not seen.ready:
            # A router that has no tokenizer yet refuses what it would else put in line, and counts it.
            came = sum(each.rate for each in seen.demands)
            needed = max(seen.coming, 1 if seen.waiting or (came and not self.idle) else 0)
            self.note(
                "fallback", needed, f"no model and nothing ready; {seen.waiting:.0f} requests wait, {came:.3g} come "
                "per second",
            )  # fmt: skip
            return needed
        ratio = max(seen.kv_usage / rules.fallback_kv, seen.waiting / seen.ready / rules.fallback_waiting)
        needed = seen.ready if abs(ratio - 1.0) <= rules.fallback_tolerance else math.ceil(seen.ready * ratio - 1e-9)
        # Nothing running and nothing waiting still is one replica, until that was so for long: bounds may allow none.
        needed = 0 if self.idle else max(1, needed)
        self.note(
            "fallback", needed, f"no step model to rely on: {seen.waiting:.0f} requests wait, KV caches are "
            f"{seen.kv_usage:.0%} full on {counted(seen.ready, 'replica')}",
        )  # fmt: skip
        return needed
