"""Announced load of one pool, as its leader reads, judges and counts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cluster.announced.arrivals import RouterCounts
from cluster.announced.belief import Announced, Belief, BeliefRules, WorkOf
from cluster.announced.contract import AnnouncedReader
from cluster.announced.load import AnnouncedLoad
from cluster.autoscaler.assemble import UNKNOWN_SHAPE
from cluster.autoscaler.router_report import Report
from cluster.control.replica_seconds import best_batch, mean_shape
from cluster.control.settings import ControlMode
from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_model import Shape, StepModel
from cluster.forecast.announced import AnnouncedWork
from penstock.values.slo import OperatingPoint


class Announcements:
    """Announced load of one pool. Without a reader there is none."""

    def __init__(self, mode: ControlMode, reader: AnnouncedReader | None, rules: BeliefRules | None = None) -> None:
        self.mode = mode
        self.loads: Sequence[AnnouncedLoad] = ()
        """What was read last."""
        self.work: AnnouncedWork | None = None
        """What the last look foresaw, whether decisions use it or not; None for nothing."""
        self.belief = Belief()
        """That of the last look."""
        self._seen: Announced | None = None
        """What the last look rested on; None for nothing."""
        self._reader = reader
        self._rules = rules or BeliefRules()

    async def read(self) -> None:
        """Read what is announced.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        if self._reader is not None and self.mode is not ControlMode.OFF:
            self.loads = await self._reader.read()
        else:
            self.loads = ()

    def look(
        self, point: OperatingPoint, seen: GroupSnapshot, belief: Belief, reports: Mapping[str, Report], growth_s: float
    ) -> tuple[GroupSnapshot, Belief]:
        """Judge what came, and return the group with the work that is announced, and the belief after it.

        Args:
            point: the operating point.
            seen: the group now.
            belief: that of the last look.
            reports: of routers.
            growth_s: longest time that a bounded growth takes. So much sooner the first ones may have to be ordered.
        """
        self.work, self.belief, self._seen = None, belief, None
        if seen.model is None or not (self.loads or belief.arrivals.rates):
            return seen, belief
        announced = self._seen = Announced(seen.at, self.loads, _usual(seen), _work_of(point, seen, seen.model))
        self.belief = belief = announced.judge(belief, counters_of(reports), self._rules)
        start_s = seen.cold_start_s + seen.tick_s
        self.work = announced.foresee(belief, start_s, start_s + seen.cold_start_s + growth_s)
        return (replace(seen, announced=self.work) if self.mode is ControlMode.ACTIVE else seen), belief

    def course(self, times: Sequence[float]) -> Sequence[AnnouncedWork]:
        """Return the announced work at given times, as the last look has it."""
        if self._seen is None:
            return [AnnouncedWork(0.0, 0.0, recent=False)] * len(times)
        return self._seen.course(self.belief, times)


def counters_of(reports: Mapping[str, Report]) -> RouterCounts:
    """Return the counters of tenants by router."""
    return {router: report.tenants for router, report in reports.items()}


def _usual(seen: GroupSnapshot) -> Shape:
    return mean_shape(tuple(each for each in seen.demands if each.deadline_s is None)) or UNKNOWN_SHAPE


def _work_of(point: OperatingPoint, seen: GroupSnapshot, model: StepModel) -> WorkOf:
    def work(shape: Shape) -> float:
        return model.gpu_seconds(shape, best_batch(point, seen, shape), seen.step_tokens)

    return work
