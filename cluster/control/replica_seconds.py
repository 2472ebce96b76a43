"""Demand of a group in replica-seconds, the unit in which short and long requests add up."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_model import BatchMix, Shape, StepModel
from penstock.models import RequestClass
from penstock.values.slo import OperatingPoint

KV_FILL = 0.9
"""Part of the KV cache that is planned for."""
SLO_WAIT_PART = 0.5
"""Part of the time to first token that waiting may take; the rest is prefill."""
SOON_S = 1.0
"""Seconds that a nearer or past deadline is taken to be away."""
NO_WORK = 1e-6
"""Replica-seconds per second below which nothing arrives. Averages fade, and never end."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Work of a group. A replica-second is one second of one replica at its best batch."""

    work: float
    """Replica-seconds that arrive per second, without requests that have a deadline of their own."""
    backlog: float
    """Replica-seconds that have waited longer than the SLO allows. In a class without an SLO, all waiting work."""
    deadline_work: float
    """Replicas that queued work with a deadline needs from now on, where a new replica would still come in time."""
    due_work: float
    """The same, with work that is due before a new replica would come. The replicas that do it must stay."""
    batch_work: float
    """Part of `work` that is of class BATCH."""
    batch: float
    """Sequences that a replica runs at its best, bounded by ITL SLO, KV cache and settings."""
    mix: BatchMix | None
    """None when nothing arrives."""


def demand_of(point: OperatingPoint, seen: GroupSnapshot) -> Demand | None:
    """Return a group's demand; None without a step model."""
    if seen.model is None:
        return None
    shape = mean_shape(seen.demands)
    if shape is None:
        return Demand(0.0, 0.0, 0.0, 0.0, 0.0, float(seen.max_sequences), None)
    batch = best_batch(point, seen, shape)
    work = backlog = deadline_work = due_work = batch_work = 0.0
    for each in seen.demands:
        if each.deadline_s is not None:
            # It has a shape of its own: the mean covers only what arrives.
            most = min(batch, best_batch(point, seen, each.shape))
            own = seen.model.gpu_seconds(each.shape, most, seen.step_tokens)
            per_second = each.queued * own / max(SOON_S, each.deadline_s)
            due_work += per_second
            # A replica that is ordered now comes too late for the rest.
            if each.deadline_s > seen.cold_start_s:
                deadline_work += per_second
            continue
        seconds = seen.model.gpu_seconds(each.shape, batch, seen.step_tokens)
        queued = each.queued * seconds
        work += each.rate * seconds
        if each.request_class is RequestClass.BATCH:
            # Batch work waits for room by its nature. Its backlog does not call for replicas.
            batch_work += each.rate * seconds
        else:
            backlog += queued * _late_part(point, each)
    if work < NO_WORK:
        work = batch_work = 0.0
    return Demand(work, backlog, deadline_work, due_work, batch_work, batch, shape.mix)


def best_batch(point: OperatingPoint, seen: GroupSnapshot, shape: Shape) -> float:
    """Return the batch that a replica reaches under load: the largest within ITL SLO, KV cache and settings."""
    batch = float(seen.max_sequences)
    if seen.kv_tokens:
        batch = min(batch, KV_FILL * seen.kv_tokens / max(1.0, shape.mix.kv_tokens))
    if seen.live_batch is not None:
        # The replicas found this limit from their own steps. Without a second token there is no latency between two.
        batch = min(batch, seen.live_batch)
    elif seen.model is not None and point.itl_p95_s is not None and shape.output_tokens > 1:
        batch = min(batch, _within_itl(point.itl_p95_s, seen.model, seen, shape, batch))
    return max(1.0, batch)


def _within_itl(slo_s: float, model: StepModel, seen: GroupSnapshot, shape: Shape, largest: float) -> float:
    """Return the largest batch within the ITL SLO. The percentile exceeds the mean because of steps with prompts. Those
    are as long in any batch, so the difference is added, not multiplied.
    """
    now = min(largest, max(1.0, seen.running / max(1, seen.ready)))
    above = (seen.spread - 1.0) * model.itl(now, shape.mix)
    allowed = model.batch_for_itl(slo_s - above, shape.mix)
    # Where steps with prompts alone miss the SLO, more replicas do not help.
    decode = BatchMix(1.0, shape.mix.kv_tokens)
    return max(allowed, min(model.batch_for_itl(slo_s, decode), model.batch_for_rate(0.5, shape.mix, largest)))


def mean_shape(demands: tuple[ClassDemand, ...]) -> Shape | None:
    """Return the mean request of the classes, weighted by arrival rates, or by waiting requests where nothing arrives.
    None without any request.
    """
    weights = [each.rate for each in demands]
    if sum(weights) <= 0:
        weights = [float(each.queued) for each in demands]
    total = sum(weights)
    if total <= 0:
        return None
    pairs = list(zip(weights, demands, strict=True))
    return Shape(
        prompt_tokens=sum(w * d.shape.prompt_tokens for w, d in pairs) / total,
        output_tokens=sum(w * d.shape.output_tokens for w, d in pairs) / total,
        cached_tokens=sum(w * d.shape.cached_tokens for w, d in pairs) / total,
    )


def _late_part(point: OperatingPoint, each: ClassDemand) -> float:
    """Return the part of a class's waiting requests that has waited too long, if arrivals are even."""
    slo = point.of(each.request_class).ttft_p99_s
    if slo is None or each.oldest_wait_s <= 0:
        return 1.0
    return max(0.0, 1.0 - SLO_WAIT_PART * slo / each.oldest_wait_s)
