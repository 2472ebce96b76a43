"""Foresight of one pool: its schedule, and its forecast in a unit that outlives engines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cluster.autoscaler.store import ControlStore
from cluster.control.load_forecast import Need
from cluster.control.replica_seconds import best_batch
from cluster.control.settings import ControlMode
from cluster.control.snapshot import GroupSnapshot
from cluster.control.step_model import Shape
from cluster.errors import QueueUnavailableError
from cluster.forecast.load_record import DAY_S, SLOT_S
from cluster.forecast.pool_forecast import PoolForecast
from cluster.forecast.schedule import ScheduledTime, scheduled
from penstock.values.slo import OperatingPoint

_LOG = logging.getLogger(__name__)

REFERENCE = Shape(prompt_tokens=512, output_tokens=256)
"""Request that load is recorded in. A pool that gets another engine keeps its record: the same load is as many of these
requests, though they take another time.
"""


@dataclass(slots=True)
class Foresight:
    """Forecast of one pool, whether decisions use it, and what operators have scheduled."""

    pool: str
    mode: ControlMode
    schedule: Sequence[ScheduledTime] = ()
    forecast: PoolForecast = field(default_factory=PoolForecast)
    changed: bool = False
    """Whether the record has changed since it was last stored."""
    unread: bool = False
    """Whether the stored record can't be read here."""

    def follow(self, mode: ControlMode, schedule: Sequence[ScheduledTime]) -> None:
        """Take over settings that have changed."""
        self.mode, self.schedule = mode, schedule

    def look(self, point: OperatingPoint, seen: GroupSnapshot, needs: Sequence[Need]) -> GroupSnapshot:
        """Take the load of the last tick, and return the group with what is foreseen now.

        Args:
            point: the operating point.
            seen: the group now.
            needs: findings of earlier ticks.
        """
        seen = replace(seen, scheduled=scheduled(self.schedule, seen.at, seen.cold_start_s, seen.tick_s))
        if self.mode is ControlMode.OFF:
            self.forecast.rest()
        if self.mode is ControlMode.OFF or seen.model is None or not needs:
            return seen
        batch = best_batch(point, seen, REFERENCE)
        unit = seen.model.gpu_seconds(REFERENCE, batch, seen.step_tokens)
        self.changed |= self.forecast.feed(needs[-1].at, needs[-1].work / unit, seen.cold_start_s)
        outlook = self.forecast.outlook
        if outlook is None:
            return replace(seen, outlook_awaited=self.mode is ControlMode.ACTIVE and self.forecast.awaited)
        pattern = outlook.pattern
        if pattern is not None and self.mode is not ControlMode.ACTIVE:
            pattern = replace(pattern, trusted=False)
        return replace(
            seen,
            outlook=replace(
                outlook,
                load=outlook.load * unit,
                pattern=pattern,
                forecasts={name: value * unit for name, value in outlook.forecasts.items()},
            ),
        )

    async def take_over(self, store: ControlStore) -> None:
        """Read what the last leader stored. Where nothing is stored the record of this process stays."""
        stored = await store.forecast()
        self.unread = False
        if stored is None:
            return
        try:
            self.forecast = PoolForecast.from_bytes(stored, self.forecast.rules)
        except ValueError as error:
            self.unread = True
            _LOG.warning("autoscaler.forecast_unread", extra={"pool": self.pool, "error": str(error)})

    async def keep(self, store: ControlStore, holder: str, fence: int) -> None:
        """Store the record if it has changed: once in five minutes. Where the store fails the next call tries again. A
        stored one that can't be read is replaced by that of a whole day only: it may be of a later release, whose
        leader comes back in the course of an upgrade.
        """
        if not self.changed or (self.unread and len(list(self.forecast.record.known())) < DAY_S / SLOT_S):
            return
        try:
            await store.store_forecast(holder, fence, self.forecast.to_bytes())
        except QueueUnavailableError as error:
            _LOG.warning("autoscaler.forecast_not_stored", extra={"pool": self.pool, "error": str(error)})
        else:
            self.changed = self.unread = False
