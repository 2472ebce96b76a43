"""The autoscaler as operators see it: its decisions, and the operating point that they set."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from cluster.autoscaler.decision_record import DecisionRecord, DemandRecord
from cluster.autoscaler.leader_state import PoolMemory
from cluster.autoscaler.operating_point import PointRecord, point_in_force
from cluster.autoscaler.store import ControlStore, Stored, StoredRecord
from cluster.clock import SystemClock
from cluster.control.settings import ControlMode, operating_point
from cluster.errors import InvalidRequestError
from cluster.forecast.load_record import SLOT_S
from cluster.forecast.pool_forecast import PoolForecast
from cluster.queue.contract import Queue
from cluster.queue.heartbeats import PoolView
from cluster.settings import PoolSettings
from penstock.models import FieldViolation
from penstock.v1 import admin_pb2 as api
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Relief
from penstock.wire import duration_from_wire, duration_to_wire, request_class_to_wire
from router.identity import Caller, may_use, require_model, wrong_pool

_LOG = logging.getLogger(__name__)

DEFAULT_LIMIT = 20
MOST_DECISIONS = 1_000
MOST_TTFT_S = 3_600.0
MOST_ITL_S = 60.0
MODES = {
    ControlMode.OFF: api.CONTROL_MODE_OFF,
    ControlMode.ADVISORY: api.CONTROL_MODE_ADVISORY,
    ControlMode.ACTIVE: api.CONTROL_MODE_ACTIVE,
}
RELIEFS = {
    Relief.NONE: api.RELIEF_NONE,
    Relief.LATENCY: api.RELIEF_LATENCY,
    Relief.PREEMPT_BATCH: api.RELIEF_PREEMPT_BATCH,
    Relief.SHED: api.RELIEF_SHED,
}
_CLASSES = ("interactive", "standard", "batch")


@dataclass(frozen=True, slots=True)
class PoolLook:
    """A pool as its autoscaler knows it."""

    view: PoolView
    stored: Stored
    newest: api.Decision | None
    """Newest decision; None where there is none, or where this version can't read it."""


