"""Assembly of a group's snapshot from the reports of routers, replicas and queue. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.autoscaler.meter import ClassRates, Meter
from cluster.autoscaler.router_report import JobWork
from cluster.autoscaler.starts import Starts
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_fit import FittedStep
from cluster.control.step_model import Shape, StepModel
from cluster.queue.heartbeats import PoolView, ReplicaRecord
from cluster.trust.announcement import Announcement
from cluster.trust.secret import ClusterSecret
from penstock.models import ReplicaState, RequestClass

UNKNOWN_SHAPE = Shape(prompt_tokens=512, output_tokens=256)
"""Assumed shape of waiting requests before any was counted."""
MOST_SPREAD = 3.0
"""Largest ratio of 95th percentile to mean that counts. A larger one comes from disturbances, which no batch size
changes."""
_REFERENCE = (64, 64_000)
"""Tokens and context of the step by which models are put in order."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Settings of a group."""

    cold_start_s: float
    """Assumed cold start until one was measured, seconds."""
    gpus_per_replica: int

    def as_announced(self, announced: Sequence[Announcement]) -> GroupFacts:
        """Return the facts with the accelerators that replicas have. A roll-out may change these."""
        gpus = max((each.accelerators for each in announced), default=0)
        return replace(self, gpus_per_replica=gpus) if gpus else self


def announced_in(view: PoolView, secret: ClusterSecret) -> Sequence[Announcement]:
    """Return what the replicas of a pool announced, without records that can't be trusted."""
    found = (Announcement.open(record.record, secret) for record in view.replicas)
    return [announced for announced in found if announced is not None]


def assemble(
    view: PoolView,
    meter: Meter,
    starts: Starts,
    facts: GroupFacts,
    stored_model: StepModel | None = None,
    jobs: Sequence[JobWork] = (),
) -> GroupSnapshot:
    """Build the snapshot.

    Args:
        view: the queue's state.
        meter: a meter updated with the view's reports.
        starts: a record updated with the view's replicas.
        facts: the settings.
        stored_model: step model that earlier replicas of the group learned.
        jobs: remaining work of the jobs that routers feed.
    """
    ready = ready_records(view)
    at = view.time_ms / 1000
    return GroupSnapshot(
        at=at,
        ready=len(ready),
        starting=len(starts.asked),
        draining=sum(record.state is ReplicaState.DRAINING for record in view.replicas),
        demands=(*_demands(view, meter, jobs), *_due(jobs, meter)),
        model=_model(ready, stored_model),
        spread=_spread(ready),
        live_batch=_live_batch(ready),
        max_sequences=_median([record.stats.get("largest_batch", record.windows.sequences) for record in ready], 256),
        # Replicas of the last release do not report it.
        step_tokens=_median([record.stats.get("step_tokens", 0) for record in ready], 0),
        kv_tokens=_median([record.windows.kv_tokens for record in ready], 0),
        running=float(view.running),
        waiting=float(sum(view.waiting) - sum(_fed(view, jobs, each) for each in RequestClass)),
        kv_usage=statistics.fmean(record.stats.get("kv_usage", 0.0) for record in ready) if ready else 0.0,
        age_s=_age(at, view, meter),
        cells_away=len(view.away),
        cold_start_s=starts.cold_start_s(facts.cold_start_s),
        failed_starts=starts.failed,
        last_failure_at=starts.last_failure_at,
        attainment=meter.attainment,
        arrived_at=meter.arrived_at,
        gpus_per_replica=facts.gpus_per_replica,
    )


def read_fit(text: str | None) -> StepModel | None:
    """Read a stored step model; None if there is none or it can't be read."""
    if text is None:
        return None
    try:
        return FittedStep.from_json(text).model
    except (ValueError, KeyError, TypeError):
        return None


def measured(view: PoolView) -> PoolView:
    """Return the view without what replicas report that is no number: it counts as not reported, and as nothing that a
    decision could fail on.
    """
    return replace(view, replicas=tuple(map(_measured, view.replicas)))


