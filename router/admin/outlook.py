"""What a pool expects of the next hours, as operators see it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from cluster.announced.belief import Belief
from cluster.announced.load import AnnouncedLoad
from cluster.autoscaler.ahead.hours import HourPoint
from cluster.forecast.pool_forecast import Outlook
from cluster.settings.control.schedule import DAYS, ScheduleSettings
from penstock.v1 import announced_pb2, outlook_pb2
from penstock.wire import duration_to_wire
from router.admin.control import ControlApi
from router.announced.keeper import AnnouncedKeeper
from router.announced.wire import load_to_wire
from router.dispatch.pool import Pool
from router.identity import Caller


class OutlookApi:
    """The call that tells what is announced, scheduled and forecast."""

    def __init__(self, pools: Mapping[str, Pool], control: ControlApi, announced: AnnouncedKeeper) -> None:
        self._pools = pools
        self._control = control
        self._announced = announced

    async def get(self, request: outlook_pb2.GetOutlookRequest, caller: Caller) -> outlook_pb2.GetOutlookResponse:
        """Answer GetOutlook.

        Raises:
            InvalidRequestError: no such pool.
            PermissionDeniedError: the caller may not use the pool's model.
            QueueUnavailableError: the store does not answer.
        """
        name = self._control.pool_named(request.pool, caller)
        settings = self._pools[name].settings.autoscale
        memory = await self._control.memory(name)
        loads = await self._announced.loads(name) if settings.announced != "off" else ()
        outlook = outlook_pb2.PoolOutlook(
            pool=name,
            announced=[_announced(name, load, memory.belief) for load in loads],
            schedule=[_scheduled(each) for each in settings.schedule],
            announced_decides="active" == settings.announced == settings.mode,
            forecast_decides="active" == settings.forecast == settings.mode,
        )
        if (hours := memory.hours) is not None:
            outlook.at_ms = round(1000 * hours.at)
            outlook.cold_start.CopyFrom(duration_to_wire(hours.cold_start_s))
            outlook.points.extend(map(_point, hours.points))
            if hours.outlook is not None:
                outlook.forecast.CopyFrom(_forecast(hours.outlook))
        return outlook_pb2.GetOutlookResponse(outlook=outlook)


def _announced(pool: str, load: AnnouncedLoad, belief: Belief) -> outlook_pb2.AnnouncedPart:
    known, part = belief.of(load.tenant), load.counts_for
    wire: announced_pb2.AnnouncedLoad = load_to_wire(load.alias or pool, load, part)
    return outlook_pb2.AnnouncedPart(
        load=wire, believed=known.part, judged_minutes=known.judged, weight=part * known.part
    )


def _scheduled(each: ScheduleSettings) -> outlook_pb2.ScheduledReplicas:
    return outlook_pb2.ScheduledReplicas(
        start=each.start,
        end=each.end,
        zone=each.time_zone,
        days=() if each.dates else sorted(each.days, key=DAYS.index),
        dates=sorted(each.dates),
        replicas=each.min_replicas,
        now=each.value.holds(time.time()),
    )


def _point(point: HourPoint) -> outlook_pb2.OutlookPoint:
    return outlook_pb2.OutlookPoint(
        at_ms=round(1000 * point.at),
        load=point.load,
        announced=point.announced,
        said=point.said,
        scheduled=point.scheduled,
        planned=point.planned,
    )


def _forecast(outlook: Outlook) -> outlook_pb2.LoadForecast:
    wire = outlook_pb2.LoadForecast(
        ahead=duration_to_wire(outlook.ahead_s),
        load=outlook.load,
        skill=outlook.skill,
        experts=[_expert(name, outlook) for name in _heaviest(outlook.weights)],
    )
    if (pattern := outlook.pattern) is not None:
        wire.pattern = pattern.name
        wire.pattern_change = pattern.change
        wire.pattern_skill = pattern.skill
        wire.pattern_trusted = pattern.trusted
    return wire


def _heaviest(weights: Mapping[str, float]) -> Sequence[str]:
    return sorted(weights, key=lambda name: weights[name], reverse=True)


def _expert(name: str, outlook: Outlook) -> outlook_pb2.ForecastExpert:
    return outlook_pb2.ForecastExpert(name=name, weight=outlook.weights[name], load=outlook.forecasts.get(name))