class ControlApi:
    """Access to what the pools' autoscalers know. One connection each to store and queue, opened at the first use."""

    def __init__(
        self,
        pools: Mapping[str, PoolSettings],
        open_store: Callable[[str], ControlStore],
        open_queue: Callable[[str], Queue],
    ) -> None:
        self._pools = pools
        self._open = open_store
        self._open_queue = open_queue
        self._clock = SystemClock()
        self._stores: dict[str, ControlStore] = {}
        self._queues: dict[str, Queue] = {}

    async def look(self, pool: str) -> PoolLook:
        """Read what is known of a pool now.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        if pool not in self._queues:
            self._queues[pool] = self._open_queue(pool)
        store = self._store(pool)
        look = self._queues[pool].observe(whole=False)
        view, stored, found = await asyncio.gather(look, store.load(), store.decisions(1))
        return PoolLook(view, stored, _decision(found[0]) if found else None)

    async def target(self, pool: str) -> int:
        """Return the number of replicas that an autoscaler decided last; 0 without one.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        active = ControlMode(self._pools[pool].autoscale.mode) is ControlMode.ACTIVE
        return (await self._store(pool).load()).target or 0 if active else 0

    async def list_decisions(self, request: api.ListDecisionsRequest, caller: Caller) -> api.ListDecisionsResponse:
        """Answer ListDecisions.

        Raises:
            InvalidRequestError: no such pool, or the limit is out of range.
            PermissionDeniedError: the caller may not use the pool's model.
            QueueUnavailableError: the store does not answer.
        """
        name = self.pool_named(request.pool, caller)
        if request.limit > MOST_DECISIONS:
            raise InvalidRequestError.of("limit", f"must be at most {MOST_DECISIONS}, got {request.limit}")
        store = self._store(name)
        default = operating_point(self._pools[name])
        found = await store.decisions(request.limit or DEFAULT_LIMIT, request.skip)
        point = point_in_force(stored := await store.point(), default)
        load = await store.forecast() if request.load_record else None
        return api.ListDecisionsResponse(
            decisions=[decision for record in found if (decision := _decision(record)) is not None],
            operating_point=point_to_wire(point),
            operating_point_set=stored is not None and point != default,
            load_record=None if load is None else _load(load),
        )

    async def set_operating_point(
        self, request: api.SetOperatingPointRequest, caller: Caller
    ) -> api.SetOperatingPointResponse:
        """Answer SetOperatingPoint.

        Raises:
            InvalidRequestError: no such pool, or a value is out of range.
            PermissionDeniedError: the caller may not use the pool's model.
            QueueUnavailableError: the store does not answer.
        """
        name = self.pool_named(request.pool, caller)
        point = point_from_wire(request.operating_point) if request.HasField("operating_point") else None
        store = self._store(name)
        default = operating_point(self._pools[name])
        before = point_in_force(await store.point(), default)
        version = await store.set_point(PointRecord(point, caller.tenant, self._clock.wall_ms()).to_bytes())
        now = point or default
        _LOG.warning(
            "admin.operating_point",
            extra={"pool": name, "tenant": caller.tenant, "before": str(before), "now": str(now), "version": version},
        )
        return api.SetOperatingPointResponse(operating_point=point_to_wire(now), version=version)

    async def close(self) -> None:
        """Close the connections."""
        for pool in {*self._stores, *self._queues}:
            await self.leave(pool)

    async def leave(self, pool: str) -> None:
        """Close the connections of a pool that has gone."""
        for one in (self._stores.pop(pool, None), self._queues.pop(pool, None)):
            if one is not None:
                await one.close()

    async def memory(self, pool: str) -> PoolMemory:
        """Return what the pool's leader remembers: nothing where there was none, or where it runs another version.

        Raises:
            QueueUnavailableError: the store does not answer.
        """
        stored = (await self._store(pool).load()).state
        try:
            return PoolMemory() if stored is None else PoolMemory.from_bytes(stored)
        except (ValueError, KeyError, TypeError):
            return PoolMemory()

    def pool_named(self, wanted: str, caller: Caller) -> str:
        """Return the pool that is meant: a caller who may use one need not name it.

        Raises:
            InvalidRequestError: there is none of that name, or there are several.
            PermissionDeniedError: the caller may not use its model.
        """
        if wanted:
            require_model(caller, wanted)
        allowed = [name for name in self._pools if may_use(caller, name)]
        names = [wanted] if wanted else allowed
        if len(names) != 1 or names[0] not in self._pools:
            raise wrong_pool(wanted, allowed)
        return names[0]

    def _store(self, pool: str) -> ControlStore:
        if pool not in self._stores:
            self._stores[pool] = self._open(pool)
        return self._stores[pool]


# --- the operating point ----------------------------------------------------------------------------------------------


def point_to_wire(point: OperatingPoint) -> api.OperatingPoint:
    wire = api.OperatingPoint(attainment=point.attainment, price_per_gpu_hour=point.price_per_gpu_hour)
    if point.budget_per_hour is not None:
        wire.budget_per_hour = point.budget_per_hour
    for name in _CLASSES:
        slo: ClassSlo = getattr(point, name)
        target: api.ClassSlo = getattr(wire, name)
        if slo.ttft_p99_s is not None:
            target.ttft_p99.CopyFrom(duration_to_wire(slo.ttft_p99_s))
        if slo.itl_p95_s is not None:
            target.itl_p95.CopyFrom(duration_to_wire(slo.itl_p95_s))
    return wire


