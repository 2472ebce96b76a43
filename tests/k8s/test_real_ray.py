"""The whole chart with real Ray: head and workers as the operator starts them, Ray Serve, routers and an autoscaler.

Each pod has a network namespace, so that everything is on the ports that the chart declares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.settings import QueueSettings
from cluster.trust.announcement import Announcement
from cluster.trust.secret import ClusterSecret
from tests.k8s.charts import one, render
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.network import bridge
from tests.k8s.kubelet.ray import Ray
from tests.k8s.kubelet.stack import ROUTERS, VALUES, load, more
from tests.k8s.view import serve_config
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

SPEED = 3.0
"""Probes cost more here: each goes through Ray's agent, or a namespace."""
CHANGES = {
    "autoscaler.replicas": "1",
    # Down is what it has to do here; up is for tests that pay less for it.
    "pools.demo.settings.autoscale.min_replicas": "1",
    "pools.demo.settings.autoscale.max_replicas": "2",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Kubelet, Ray]]:
    """Redis, Ray with two replicas, two routers."""
    folder = tmp_path_factory.mktemp("ray")
    objects = render("sim", *(f"--set={key}={value}" for key, value in {**VALUES, **CHANGES}.items()))
    with bridge() as network:
        kubelet = Kubelet(objects, {}, folder, SPEED, network)
        ray = Ray(kubelet)
        try:
            await kubelet.apply("StatefulSet", "-redis")
            await ray.start(folder)
            await kubelet.apply("Deployment", ROUTERS)
            yield kubelet, ray
        finally:
            await kubelet.close()


async def test_replicas_announce_their_ray_cluster_and_when_it_began(
    running: tuple[Kubelet, Ray], tmp_path: Path
) -> None:
    """From the variable that KubeRay sets, and from Ray."""
    kubelet, _ = running
    (tmp_path / "secret").write_text(kubelet.secret("penstock-cluster")["cluster-secret"])
    secret = ClusterSecret.from_file(tmp_path / "secret")
    url = kubelet.pods["penstock-router"][0].environ["PENSTOCK_REDIS__URL"]
    queue = RedisQueue(url, "demo", limits_from(QueueSettings()), 5.0)
    try:
        view = await queue.observe()
    finally:
        await queue.close()
    found = [Announcement.open(record.record, secret) for record in view.replicas]
    homes = {(each.ray_cluster, each.ray_started_at) for each in found if each is not None}
    ((cluster, began),) = homes
    assert (2, "penstock-x7k2p") == (len(found), cluster)
    assert abs(time.time() - began) < 24 * 3600


async def test_a_rolling_update_under_load_fails_no_request(running: tuple[Kubelet, Ray]) -> None:
    """Routers, by their Deployment's strategy."""
    kubelet, _ = running
    async with load(kubelet) as clients:
        await more(clients)
        old = await kubelet.roll_out(one(kubelet.objects, "Deployment", ROUTERS))
        await more(clients)
    assert [] == clients.failures
    assert [False, False] == [pod.killed for pod in old]


async def test_changed_settings_replace_replicas_in_place_and_fail_no_request(running: tuple[Kubelet, Ray]) -> None:
    """What the operator does with a changed serveConfigV2: the pods stay, Serve replaces one replica after another."""
    kubelet, ray = running
    before = list(kubelet.pods["replicas"])
    config = serve_config(ray.service)
    config["applications"][0]["args"]["settings"]["queue"] = {"lookahead": 9}
    async with load(kubelet) as clients:
        await more(clients)
        await ray.submit(config)
        await until(lambda: not all(pod.ready for pod in before), 60)
        await ray.until_running(2)
        await kubelet.until_ready(before)
        await more(clients)
    assert [] == clients.failures
    assert before == kubelet.pods["replicas"]


async def test_the_autoscaler_scales_down_under_load_and_fails_no_request(running: tuple[Kubelet, Ray]) -> None:
    """Through the head's Service, with Ray's token: a replica drains, its pod stays for Ray's own autoscaler to end."""
    kubelet, ray = running
    async with load(kubelet, streams=2) as clients:
        await more(clients, 2)
        await kubelet.apply("Deployment", "-autoscaler")
        await ray.until_running(1)
        await until(lambda: [True, False] == sorted((p.ready for p in kubelet.pods["replicas"]), reverse=True), 60)
        await more(clients)
    assert [] == clients.failures
    await asyncio.gather(*(kubelet.remove(pod) for pod in list(kubelet.pods["penstock-autoscaler"])))
