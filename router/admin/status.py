"""State of pools and replicas, as operators see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from cluster.autoscaler.router_report import unpack_report
from cluster.control.settings import ControlMode
from cluster.errors import QueueUnavailableError
from cluster.queue.heartbeats import DRAIN_CODES, PoolView, ReplicaRecord, RouterBeatReply
from cluster.trust.announcement import Announcement
from penstock.models import ReplicaState, RequestClass
from penstock.v1 import admin_pb2 as api
from penstock.values.steps import Relief
from penstock.wire import drain_reason_to_wire, duration_to_wire, replica_state_to_wire, request_class_to_wire
from router.admin.budgets import BudgetWatch
from router.admin.control import MODES, RELIEFS, ControlApi, PoolLook, point_to_wire
from router.admin.line import add_line
from router.dispatch.pool import Pool
from router.identity import TenantPolicies
from router.links.replicas import ReplicaSet

FRESH_S = 0.5
"""Age below which a look at the store is used again, so that many watchers cost no more than one."""
_DRAIN_REASONS = {code: reason for reason, code in DRAIN_CODES.items()}


@dataclass(slots=True)
class _Kept:
    """The newest look at a pool."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: float | None = None
    look: PoolLook | None = None


class StatusReader:
    """Source of pools' status: the router's own newest heartbeat, and what the autoscaler knows."""

    def __init__(self, control_api: ControlApi, policies: TenantPolicies) -> None:
        self._control_api = control_api
        self._policies = policies
        self._budgets = BudgetWatch(policies)
        self._kept = WeakKeyDictionary[Pool, _Kept]()

    async def of(self, pool: Pool) -> api.PoolStatus:
        """Return the status of a pool. While Redis does not answer it is that of the last heartbeat."""
        beat = pool.beat
        if beat is None:
            return api.PoolStatus(name=pool.name, reachable=False, unreachable_reason=pool.why_away())
        # Without a lease Redis does not answer, and a look would only wait for its timeout.
        if not pool.available:
            return pool_status(pool, beat, None)
        look, line = await asyncio.gather(self._look(pool), pool.line.line())
        status = pool_status(pool, beat, look)
        if line is not None:
            add_line(status, line, pool, self._policies)
            status.budgets.extend(await self._budgets.of(pool, line))
        return status

    async def _look(self, pool: Pool) -> PoolLook | None:
        kept = self._kept.setdefault(pool, _Kept())
        async with kept.lock:
            if kept.at is None or time.monotonic() - kept.at >= FRESH_S:
                try:
                    kept.look = await self._control_api.look(pool.name)
                except QueueUnavailableError:
                    kept.look = None
                kept.at = time.monotonic()
            return kept.look


def pool_status(pool: Pool, beat: RouterBeatReply, look: PoolLook | None) -> api.PoolStatus:
    """Return the status of a pool.

    Args:
        pool: the router's pool.
        beat: its newest heartbeat.
        look: what the autoscaler knows; None while Redis does not answer.
    """
    mode = ControlMode(pool.settings.autoscale.mode)
    records = [pool.replicas.records[name] for name in sorted(pool.replicas.records)]
    known = pool.replicas.announcements
    stored = look.stored if look is not None else None
    told = stored.target if stored is not None and mode is ControlMode.ACTIVE else None
    newest = look.newest if look is not None else None
    # The number told has the standbys too.
    serving = told if newest is None else newest.replicas
    wanted = pool.settings.replicas if told is None or serving is None else serving
    starting = max(0, wanted - pool.replicas.ready())
    failing = starting or (newest is not None and newest.seen.failed_starts)
    return api.PoolStatus(
        name=pool.name,
        waiting=sum(beat.waiting),
        running=beat.running,
        replicas=[replica_status(record, known[record.replica_id], pool.replicas) for record in records],
        router_ids=beat.routers,
        reachable=pool.available,
        unreachable_reason=pool.why_away(),
        operating_point=point_to_wire(pool.admission.demand.point),
        classes=class_counters(look.view) if look is not None else (),
        autoscaling=MODES[mode],
        wanted_replicas=wanted,
        starting=starting,
        last_decision=newest,
        relief=RELIEFS[Relief.of(beat.relief)],
        cost_per_hour=sum(pool.replicas.cost_per_hour(record.replica_id) for record in records),
        start_failure=stored.failure if stored is not None and failing else "",
    )


