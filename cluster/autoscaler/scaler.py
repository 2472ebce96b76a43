"""One autoscaler's work for one pool: it leads the pool, or waits to, and decides at every tick on the replicas.

Order within a tick: look, decide, store, act, and then tell what can wait. A decision that can't be stored is not
carried out, so every leader knows all that was done before. Only the call to the platform is not fenced. If a deposed
leader still sends a number, its successor's next tick corrects it: it compares the platform's number with the decided
one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.announced.contract import AnnouncedReader
from cluster.autoscaler.actuator import Actual, Actuator, PatientActuator
from cluster.autoscaler.ahead.announcements import Announcements
from cluster.autoscaler.ahead.foresight import Foresight
from cluster.autoscaler.ahead.hours import EVERY_S, Plan, look_ahead
from cluster.autoscaler.assemble import announced_in, assemble, measured, read_fit
from cluster.autoscaler.cell_standbys import CellStandbys
from cluster.autoscaler.decision_record import DecisionRecord, kinds
from cluster.autoscaler.leader_state import PoolMemory
from cluster.autoscaler.operating_point import KnownPoint, point_in_force
from cluster.autoscaler.own_settings import ScalerSettings
from cluster.autoscaler.router_report import Counts, UnreadReports, read_reports
from cluster.autoscaler.starts import Starts
from cluster.autoscaler.store import Commit, ControlStore, Leadership
from cluster.control.rails import growth_time_s, is_stale
from cluster.control.replica_policy import SlowDecision, decide
from cluster.control.replica_rules import GroupBounds
from cluster.control.settings import ControlMode
from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_model import StepModel
from cluster.errors import ActuatorError, LeadershipLostError
from cluster.queue.contract import Queue
from cluster.queue.heartbeats import PoolView
from cluster.rollout.book import RolloutBook
from cluster.rollout.changes import applies
from cluster.rollout.record import Rollout
from cluster.rollout.scaling import bounds_in, follow
from cluster.settings import AutoscalerSettings, PoolSettings
from cluster.standby.pool import StandbyBounds, StandbyOrder, loaded, newcomers, order_standbys, standing, with_standbys
from cluster.trust.secret import ClusterSecret
from penstock.values.slo import OperatingPoint
from penstock.values.steps import Relief

_LOG = logging.getLogger(__name__)

RELIEF_TICKS = 3
"""Ticks for which relief holds unless a later decision renews it."""

UNHEALTHY = "UNHEALTHY"
"""Beginning of what Ray Serve says of a pool that lacks a replica."""

BREAK_TICKS = 4
"""Ticks after which a time without a tick counts as a time without a leader."""


@dataclass(slots=True)
class Tally:
    """Counters since start, for metrics."""

    ticks: int = 0
    changes_up: int = 0
    changes_down: int = 0
    actuator_errors: int = 0
    took_over: int = 0
    deposed: int = 0
    failures: int = 0
    """Ticks that ended with an unexpected error."""


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one decision rests on."""

    view: PoolView
    point: OperatingPoint
    seen: GroupSnapshot
    bounds: GroupBounds
    before: int | None
    """Replicas that the platform was last told to have; None where it does not answer."""
    resting: bool
    """Whether nobody stands by: a roll-out goes on, or what it had beyond the number can't go yet."""
    trouble: tuple[str, ...]


