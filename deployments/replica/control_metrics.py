"""The control loop's metrics: its knowledge of the engine, the quality of that knowledge, and its decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.control.settings import ControlMode
from deployments.replica.governor import Governor


class ControlMetrics(Collector):
    """Metrics read from the governor at each scrape. Unknown values are left out."""

    def __init__(self, labels: dict[str, str], governor: Governor) -> None:
        self._labels = labels
        self._governor = governor

    def collect(self) -> Iterable[Metric]:
        for name, text, value in self._gauges():
            if value is not None:
                gauge = GaugeMetricFamily(f"penstock_replica_{name}", text, labels=list(self._labels))
                gauge.add_metric(list(self._labels.values()), value)
                yield gauge
        yield self._mode()
        yield self._counts()

    def _gauges(self) -> Iterator[tuple[str, str, float | None]]:
        governor = self._governor
        fit, model, decision = governor.fit, governor.fit.model, governor.decision
        yield "step_measured_seconds", "Mean duration of the last tick's steps.", governor.times.measured_s
        yield "step_predicted_seconds", "Mean of what the model said of them before.", governor.times.predicted_s
        yield "step_error_median", "Median relative error of the last 200 predictions.", fit.median_error
        yield "step_error_mean", "Mean relative error of the last 200 predictions, outliers included.", fit.mean_error
        yield "step_model_healthy", "Whether the step model is relied on.", float(fit.healthy)
        if model is not None:
            yield "step_constant_seconds", "Step model: seconds per step.", model.a
            yield "step_token_seconds", "Step model: seconds per computed token.", model.b
            yield "step_kv_token_seconds", "Step model: seconds per context token read.", model.g
        yield "itl_p95_seconds", "95th percentile of the inter-token latency over the window.", governor.itl_p95_s
        yield "itl_slo_seconds", "The tightest inter-token latency promised.", governor.point.itl_p95_s
        if decision is not None:
            yield "control_limit", "Batch limit as decided; in force where the mode is active.", decision.limit
            yield "control_feed_forward", "Batch limit that model and KV cache allow.", decision.feed_forward
            yield "control_batch_slots", "Slots that class BATCH may have; missing for any.", governor.batch_slots
            yield "control_trim", "Correction of it, 0.5 to 1.", decision.state.trim
            yield "control_overloaded", "Whether the smallest batch misses the SLO.", float(decision.overloaded)
            yield "control_given_up", "Whether prompts put the ITL SLO out of reach.", float(decision.given_up)

    def _mode(self) -> Metric:
        mode = GaugeMetricFamily(
            "penstock_replica_control_mode", "1 for the mode in force.", labels=[*self._labels, "mode"]
        )
        for each in ControlMode:
            mode.add_metric([*self._labels.values(), each.value], float(each is self._governor.mode))
        return mode

    def _counts(self) -> Metric:
        changes = CounterMetricFamily(
            "penstock_replica_control_changes", "Changes of the batch limit, by cause.", labels=[*self._labels, "cause"]
        )
        for cause, count in self._governor.changes.copy().items():
            changes.add_metric([*self._labels.values(), cause], count)
        return changes
