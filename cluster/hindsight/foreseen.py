"""What the autoscaler's forecast would have said at each tick of a recorded load."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.control.load_forecast import Need
from cluster.forecast.load_record import SLOT_S, LoadRecord
from cluster.forecast.pool_forecast import MINUTE_S, Outlook, PoolForecast
from cluster.hindsight.fluid import LoadTick

LEARNT_DAYS = 7
"""Days before a load on which experts are judged. Their errors fade within three."""
_DAY_S = 86_400.0
_WHOLE = 0.8
"""Part of a slot that must be known to tell what its load was."""


@dataclass(slots=True)
class ForeseenLoad:
    """Forecast as it was before a load, which goes on with it."""

    forecast: PoolForecast

    def look(self, clock: float, needs: Sequence[Need], cold_start_s: float) -> Outlook | None:
        """Take the finding of the last tick and return what is foreseen. `clock`: of that tick, since the epoch."""
        if needs:
            self.forecast.feed(clock, needs[-1].work, cold_start_s)
        return self.forecast.outlook

    def again(self) -> ForeseenLoad:
        """Return the forecast as it is now, for another replay."""
        return ForeseenLoad(copy.deepcopy(self.forecast))


def foreseen(record: LoadRecord, ticks: Sequence[LoadTick], cold_start_s: float) -> ForeseenLoad | None:
    """Return the forecast as it was when a load began, with what was on record by then and nothing of what came later.
    None where the record does not reach back, or can't be compared with the load.

    Args:
        record: load by the autoscaler, in a unit that is not known here.
        ticks: the load. Slots that it shares with the record tell the unit.
        cold_start_s: duration of a start.
    """
    unit = _unit(record, ticks)
    if unit is None:
        return None
    first = math.floor((ticks[0].clock - ticks[0].seconds) / SLOT_S)
    past = [(slot, value * unit) for slot, value in record.known() if slot < first]
    if not past:
        return None
    forecast = PoolForecast()
    learnt = first - LEARNT_DAYS * round(_DAY_S / SLOT_S)
    for slot, value in past:
        if slot < learnt:
            forecast.record.put(slot, value)
            continue
        for minute in range(round(SLOT_S / MINUTE_S)):
            forecast.feed(SLOT_S * slot + MINUTE_S * minute, value, cold_start_s)
    return ForeseenLoad(forecast)


def _unit(record: LoadRecord, ticks: Sequence[LoadTick]) -> float | None:
    """Return the replica-seconds per second of one unit of the record; None where the two share no time."""
    works: dict[int, tuple[float, float]] = {}
    for tick in ticks:
        slot = math.floor((tick.clock - tick.seconds / 2) / SLOT_S)
        work, seconds = works.get(slot, (0.0, 0.0))
        works[slot] = work + tick.work, seconds + tick.seconds
    ours = theirs = 0.0
    for slot, (work, seconds) in works.items():
        value = record.value(slot)
        if value is not None and seconds >= _WHOLE * SLOT_S:
            ours, theirs = ours + work / seconds, theirs + value
    return ours / theirs if ours > 0 and theirs > 0 else None
