"""Looks after one pool: leads it or waits to, and decides at every tick how many replicas it has.

Order within a tick: look, decide, store, act. What can't be stored is not done: whoever leads then knows of everything
that was. Only the last step, the call to the platform, is not fenced; a number that a deposed leader still sends is
corrected by its successor's next tick, which compares what the platform was told with what was decided.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from cluster.autoscaler.actuator import Actual, Actuator
from cluster.autoscaler.assemble import GroupFacts, assemble, ready_records
from cluster.autoscaler.decision_record import DecisionRecord
from cluster.autoscaler.leader_state import PoolMemory
from cluster.autoscaler.operating_point import point_in_force, who_set
from cluster.autoscaler.router_report import Counts, Report, unpack_report
from cluster.autoscaler.starts import Starts
from cluster.autoscaler.store import Commit, ControlStore, Leadership
from cluster.control.load_forecast import LoadRules
from cluster.control.rails import RailRules
from cluster.control.replica_policy import SlowDecision, decide
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.settings import ControlMode, operating_point
from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_fit import FittedStep
from cluster.control.step_model import StepModel
from cluster.errors import ActuatorError, LeadershipLostError
from cluster.queue.contract import Queue
from cluster.queue.heartbeats import PoolView
from cluster.settings import AutoscalerSettings, AutoscaleSettings, PoolSettings
from cluster.trust.announcement import Announcement
from cluster.trust.secret import ClusterSecret
from penstock.values.steps import Relief

_LOG = logging.getLogger(__name__)
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")

Result = TypeVar("Result")

RELIEF_TICKS = 3
"""Relief holds for so many ticks when nothing more is said."""

BREAK_TICKS = 4
"""A leader that finds the last tick further back than this was not there, and nor was another one."""


@dataclass(slots=True)
class Tally:
    """Counts what happened since start, for metrics."""

    ticks: int = 0
    changes_up: int = 0
    changes_down: int = 0
    actuator_errors: int = 0
    took_over: int = 0
    deposed: int = 0
    failures: int = 0
    """Ticks that ended with an error of ours."""


class PoolScaler:
    """Is one autoscaler's part in one pool. Owns nothing: whoever made the store and the queue closes them."""

    def __init__(
        self,
        name: str,
        holder: str,
        settings: PoolSettings,
        host: AutoscalerSettings,
        queue: Queue,
        store: ControlStore,
        actuator: Actuator,
        secret: ClusterSecret,
    ) -> None:
        self.name = name
        self.mode = ControlMode(settings.autoscale.mode)
        self.record: DecisionRecord | None = None
        """The last decision made here."""
        self.leading = False
        self.leader: Leadership | None = None
        self.actual: Actual | None = None
        self.tally = Tally()
        self._holder = holder
        self._settings = settings.autoscale
        self._host = host
        self._queue = queue
        self._store = store
        self._actuator = actuator
        self._secret = secret
        self._default_point = operating_point(settings)
        self._point: bytes | None = None
        self._bounds = GroupBounds(
            settings.autoscale.min_replicas, settings.autoscale.max_replicas or settings.replicas
        )
        self._facts = GroupFacts(settings.autoscale.cold_start_s, settings.ranks)
        self._rules = slow_rules(settings.autoscale)
        self._memory = PoolMemory()
        self._fence = 0
        self._fits: dict[str, StepModel] = {}
        self._unread: dict[str, int] = {}
        """Routers whose reports can't be read, and since when: pool time in milliseconds."""

    async def lead(self) -> bool:
        """Renew the lease, or take it where it is free; says whether this one leads.

        Raises:
            QueueUnavailableError: the store does not answer; nobody leads then for long.
        """
        try:
            self.leader = await self._store.lead(self._holder, self._host.lease_s)
        except BaseException:
            self.leading = False
            raise
        mine = self.leader.holder == self._holder
        if mine and self._fence != self.leader.fence:
            # Only who has read what the last leader knew leads on: a load that fails is tried again.
            await self._take_over(self.leader.fence)
            self._fence = self.leader.fence
        elif self.leading and not mine:
            self._lost()
        self.leading = mine
        if not mine:
            # Of a store that loses everything anybody may become the leader, and gives the point back to it.
            self._hear(await self._store.point())
        return mine

    async def _take_over(self, fence: int) -> None:
        self.tally.took_over += 1
        _LOG.warning("autoscaler.leads", extra={"pool": self.name, "fence": fence})
        stored = (await self._store.load()).state
        if stored is None:
            # Nobody ever decided, or the store lost everything: what is remembered here is then the best there is.
            return
        try:
            self._memory = PoolMemory.from_bytes(stored)
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("autoscaler.state_unread", extra={"pool": self.name, "error": str(error)})
            self._memory = PoolMemory()

    def _lost(self) -> None:
        self.leading = False
        self.tally.deposed += 1
        _LOG.warning("autoscaler.deposed", extra={"pool": self.name, "fence": self._fence})

    async def resign(self) -> None:
        """Let another one lead at once."""
        # Also where it is not known to lead: a renewal may have been on its way.
        self.leading = False
        await self._store.resign(self._holder)

    async def tick(self) -> DecisionRecord | None:
        """Decide once; for leaders. None when another one leads by now.

        Raises:
            QueueUnavailableError: the store does not answer; nothing was done.
        """
        view = await self._queue.observe()
        trouble = await self._look()
        view = self._own(view)
        before = self.actual.target if self.actual is not None else None
        reports = self._read(view)
        view = self._aged(view, reports)
        trouble += [f"the report of router {name} can't be read: it runs another version" for name in self._unread]
        self._memory = await self._remember(view, {name: one.counts for name, one in reports.items()}, before)
        jobs = [job for one in reports.values() for job in one.jobs]
        seen = assemble(view, self._memory.meter, self._memory.starts, self._facts, await self._fit(view), jobs)
        point = point_in_force(await self._point_of(view), self._default_point)
        made = decide(point, self._bounds, seen, self._memory.slow, self._rules)
        made = replace(made, alarms=(*made.alarms, *trouble))
        slow = made.state if self._acts else _unmoved(made.state, seen.at)
        self._memory = replace(self._memory, slow=slow, starts=self._asked(seen, made))
        record = DecisionRecord.of(
            seen, made, leader=self._holder, fence=self._fence, mode=self.mode,
            before=before if before is not None else seen.coming,
        )  # fmt: skip
        relief = made.relief if self._acts else Relief.NONE
        commit = Commit(
            self._memory.to_bytes(), made.replicas, relief,
            view.time_ms + round(RELIEF_TICKS * self._host.tick_s * 1000),
            record.to_bytes(), self._host.decisions_kept,
        )  # fmt: skip
        try:
            number = await self._store.commit(self._holder, self._fence, commit)
        except LeadershipLostError:
            self._lost()
            return None
        if _kinds(record.alarms) - _kinds(self.record.alarms if self.record is not None else ()):
            _LOG.error("autoscaler.alarm", extra={"pool": self.name, "alarms": "; ".join(record.alarms)})
        self.record = replace(record, number=number)
        self.tally.ticks += 1
        if self._acts and not await self._act(self.record, before) and made.replicas < seen.coming:
            # Refused additions stay: where the platform can't even be asked they bound what it is told at its return.
            self._memory = replace(self._memory, slow=_unmoved(made.state, seen.at))
        return self.record

    def _asked(self, seen: GroupSnapshot, made: SlowDecision) -> Starts:
        """Start the clock of those that are asked for now."""
        starts = self._memory.starts
        return starts.asked_for(seen.at, max(0, made.replicas - seen.ready)) if self._acts else starts

    @property
    def _acts(self) -> bool:
        return self.mode is ControlMode.ACTIVE

    async def _in_time(self, call: Awaitable[Result]) -> Result:
        """Wait for the platform, but not for so long that the lease ends meanwhile."""
        patience_s = self._host.patience_s
        try:
            async with asyncio.timeout(patience_s):
                return await call
        except TimeoutError:
            raise ActuatorError(self.name, f"no answer within {patience_s:.1f} s") from None

    async def _look(self) -> list[str]:
        """Ask the platform; returns what is wrong with it."""
        try:
            self.actual = await self._in_time(self._actuator.look(self.name))
        except ActuatorError as error:
            self.actual = None
            self.tally.actuator_errors += 1
            return [str(error)]
        return [self.actual.trouble] if self.actual.trouble else []

    def _own(self, view: PoolView) -> PoolView:
        """Leave replicas of other clusters out: while a cluster replaces another one both have some in the pool, and
        what is kept is told to one of them.
        """
        actual = self.actual
        if actual is None or actual.replicas is None:
            return view
        own = tuple(record for record in view.replicas if record.replica_id in actual.replicas)
        # None of those that run: its ids are not those that replicas announce, and say nothing.
        return view if actual.running and not own else replace(view, replicas=own)

    def _read(self, view: PoolView) -> dict[str, Report]:
        reports = {}
        for one in view.reports:
            try:
                reports[one.router_id] = unpack_report(one.report)
            except ValueError:
                # Of a newer version.
                _LOG.warning("autoscaler.report_unread", extra={"pool": self.name, "router": one.router_id})
        return reports

    def _aged(self, view: PoolView, read: Mapping[str, Report]) -> PoolView:
        """Take reports that can't be read to be as old as the last one that could: what they count is missing, and must
        not look like requests that no longer come.
        """
        now = view.time_ms
        unread = [one.router_id for one in view.reports if one.router_id not in read]
        self._unread = {name: min(now, self._unread.get(name, now)) for name in unread}
        aged = (
            replace(one, age_ms=max(one.age_ms, now - self._unread.get(one.router_id, now))) for one in view.reports
        )
        return replace(view, reports=tuple(aged))

    async def _remember(self, view: PoolView, counts: Mapping[str, Counts], target: int | None) -> PoolMemory:
        at = view.time_ms / 1000
        memory = self._memory.up_to(at).after_break(at, BREAK_TICKS * self._host.tick_s, self._settings.start_timeout_s)
        newest = min((one.age_ms / 1000 for one in view.reports if one.router_id in counts), default=None)
        meter = memory.meter.update(at, counts, newest, self._settings.rate_window_s)
        stored = await self._store.load()
        ready = {record.replica_id: record.stats.get("up_s", 0.0) for record in ready_records(view)}
        # Advice is stored too, and nobody was told of it.
        told = stored.target if self._acts else None
        wanted = target if target is not None else told if told is not None else len(ready)
        starts = memory.starts.update(at, ready, wanted, stored.failed_starts, self._settings.start_timeout_s)
        if starts.failed > memory.starts.failed:
            _LOG.error("autoscaler.start_failed", extra={"pool": self.name, "in_a_row": starts.failed,
                                                         "error": stored.failure})  # fmt: skip
        return replace(memory, meter=meter, starts=starts)

    async def _point_of(self, view: PoolView) -> bytes | None:
        """Return the stored point. A store that lost it gets it back."""
        if view.point is None and self._point is not None:
            await self._store.set_point(self._point, if_missing=True)
        self._hear(view.point)
        return self._point

    def _hear(self, point: bytes | None) -> None:
        if point is not None and point != self._point:
            self._point = point
            if who := who_set(point):
                _LOG.warning("autoscaler.point_in_place_of_settings", extra={"pool": self.name, **who})

    async def _fit(self, view: PoolView) -> StepModel | None:
        """Look the group's stored step model up, for while its replicas know none. Where there are no replicas it is
        that of the last ones.
        """
        group = self._group_of(view) or self._memory.group
        self._memory = replace(self._memory, group=group)
        # Replicas store it again and again; a store that lost it gets the next one from them.
        if group and (model := read_fit(await self._store.fit(group))) is not None:
            self._fits = {group: model}
        return self._fits.get(group)

    def _group_of(self, view: PoolView) -> str | None:
        found = (Announcement.open(record.record, self._secret) for record in view.replicas)
        return next((announced.group_id for announced in found if announced is not None), None)

    async def _act(self, record: DecisionRecord, before: int | None) -> bool:
        """Tell the platform; says whether it took it, or was not told."""
        if before == record.replicas:
            return True
        _LOG.info(
            "autoscaler.scale",
            extra={"pool": self.name, "before": before, "now": record.replicas, "why": record.reason},
        )
        # A platform that hung while it was looked at has used up a third of the lease already.
        if not await self.lead():
            return True
        try:
            await self._in_time(self._actuator.scale(self.name, record.replicas))
        except ActuatorError as error:
            self.tally.actuator_errors += 1
            _LOG.warning("autoscaler.not_taken", extra={"pool": self.name, "error": str(error)})
            return False
        if before is not None:
            self.tally.changes_up += record.replicas > before
            self.tally.changes_down += record.replicas < before
        return True


def _unmoved(state: SlowState, at: float) -> SlowState:
    """Leave out the change that was decided now: it was not carried out, and nothing is to wait for it to settle."""
    return replace(state, moves=tuple(move for move in state.moves if move.at < at))


def slow_rules(settings: AutoscaleSettings) -> SlowRules:
    """Take the loop's constants from the settings."""
    return SlowRules(
        drain_s=settings.drain_s,
        fill=settings.fill,
        look_back_s=settings.look_back_s,
        hold_s=settings.hold_s,
        idle_s=settings.idle_s,
        load=LoadRules(rate_window_s=settings.rate_window_s),
        rails=RailRules(
            stale_s=settings.stale_s, up_window_s=settings.up_window_s, down_window_s=settings.down_window_s
        ),
    )


def read_fit(text: str | None) -> StepModel | None:
    """Read a stored step model; None where there is none that can be read."""
    if text is None:
        return None
    try:
        return FittedStep.from_json(text).model
    except (ValueError, KeyError, TypeError):
        return None


def _kinds(alarms: Iterable[str]) -> set[str]:
    """Return alarms without their numbers: one that is a tick older is no other one."""
    return {_NUMBER.sub("", alarm) for alarm in alarms}