class PoolScaler:
    """One autoscaler's part in one pool. The caller owns the store and the queue, and closes them."""

    def __init__(
        self,
        name: str,
        holder: str,
        settings: PoolSettings,
        host: AutoscalerSettings,
        *,
        queue: Queue,
        store: ControlStore,
        actuator: Actuator,
        secret: ClusterSecret,
        rollouts: RolloutBook | None = None,
        cells: CellStandbys | None = None,
        announced: AnnouncedReader | None = None,
    ) -> None:
        """Without `rollouts` the pool has none. Without `cells` its replicas are all in the first cell. Without
        `announced` nobody announces load.
        """
        self.name = name
        self.record: DecisionRecord | None = None
        """Last decision made by this autoscaler."""
        self.leading = False
        self.leader: Leadership | None = None
        self.actual: Actual | None = None
        self.tally = Tally()
        self._holder = holder
        self._settings = ScalerSettings.of(settings)
        self._rollouts = rollouts
        self._cells = cells
        self._host = host
        self._queue = queue
        self._store = store
        self._platform = PatientActuator(name, actuator, host.patience_s)
        self._secret = secret
        self._point = KnownPoint(name, store)
        self._leader_state = PoolMemory()
        self.foresight = Foresight(name, self._settings.forecast, self._settings.schedule)
        self.announcements = Announcements(self._settings.announced, announced)
        self._fence = 0
        self._fits: dict[str, StepModel] = {}
        self._unread = UnreadReports()
        self._rolled = False

    @property
    def mode(self) -> ControlMode:
        """Effect of decisions."""
        return self._settings.mode

    def change(self, settings: PoolSettings) -> None:
        """Take over settings that have changed. The next decision rests on them."""
        if settings != self._settings.pool:
            self._settings = ScalerSettings.of(settings)
            self.foresight.follow(self._settings.forecast, self._settings.schedule)
            self.announcements.mode = self._settings.announced
            _LOG.warning("autoscaler.changed", extra={"pool": self.name, "mode": self.mode.value})

    async def lead(self) -> bool:
        """Renew the lease, or take it if it is free; return whether this autoscaler leads.

        Raises:
            QueueUnavailableError: the store does not answer. Then this one does not lead, and soon no other does.
        """
        try:
            self.leader = await self._store.lead(self._holder, self._host.lease_s)
        except BaseException:
            self.leading = False
            raise
        mine = self.leader.holder == self._holder
        if mine and self._fence != self.leader.fence:
            # Lead only after the last leader's state was read. If reading fails the next call tries again.
            await self._take_over(self.leader.fence)
            self._fence = self.leader.fence
        elif self.leading and not mine:
            self._lost()
        self.leading = mine
        if not mine:
            # If the store loses all data any autoscaler may become the leader, and must store the point again.
            self._point.hear(await self._store.point())
        return mine

    async def _take_over(self, fence: int) -> None:
        self.tally.took_over += 1
        _LOG.warning("autoscaler.leads", extra={"pool": self.name, "fence": fence})
        await self.foresight.take_over(self._store)
        stored = (await self._store.load()).state
        if stored is None:
            # No decision was ever stored, or the store lost all data. Then the state in this process is the best one.
            return
        try:
            self._leader_state = PoolMemory.from_bytes(stored)
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("autoscaler.state_unread", extra={"pool": self.name, "error": str(error)})
            self._leader_state = PoolMemory()

    def _lost(self) -> None:
        self.leading = False
        self.tally.deposed += 1
        _LOG.warning("autoscaler.deposed", extra={"pool": self.name, "fence": self._fence})

    async def resign(self) -> None:
        """Give the lease back, so that another autoscaler can lead at once."""
        # Even if this one does not know that it leads: a renewal may have been on its way.
        self.leading = False
        await self._store.resign(self._holder)

    async def settled(self) -> None:
        """Wait until no number that was decided under earlier settings can still arrive at the platform."""
        await self._platform.settled()

    async def close(self) -> None:
        """End what the scaler owns: not the store, and not the queue."""
        await self._platform.close()
        if self._cells is not None:
            await self._cells.close()

    async def tick(self) -> DecisionRecord | None:
        """Decide once, as the leader. Return None if another autoscaler leads by now.

        Raises:
            QueueUnavailableError: the store does not answer; nothing was done.
        """
        # Settings may change at any wait below. One decision rests on those of its beginning.
        own = self._settings
        sight = await self._sight(own)
        made, held = self._decided(own, sight)
        record = self._noted(own, sight, made, held)
        relief = made.relief if own.mode is ControlMode.ACTIVE else Relief.NONE
        commit = Commit(
            self._leader_state.to_bytes(), record.total, relief,
            sight.view.time_ms + round(RELIEF_TICKS * self._host.tick_s * 1000),
            record.to_bytes(), self._host.decisions_kept, held.names,
        )  # fmt: skip
        fence = self._fence
        try:
            number = await self._store.commit(self._holder, fence, commit)
        except LeadershipLostError:
            self._lost()
            return None
        if kinds(record.alarms) - kinds(self.record.alarms if self.record is not None else ()):
            _LOG.error("autoscaler.alarm", extra={"pool": self.name, "alarms": "; ".join(record.alarms)})
        self.record = replace(record, number=number)
        self.tally.ticks += 1
        await self._carry_out(own, sight, made, held, fence)
        return self.record

    async def _sight(self, own: ScalerSettings) -> _Sight:
        """Look at all that the next decision rests on."""
        view = measured(await self._queue.observe(whole=False))
        await self.announcements.read()
        trouble = await self._look()
        if (rollout := await self._rollout_now(own)) is not None or self._rolled:
            # Serve calls a pool unhealthy whenever a replica has given way, the last one included.
            trouble = [text for text in trouble if not text.startswith(UNHEALTHY)]
        before = None
        if self.actual is not None:
            view, before = self.actual.own(view), self.actual.target
        reports = read_reports(self.name, view)
        view = self._unread.aged(view, reports)
        trouble += self._unread.troubles
        counts = {name: one.counts for name, one in reports.items()}
        self._leader_state = await self._remember(own, view, counts, before, rolling=rollout is not None)
        jobs = [job for one in reports.values() for job in one.jobs]
        known, facts = self._leader_state, own.facts.as_announced(announced_in(view, self._secret))
        seen = assemble(view, known.meter, known.starts, facts, await self._fit(view), jobs)
        # Older ones were told, or had no leader: then they work because they have to.
        new = newcomers(view, RELIEF_TICKS * self._host.tick_s)
        seen = with_standbys(seen, standing(view), new, self._leader_state.standby)
        seen, slow = replace(seen, tick_s=self._host.tick_s), self._leader_state.slow
        beyond = follow(self._leader_state.beyond, rollout, self._leader_state.standby)
        resting = rollout is not None or (beyond is not None and is_stale(seen, own.rules.rails))
        if beyond is not None and not resting:
            seen = replace(seen, surplus=beyond.surplus(seen))
        point = point_in_force(await self._point.now(view.point), own.point)
        seen = self.foresight.look(point, seen, slow.needs)
        growth_s = growth_time_s(2 * own.bounds.largest, seen, slow.moves, own.rules.rails)
        seen, belief = self.announcements.look(point, seen, self._leader_state.belief, reports, growth_s)
        self._leader_state = replace(self._leader_state, belief=belief, beyond=beyond)
        return _Sight(view, point, seen, bounds_in(rollout, own.bounds), before, resting, tuple(trouble))

    def _decided(self, own: ScalerSettings, sight: _Sight) -> tuple[SlowDecision, StandbyOrder]:
        """Decide on replicas and standbys."""
        seen, point, standby = sight.seen, sight.point, self._leader_state.standby
        if (beyond := self._leader_state.beyond) is not None and not sight.resting:
            standby = beyond.resumed(standby, seen)
        made = decide(point, sight.bounds, seen, self._leader_state.slow, own.rules)
        affordable = point.affordable(seen.gpus_per_replica)
        held = order_standbys(
            own.standby if own.mode is ControlMode.ACTIVE and not sight.resting else None,
            *(seen, sight.view, made.replicas, standby),
            StandbyBounds(own.bounds.largest, affordable, own.rules.rails),
        )
        hours = self._leader_state.hours
        if hours is None or not hours.points or not 0 <= seen.at - hours.at < EVERY_S:
            plan = Plan(made, own.rules, own.bounds, affordable)
            hours = look_ahead(seen, plan, self.foresight, self.announcements)
            self._leader_state = replace(self._leader_state, hours=hours)
        return replace(made, alarms=(*made.alarms, *sight.trouble), steps=(*made.steps, *held.made.steps)), held

    def _noted(self, own: ScalerSettings, sight: _Sight, made: SlowDecision, held: StandbyOrder) -> DecisionRecord:
        """Take a decision into the leader's state, and return its record."""
        seen, before, acts = sight.seen, sight.before, own.mode is ControlMode.ACTIVE
        slow, known = made.state if acts else made.state.unmoved(seen.at), self._leader_state
        starts = self._asked(sight.view, made, held) if acts else known.starts
        beyond = known.beyond if known.beyond is None or sight.resting else known.beyond.after(seen, made.replicas)
        self._leader_state = replace(known, slow=slow, starts=starts, standby=held.made.state, beyond=beyond)
        return DecisionRecord.of(
            seen, made, leader=self._holder, fence=self._fence, mode=own.mode, standby=held.number,
            before=max(0, before - known.standby.standby) if before is not None else seen.coming,
        )  # fmt: skip

    async def _carry_out(
        self, own: ScalerSettings, sight: _Sight, made: SlowDecision, held: StandbyOrder, fence: int
    ) -> None:
        """Carry out a decision that is stored, and tell what can wait."""
        assert self.record is not None  # noqa: S101 - it is the one that is carried out
        acts, seen = own.mode is ControlMode.ACTIVE, sight.seen
        if acts and not await self._act(own, self.record, sight.before) and made.replicas < seen.coming:
            # Refused additions stay in the state: while the platform does not answer they bound its number afterwards.
            self._leader_state = replace(self._leader_state, slow=made.state.unmoved(seen.at))
        # The stored order is carried out first: these wait for stores, which may not answer.
        if self._cells is not None:
            await self._cells.give(own.pool.cells, fence, held.names, RELIEF_TICKS * self._host.tick_s)
        await self.foresight.keep(self._store, self._holder, fence)

    async def _rollout_now(self, own: ScalerSettings) -> Rollout | None:
        """Return the roll-out that goes on; None without any."""
        if self._rollouts is None:
            return None
        found, _ = await self._rollouts.read()
        return found if found is not None and found.state.active and applies(found, own.pool) else None

    def _asked(self, view: PoolView, made: SlowDecision, held: StandbyOrder) -> Starts:
        """Return the record of starts with those that are ordered now."""
        missing = made.replicas + held.number - len(loaded(view))
        return self._leader_state.starts.asked_for(view.time_ms / 1000, max(0, missing))

    async def _look(self) -> list[str]:
        """Read the pool's state from the platform; return its problems as texts."""
        try:
            self.actual = await self._platform.look()
        except ActuatorError as error:
            self.actual = None
            self.tally.actuator_errors += 1
            return [str(error)]
        return [self.actual.trouble] if self.actual.trouble else []

    async def _remember(
        self, own: ScalerSettings, view: PoolView, counts: Mapping[str, Counts], target: int | None, *, rolling: bool
    ) -> PoolMemory:
        at = view.time_ms / 1000
        settings, acts = own.pool.autoscale, own.mode is ControlMode.ACTIVE
        last = self._leader_state.up_to(at).after_break(at, BREAK_TICKS * self._host.tick_s, settings.start_timeout_s)
        newest = min((one.age_ms / 1000 for one in view.reports if one.router_id in counts), default=None)
        meter = last.meter.update(at, counts, newest, settings.rate_window_s)
        stored = await self._store.load()
        ready = {record.replica_id: record.stats.get("up_s", 0.0) for record in loaded(view)}
        # An advisory decision is stored too, but was not sent to the platform.
        told = stored.target if acts else None
        wanted = target if target is not None else told if told is not None else len(ready)
        # Replicas of a cell that was never seen may be among those that are awaited. They are not late.
        timeout_s = math.inf if view.unseen else float(settings.start_timeout_s)
        drain_s = own.pool.rollout.drain_s if rolling or self._rolled else 0.0
        starts = last.starts.update(at, ready, wanted, stored.failed_starts, timeout_s, drain_s=drain_s)
        # The last replica may come, and end the roll-out, between two ticks.
        self._rolled = rolling
        if starts.failed > last.starts.failed:
            _LOG.error("autoscaler.start_failed", extra={"pool": self.name, "in_a_row": starts.failed,
                                                         "error": stored.failure})  # fmt: skip
        return replace(last, slow=last.slow.under(own.rules), meter=meter, starts=starts)

    async def _fit(self, view: PoolView) -> StepModel | None:
        """Return the stored step model of the replicas' group, for the time in which they have none. Without replicas
        return that of the last group.
        """
        found = announced_in(view, self._secret)
        group = found[0].group_id if found else self._leader_state.group
        self._leader_state = replace(self._leader_state, group=group)
        # Replicas store their model again and again, so a store that lost it gets the next one from them.
        if group and (model := read_fit(await self._store.fit(group))) is not None:
            self._fits = {group: model}
        return self._fits.get(group)

    async def _act(self, own: ScalerSettings, record: DecisionRecord, before: int | None) -> bool:
        """Send the decided number to the platform; return False if the platform did not accept it, or if the settings
        have changed since the decision.
        """
        if before == record.total:
            return True
        # A slow answer to `look` may have used up a third of the lease already.
        if not await self.lead():
            return True
        if self._settings is not own:
            return False
        told = {"pool": self.name, "before": before, "now": record.total, "why": record.reason}
        _LOG.info("autoscaler.scale", extra=told)
        try:
            await self._platform.scale(record.total)
        except ActuatorError as error:
            self.tally.actuator_errors += 1
            _LOG.warning("autoscaler.not_taken", extra={"pool": self.name, "error": str(error)})
            return False
        if before is not None:
            self.tally.changes_up += record.total > before
            self.tally.changes_down += record.total < before
        return True