def _measured(record: ReplicaRecord) -> ReplicaRecord:
    stats = {name: value for name, value in record.stats.items() if math.isfinite(value)}
    return record if len(stats) == len(record.stats) else replace(record, stats=stats)


def ready_records(view: PoolView) -> list[ReplicaRecord]:
    """Return the replicas that take work."""
    return [record for record in view.replicas if record.state is ReplicaState.READY]


def _fed(view: PoolView, jobs: Sequence[JobWork], request_class: RequestClass) -> int:
    """Return how many waiting requests of a class may be items of jobs: a feeder keeps a few of them in flight."""
    return min(view.waiting[request_class], sum(job.in_flight for job in jobs if job.request_class is request_class))


def _due(jobs: Sequence[JobWork], meter: Meter) -> tuple[ClassDemand, ...]:
    """Return the demand of jobs. An item is assumed to be like the job's finished items, or like other requests."""
    found = []
    for job in sorted(jobs, key=lambda job: job.left_s):
        shape = Shape(job.prompt_tokens, job.output_tokens, job.cached_tokens)
        rates = meter.rates.get(job.request_class)
        if job.prompt_tokens <= 0:
            shape = rates.shape if rates is not None and rates.shape is not None else UNKNOWN_SHAPE
        if job.items:
            found.append(ClassDemand(job.request_class, 0.0, shape, job.items, deadline_s=job.left_s))
    return tuple(found)


def _demands(view: PoolView, meter: Meter, jobs: Sequence[JobWork]) -> tuple[ClassDemand, ...]:
    known = [rates.shape for rates in meter.rates.values() if rates.shape is not None]
    found = []
    for request_class in RequestClass:
        rates = meter.rates.get(request_class, ClassRates())
        queued = view.waiting[request_class] - _fed(view, jobs, request_class)
        if rates.shape is None and not queued:
            continue
        found.append(
            ClassDemand(
                request_class,
                rates.requests,
                rates.shape or (known[0] if known else UNKNOWN_SHAPE),
                queued,
                view.longest_wait_ms[request_class] / 1000 if queued else 0.0,
            )
        )
    return tuple(found)


def _model(ready: Sequence[ReplicaRecord], stored: StepModel | None) -> StepModel | None:
    """Return the middle one of the replicas' models. Return the stored model if no replica has measured one yet, and
    None if replicas have measured and none trusts its model.
    """
    stats = [record.stats for record in ready]
    whole = [one for one in stats if one.keys() >= {"step_a", "step_b", "step_g"}]
    models = [StepModel(one["step_a"], one["step_b"], one["step_g"]) for one in whole]
    if models:
        return sorted(models, key=lambda model: model.predict(*_REFERENCE))[(len(models) - 1) // 2]
    return None if any("step_error" in one for one in stats) else stored


def _spread(ready: Sequence[ReplicaRecord]) -> float:
    ratios = [
        record.stats["itl_p95_s"] / record.stats["itl_mean_s"]
        for record in ready
        if record.stats.get("itl_mean_s", 0.0) > 0 and record.stats.get("itl_p95_s", 0.0) > 0
    ]
    return min(MOST_SPREAD, max(1.0, statistics.median(ratios))) if ratios else 1.0


def _live_batch(ready: Sequence[ReplicaRecord]) -> float | None:
    limits = [record.stats["live_batch"] for record in ready if "live_batch" in record.stats]
    return statistics.median(limits) if limits else None


def _age(at: float, view: PoolView, meter: Meter) -> float:
    """Return the age of the oldest value in seconds. A router with a lease counts even if it stopped reporting. Without
    any report the last one counts.
    """
    ages = [record.heartbeat_age_ms / 1000 for record in view.replicas]
    ages += [report.age_ms / 1000 for report in view.reports]
    if not view.reports and meter.reported_at is not None:
        ages.append(at - meter.reported_at)
    return max(ages, default=0.0)


def _median(values: Sequence[float], default: int) -> int:
    return int(statistics.median_low(values)) if values else default