def own_status(status: api.PoolStatus, tenant: str) -> api.PoolStatus:
    """Return what one tenant's own operator may see of a pool: its replicas without others' requests, and that tenant's
    part of the rest.
    """
    replicas = [
        api.ReplicaStatus(
            replica_id=each.replica_id,
            state=each.state,
            batch_limit=each.batch_limit,
            linked=each.linked,
            model=each.model,
        )
        for each in status.replicas
    ]
    line = [each for each in status.line if each.tenant == tenant]
    return api.PoolStatus(
        name=status.name,
        waiting=sum(each.waiting for each in line),
        running=sum(each.running for each in line),
        replicas=replicas,
        reachable=status.reachable,
        line=line,
        quotas=[each for each in status.quotas if each.tenant == tenant],
        budgets=[each for each in status.budgets if each.tenant == tenant],
    )


def class_counters(view: PoolView) -> Iterable[api.ClassCounters]:
    """Yield the counters of each class, summed over the routers. A report that this version can't read is left out."""
    totals = {request_class: [0.0, 0.0, 0.0] for request_class in RequestClass}
    for one in view.reports:
        try:
            counts = unpack_report(one.report).counts
        except ValueError:
            continue
        for request_class, mine in counts.items():
            added = (mine.requests, mine.judged, mine.met)
            totals[request_class] = [sum(pair) for pair in zip(totals[request_class], added, strict=True)]
    for request_class, numbers in totals.items():
        requests, judged, met = map(round, numbers)
        yield api.ClassCounters(
            request_class=request_class_to_wire(request_class), requests=requests, judged=judged, met=met
        )


def replica_status(record: ReplicaRecord, announcement: Announcement, replicas: ReplicaSet) -> api.ReplicaStatus:
    """Return the status of a replica, from its newest heartbeat. An older replica does not report all values."""
    stats = record.stats
    drains = record.state is ReplicaState.DRAINING
    return api.ReplicaStatus(
        replica_id=record.replica_id,
        group_id=announcement.group_id,
        state=replica_state_to_wire(record.state),
        address=announcement.address,
        running=record.sequences,
        batch_limit=record.windows.sequences,
        kv_usage=stats.get("kv_usage", 0.0),
        heartbeat_age=duration_to_wire(record.heartbeat_age_ms / 1000),
        linked=replicas.link(record.replica_id) is not None,
        link_error=replicas.why_down(record.replica_id),
        metrics_port=announcement.metrics_port,
        output_tokens=int(stats.get("output_tokens", 0)),
        accepted_draft_tokens=int(stats.get("accepted_draft_tokens", 0)),
        kv_tokens=record.windows.kv_tokens,
        prefill_window_tokens=record.windows.prefill_tokens,
        step_time=duration_to_wire(stats.get("step_s", 0.0)),
        itl_mean=duration_to_wire(stats.get("itl_mean_s", 0.0)),
        itl_p95=duration_to_wire(stats.get("itl_p95_s", 0.0)),
        overloaded=bool(stats.get("overloaded", 0.0)),
        engine_waiting=int(stats.get("waiting", 0)),
        up_time=duration_to_wire(stats.get("up_s", 0.0)),
        start_time=duration_to_wire(stats.get("start_s", 0.0)),
        drain_reason=drain_reason_to_wire(_DRAIN_REASONS.get(stats.get("drain_reason", 0.0)) if drains else None),
        draining_for=duration_to_wire(stats["draining_s"]) if drains and "draining_s" in stats else None,
        model=announcement.model_name,
        hardware=announcement.hardware,
        gpus=announcement.gpus,
        tensor_parallel_size=announcement.tensor_parallel_size,
        cost_per_hour=replicas.cost_per_hour(record.replica_id),
        # 0 from an engine that never sleeps.
        wake_time=duration_to_wire(stats["wake_s"]) if stats.get("wake_s") else None,
        asleep=bool(stats.get("asleep", 0.0)),
    )
