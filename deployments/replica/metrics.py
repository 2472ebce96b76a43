"""The replica's metrics. Counters move once per request or at a scrape, never per token."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.models import EngineStats
from cluster.telemetry.metrics import LATENCY_BUCKETS
from deployments.replica.attempts import AttemptTable
from deployments.replica.control_metrics import ControlMetrics
from deployments.replica.governor import Governor
from deployments.replica.output_log import OutputLog
from deployments.replica.standby import Standby


class ReplicaMetrics:
    """Registry of the replica's metrics."""

    def __init__(self, pool: str, replica_id: str, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"pool": pool, "replica": replica_id}
        names = list(self._labels)
        values = list(self._labels.values())
        self._ended = Counter(
            "penstock_replica_sequences_ended",
            "Sequences that ended, by reason.",
            [*names, "reason"],
            registry=self.registry,
        )
        self._prefill = Histogram(
            "penstock_replica_prefill_seconds",
            "Arrival at the replica to first token.",
            names,
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        ).labels(*values)
        self._itl = Histogram(
            "penstock_replica_inter_token_seconds",
            "Mean inter-token latency of each sequence.",
            names,
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        ).labels(*values)
        self._gpu = Counter(
            "penstock_replica_gpu_seconds",
            "Accelerator seconds used by sequences that ended.",
            names,
            registry=self.registry,
        ).labels(*values)
        self._stats = stats

    def watch(self, table: AttemptTable, governor: Governor, standby: Standby) -> None:
        """Read engine, table, control loop and standby at each scrape."""
        self.registry.register(_Live(self._labels, self._stats, table, standby))
        self.registry.register(ControlMetrics(self._labels, governor))

    def ended(self, log: OutputLog) -> None:
        """Count a sequence that ended."""
        if (end := log.end) is None:
            return
        self._ended.labels(*self._labels.values(), end.reason.value).inc()
        self._gpu.inc(end.gpu_seconds)
        if end.prefill_s > 0:
            self._prefill.observe(end.prefill_s)
        if end.output_tokens > 1:
            self._itl.observe(end.decode_s / (end.output_tokens - 1))


class _Live(Collector):
    def __init__(
        self, labels: dict[str, str], stats: Callable[[], EngineStats], table: AttemptTable, standby: Standby
    ) -> None:
        self._labels = labels
        self._stats = stats
        self._table = table
        self._standby = standby

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        gauges = {
            "penstock_replica_running": ("Sequences in the batch.", stats.running),
            "penstock_replica_engine_waiting": ("Sequences waiting inside the engine.", stats.waiting),
            "penstock_replica_kv_usage": ("Used part of the KV cache, 0 to 1.", stats.kv_usage),
            "penstock_replica_batch_limit": ("Live batch limit in sequences.", stats.batch_limit),
            "penstock_replica_token_budget": ("Tokens one step may process.", stats.token_budget),
            "penstock_replica_slots_held": ("Attempts that hold a slot.", self._table.sequences),
            "penstock_replica_prefill_tokens": ("Outstanding prompt tokens.", self._table.prefill_tokens),
            "penstock_replica_parked": ("Attempts whose router is gone.", self._table.parked),
            "penstock_replica_standby": ("1 while it stands by without work.", float(self._standby.resting)),
            "penstock_replica_asleep": ("1 while its engine sleeps.", float(self._standby.asleep)),
            "penstock_replica_wake_seconds": (
                "Duration of the last wake-up of its engine, 0 before the first.",
                self._standby.wake_s or 0.0,
            ),
        }
        counters = {
            "penstock_replica_steps": ("Engine steps.", stats.steps),
            "penstock_replica_standbys": ("Standbys that have ended.", self._standby.wakes),
            "penstock_replica_orphaned_attempts": ("Attempts that ended without a receiver.", self._table.orphans),
            "penstock_replica_orphaned_gpu_seconds": (
                "Accelerator seconds of such attempts.",
                self._table.orphaned_gpu_s,
            ),
            "penstock_replica_busy_seconds": ("Time in steps that held sequences.", stats.busy_s),
            "penstock_replica_output_tokens": ("Output tokens.", stats.output_tokens),
            "penstock_replica_prompt_tokens": ("Prompt tokens.", stats.prompt_tokens),
            "penstock_replica_cached_tokens": ("Prompt tokens found in the prefix cache.", stats.cached_tokens),
            "penstock_replica_preemptions": ("Sequences the engine preempted.", stats.preemptions),
            "penstock_replica_draft_tokens": ("Speculated tokens.", stats.draft_tokens),
            "penstock_replica_accepted_draft_tokens": ("Accepted speculated tokens.", stats.accepted_draft_tokens),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(name, text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), value)
            yield counter
