"""Metrics of roll-outs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.rollout.record import Trouble
from penstock.values.admin.rollout import RolloutState
from router.rollout.keeper import PoolRollout


class RolloutMetrics(Collector):
    """Series about the newest roll-out of each pool, read at every scrape. They are the same at every router."""

    def __init__(self, pools: Mapping[str, PoolRollout]) -> None:
        self._pools = pools

    def collect(self) -> Iterable[Metric]:
        state = GaugeMetricFamily(
            "penstock_rollout_state",
            "1 for the state of the pool's newest roll-out. A pool without one has no series, as for the next three.",
            labels=["pool", "state"],
        )
        replicas = GaugeMetricFamily(
            "penstock_rollout_replicas", "Replicas that the pool's newest roll-out is to change.", labels=["pool"]
        )
        changed = GaugeMetricFamily(
            "penstock_rollout_replicas_changed",
            "Those of them that have the new revision. It falls again while the roll-out goes back.",
            labels=["pool"],
        )
        failures = GaugeMetricFamily(
            "penstock_rollout_failures",
            "What went wrong with new replicas in the pool's newest roll-out, by reason.",
            labels=["pool", "reason"],
        )
        # Pools come and go while a scrape reads.
        # Another thread may add a pool meanwhile.
        for name, pool in list(self._pools.items()):
            if (newest := pool.newest) is None:
                continue
            for each in RolloutState:
                state.add_metric([name, each.value.replace(" ", "_")], float(each is newest.state))
            replicas.add_metric([name], newest.size)
            changed.add_metric([name], newest.changed)
            for reason in Trouble:
                failures.add_metric([name, reason.value], newest.troubles.count(reason))
        yield from (state, replicas, changed, failures)
