"""The chart as the tests run it: Redis, two replicas with simulated engines, two routers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.k8s.charts import Object, render
from tests.k8s.kubelet.cluster import SPREAD_S, Kubelet
from tests.k8s.kubelet.load import Load
from tests.support.waiting import until

ROUTERS = "-router"
SPEED = 10.0
"""How much faster the kubelet's own periods pass."""
VALUES = {
    "auth.anonymous": "false",
    "secrets.generate": "true",
    "secrets.generateOffline": "true",
    "router.drainSeconds": "8",
    "router.preStopSeconds": "1",
    "replica.drainSeconds": "8",
    "pools.demo.settings.sim.base_ms": "12",
    "pools.demo.settings.sim.max_num_seqs": "4",
    "pools.demo.settings.slo.interactive.itl_p95_s": "0.05",
    # The load's class; what is promised nothing is not judged.
    "pools.demo.settings.slo.standard.ttft_p99_s": "30",
    # So that it has something to change.
    "pools.demo.settings.control.start_batch": "2",
    # In seconds what takes minutes in production.
    "autoscaler.enabled": "true",
    "autoscaler.settings.tick_s": "0.5",
    "autoscaler.settings.lease_s": "3",
    "pools.demo.settings.autoscale.mode": "active",
    "pools.demo.settings.autoscale.min_replicas": "2",
    "pools.demo.settings.autoscale.max_replicas": "3",
    "pools.demo.settings.autoscale.rate_window_s": "4",
    "pools.demo.settings.autoscale.hold_s": "1",
    "pools.demo.settings.autoscale.look_back_s": "5",
    "pools.demo.settings.autoscale.up_window_s": "5",
    "pools.demo.settings.autoscale.down_window_s": "1",
    "pools.demo.settings.autoscale.cold_start_s": "4",
    "monitoring.serviceMonitor.enabled": "true",
    "monitoring.podMonitor.enabled": "true",
    "monitoring.prometheusRule.enabled": "true",
}


def objects(*more: str) -> list[Object]:
    """Return what the chart renders, with further flags of Helm."""
    return render("sim", *(f"--set={key}={value}" for key, value in VALUES.items()), *more)


@contextlib.asynccontextmanager
async def running_kubelet(folder: Path) -> AsyncIterator[Kubelet]:
    """Run it all."""
    running = Kubelet(objects(), {}, folder, SPEED)
    try:
        await running.apply("StatefulSet", "-redis")
        await running.apply_replicas()
        # They know a replica when they are ready, if there is one.
        await running.apply("Deployment", ROUTERS)
        yield running
    finally:
        await running.close()


def key_of(kubelet: Kubelet) -> str:
    """Return the key that the chart made."""
    return kubelet.secret("penstock-first-key")["key"]


def endpoints(kubelet: Kubelet) -> Callable[[], list[str]]:
    """Return what the headless Service's name resolves to."""
    return lambda: kubelet.endpoints("-headless")


def load(kubelet: Kubelet, streams: int = 4, delay_s: float = SPREAD_S, model: str = "demo") -> Load:
    """Call the routers as clients inside the cluster do."""
    return Load(endpoints(kubelet), key_of(kubelet), delay_s, streams, model=model)


async def more(clients: Load, requests: int = 6) -> None:
    """Wait until so many further requests have ended, well or not."""
    wanted = clients.done + len(clients.failures) + requests
    await until(lambda: clients.done + len(clients.failures) >= wanted, 60)
