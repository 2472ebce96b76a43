"""Metrics of an autoscaler: its last decision, the decision's inputs, and counts of what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.autoscaler.scaler import PoolScaler
from cluster.control.settings import ControlMode
from cluster.forecast.pool_forecast import BLEND
from cluster.telemetry.tenant_labels import TenantLabels
from penstock.values.steps import Relief

_PREFIX = "penstock_autoscaler_"


class AutoscalerMetrics(Collector):
    """Prometheus collector that reads the scalers. Values that only a leader knows are left out while another leads."""

    def __init__(self, scalers: Callable[[], Mapping[str, PoolScaler]]) -> None:
        """Prepare a collector. `scalers` is called anew for each collection, on another thread."""
        self.registry = CollectorRegistry()
        self._scalers = scalers
        self._tenants = TenantLabels()
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        gauges: dict[str, GaugeMetricFamily] = {}
        scalers = self._scalers()
        pools = GaugeMetricFamily(f"{_PREFIX}pools", "Pools that this one looks after, as leader or not.")
        pools.add_metric([], len(scalers))
        yield pools
        for pool, scaler in scalers.items():
            for name, text, labels, value in self._gauges(scaler):
                if name not in gauges:
                    gauges[name] = GaugeMetricFamily(_PREFIX + name, text, labels=["pool", *labels])
                if value is not None:
                    gauges[name].add_metric([pool, *labels.values()], value)
        yield from gauges.values()
        yield from self._counters(scalers)

    def _gauges(self, scaler: PoolScaler) -> Iterator[tuple[str, str, dict[str, str], float | None]]:
        yield "leading", "1 while this one leads the pool.", {}, float(scaler.leading)
        yield "fence", "Fence of the pool's leader; grows when another one leads.", {}, (
            scaler.leader.fence if scaler.leader is not None else None
        )  # fmt: skip
        for mode in ControlMode:
            yield "mode", "1 for the mode in force.", {"mode": mode.value}, float(mode is scaler.mode)
        # While another one leads this one does not look, so its last value would stay for ever.
        actual = scaler.actual if scaler.leading else None
        yield "replicas_target", "Replicas that the platform is told to have.", {}, actual.target if actual else None
        yield "replicas_running", "Replicas that it says run.", {}, actual.running if actual else None
        made = scaler.record if scaler.leading else None
        if made is None:
            return
        yield "replicas_decided", "Replicas as decided; carried out where the mode is active.", {}, made.replicas
        yield "replicas_needed", "Replicas needed, before hysteresis and rails.", {}, made.needed
        yield "replicas_ready", "Replicas that take work.", {}, made.ready
        yield "replicas_starting", "Replicas that were asked for and take no work yet.", {}, made.starting
        yield "replicas_standby", "Replicas that are to stand by: loaded, and without work.", {}, made.standby
        for step in made.steps:
            if step.name in ("demand", "growth", "ahead", "announced", "backlog", "batch"):
                yield "term_replicas", "What each term asks for, in replicas.", {"term": step.name}, step.value
        yield from self._foreseen(scaler)
        yield from self._announced(scaler)
        for relief in Relief:
            yield "relief", "1 for what the pool gives up now.", {"relief": relief.value}, float(relief is made.relief)
        for demand in made.demands:
            if demand.deadline_s is not None:
                continue
            labels = {"class": demand.request_class.name.lower()}
            yield "arrival_rate", "Requests per second that arrive.", labels, demand.rate
            yield "oldest_wait_seconds", "Longest wait of those in line.", labels, demand.oldest_wait_s
        yield "alarms", "Things that somebody should look at.", {}, len(made.alarms)
        yield "values_age_seconds", "Age of the oldest value that the decision rests on.", {}, made.age_s
        yield "cold_start_seconds", "A start takes so long, 90th percentile.", {}, made.cold_start_s
        yield "failed_starts", "Starts in a row that failed.", {}, made.failed_starts
        yield "attainment", "Part of the last ten minutes' requests within their SLO.", {}, made.attainment

    @staticmethod
    def _foreseen(scaler: PoolScaler) -> Iterator[tuple[str, str, dict[str, str], float | None]]:
        forecast = scaler.foresight.forecast
        judged, outlook = forecast.judged, forecast.outlook
        for expert, record in judged.items():
            labels = {"expert": expert}
            yield "forecast_error", "Mean error of an expert's forecasts of late, as a logarithm.", labels, record.loss
        if outlook is None:
            return
        load = "Load foreseen a cold start ahead, in reference requests per second."
        for expert, value in outlook.forecasts.items():
            labels = {"expert": expert}
            yield "forecast_load", load, labels, value
            yield "forecast_weight", "Weight of an expert.", labels, outlook.weights.get(expert, 0.0)
        yield "forecast_load", load, {"expert": BLEND}, outlook.load
        yield "forecast_skill", "Part by which the forecast is better than the present load.", {}, outlook.skill
        if (pattern := outlook.pattern) is not None:
            yield "forecast_change", "Factor on the load that earlier days or weeks foretell.", {}, pattern.change
            yield "forecast_trusted", "1 while that was right enough to decide by.", {}, float(pattern.trusted)

    def _announced(self, scaler: PoolScaler) -> Iterator[tuple[str, str, dict[str, str], float | None]]:
        said = "Work that tenants announced for one cold start from now, replica-seconds per second."
        work = scaler.announcements.work
        yield "announced_work", said, {}, work.said if work is not None else 0.0
        more = "Part of it that is believed, and does not come already."
        yield "announced_awaited_work", more, {}, work.soon if work is not None else 0.0
        count = "Announcements that are not over."
        yield "announcements", count, {}, float(len(scaler.announcements.loads))
        parts: dict[str, float] = {}
        for tenant in sorted({load.tenant for load in scaler.announcements.loads}):
            label, part = self._tenants.of(tenant), scaler.announcements.belief.of(tenant).part
            # Those that share a series: the one that keeps its word least.
            parts[label] = min(part, parts.get(label, part))
        for tenant, part in parts.items():
            came = "Part of a tenant's announcements that came true of late; 1 before the first."
            yield "announced_part", came, {"tenant": tenant}, part

    def _counters(self, scalers: Mapping[str, PoolScaler]) -> Iterator[Metric]:
        changes = CounterMetricFamily(
            f"{_PREFIX}changes", "Changes of the number of replicas.", labels=["pool", "direction"]
        )
        counts = {
            "ticks": "Decisions made.",
            "actuator_errors": "Calls to the platform that failed.",
            "took_over": "Times that this one began to lead.",
            "deposed": "Times that another one took the lead from it.",
            "failures": "Ticks that ended with an error.",
        }
        families = {name: CounterMetricFamily(_PREFIX + name, text, labels=["pool"]) for name, text in counts.items()}
        for pool, scaler in scalers.items():
            changes.add_metric([pool, "up"], scaler.tally.changes_up)
            changes.add_metric([pool, "down"], scaler.tally.changes_down)
            for name, family in families.items():
                family.add_metric([pool], getattr(scaler.tally, name))
        yield changes
        yield from families.values()