def point_from_wire(wire: api.OperatingPoint) -> OperatingPoint:
    """Convert and check an operating point.

    Raises:
        InvalidRequestError: names every wrong field.
    """
    wrong: list[FieldViolation] = []

    def reject(field: str, limit: str, value: float) -> None:
        wrong.append(FieldViolation(f"operating_point.{field}", f"must be {limit}, got {value:.15g}"))

    def seconds(field: str, duration: Duration, most: float) -> float:
        value = duration_from_wire(duration)
        if not 0 < value <= most:
            reject(field, f"above 0 s and at most {most:g} s", value)
        return value

    def slo(name: str) -> ClassSlo:
        one: api.ClassSlo = getattr(wire, name)
        return ClassSlo(
            seconds(f"{name}.ttft_p99", one.ttft_p99, MOST_TTFT_S) if one.HasField("ttft_p99") else None,
            seconds(f"{name}.itl_p95", one.itl_p95, MOST_ITL_S) if one.HasField("itl_p95") else None,
        )

    slos = slo("interactive"), slo("standard"), slo("batch")
    attainment = wire.attainment if wire.HasField("attainment") else OperatingPoint().attainment
    if not 0 < attainment < 1:
        reject("attainment", "above 0 and below 1", attainment)
    if not 0 <= wire.price_per_gpu_hour < math.inf:
        reject("price_per_gpu_hour", "0 or more", wire.price_per_gpu_hour)
    budget = wire.budget_per_hour if wire.HasField("budget_per_hour") else None
    if budget is not None and not 0 <= budget < math.inf:
        reject("budget_per_hour", "0 or more", budget)
    if budget is not None and wire.price_per_gpu_hour == 0:
        reject("price_per_gpu_hour", "above 0 where there is a budget_per_hour", wire.price_per_gpu_hour)
    if wrong:
        raise InvalidRequestError(wrong)
    return OperatingPoint(*slos, attainment, wire.price_per_gpu_hour, budget)


# --- decisions --------------------------------------------------------------------------------------------------------


def _decision(stored: StoredRecord) -> api.Decision | None:
    """Convert a stored decision. Return None for one that this version can't read."""
    try:
        made = DecisionRecord.from_bytes(stored.record, stored.number)
    except (ValueError, KeyError, TypeError):
        return None
    return api.Decision(
        number=made.number,
        at_ms=made.at_ms,
        mode=MODES[made.mode],
        leader=made.leader,
        fence=made.fence,
        replicas_before=made.before,
        replicas=made.replicas,
        needed=made.needed,
        relief=RELIEFS[made.relief],
        reason=made.reason,
        steps=[api.DecisionStep(name=step.name, value=step.value, reason=step.reason) for step in made.steps],
        counterfactuals=[
            api.Counterfactual(without=one.without, replicas=one.replicas) for one in made.counterfactuals
        ],
        alarms=made.alarms,
        seen=_snapshot(made),
        standby=made.standby,
    )


def _load(stored: bytes) -> api.LoadRecord | None:
    """Convert a stored record of a load. Return None for one that is empty, or that this version can't read."""
    try:
        record = PoolForecast.from_bytes(stored).record
    except ValueError:
        return None
    known = dict(record.known())
    if not known:
        return None
    slots = range(min(known), max(known) + 1)
    loads = [known.get(slot, math.nan) for slot in slots]
    return api.LoadRecord(first_ms=round(1000 * SLOT_S * slots[0]), slot=duration_to_wire(SLOT_S), loads=loads)


def _snapshot(made: DecisionRecord) -> api.DecisionSnapshot:
    seen = api.DecisionSnapshot(
        ready=made.ready,
        starting=made.starting,
        draining=made.draining,
        running=made.running,
        waiting=made.waiting,
        kv_usage=made.kv_usage,
        age=duration_to_wire(made.age_s),
        cold_start=duration_to_wire(made.cold_start_s),
        failed_starts=made.failed_starts,
        demands=map(_demand, made.demands),
        standby=made.standing_by,
        gpus_per_replica=made.gpus_per_replica,
    )
    if made.work is not None:
        seen.work = made.work
    if made.attainment is not None:
        seen.attainment = made.attainment
    return seen


def _demand(demand: DemandRecord) -> api.ClassDemand:
    return api.ClassDemand(
        request_class=request_class_to_wire(demand.request_class),
        rate=demand.rate,
        prompt_tokens=demand.prompt_tokens,
        cached_tokens=demand.cached_tokens,
        output_tokens=demand.output_tokens,
        queued=demand.queued,
        oldest_wait=duration_to_wire(demand.oldest_wait_s),
        deadline=None if demand.deadline_s is None else duration_to_wire(demand.deadline_s),
    )
