"""Rendered pods run as processes: probes, updates and scale-downs under load, and mistakes that only running shows."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import grpc
import pytest

from penstock.client import AsyncClient, RegistryEdit
from penstock.v1 import inference_pb2_grpc
from tests.k8s.charts import Object, one
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.load import Load
from tests.k8s.kubelet.pod import Pod, PodError, connects
from tests.k8s.kubelet.serve import running_autoscalers, running_serve
from tests.k8s.kubelet.stack import ROUTERS, endpoints, key_of, load, more, objects
from tests.k8s.kuberay.clusters import Change, RayClusters
from tests.k8s.view import PodSpec, pods
from tests.support.stack import collect, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


def changed(deployment: Object, change: Callable[[Any], Any]) -> PodSpec:
    planted = copy.deepcopy(deployment)
    change(planted["spec"]["template"]["spec"])
    return Kubelet.template(planted)


def router_deployment(kubelet: Kubelet) -> Object:
    return one(kubelet.objects, "Deployment", ROUTERS)


@contextlib.asynccontextmanager
async def extra_router(kubelet: Kubelet, change: Callable[[Any], Any]) -> AsyncIterator[Pod]:
    """Run one more router with a mistake, and no other one behind the Services."""
    pod = kubelet.add("planted", changed(router_deployment(kubelet), change))
    try:
        yield pod
    finally:
        await pod.destroy()
        kubelet.pods["planted"] = []


async def test_the_rendered_stack_serves(kubelet: Kubelet) -> None:
    async with load(kubelet) as clients:
        await more(clients)
    assert [] == clients.failures


async def test_the_console_serves_its_page_and_calls_the_routers(kubelet: Kubelet) -> None:
    await kubelet.apply("Deployment", "-console")
    (pod,) = kubelet.pods["penstock-console"]
    address = f"http://{pod.ip}:{pod.spec.ports()['page']}"
    own = {"X-Penstock-Console": "1", "X-Penstock-Key": key_of(kubelet)}
    async with aiohttp.ClientSession(headers=own) as session, session.get(f"{address}/api/whoami") as answer:
        assert "admin" == (await answer.json())["role"]
    await kubelet.remove(pod)


async def test_nobody_gets_in_without_the_key(kubelet: Kubelet) -> None:
    async with grpc.aio.insecure_channel(endpoints(kubelet)()[0]) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(stream_request())
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await collect(call)


async def test_helms_own_test_passes(kubelet: Kubelet) -> None:
    """The hook's pod, as rendered: the command, the key from the secret, the Service's name."""
    (spec,) = [pod for pod in pods(kubelet.objects) if pod.component == "test"]
    pod = kubelet.add("test", spec)
    try:
        await until(lambda: not pod.running, 60)
        assert 0 == pod._process.returncode, pod.log_tail()
    finally:
        await pod.destroy()


async def test_a_rolling_update_under_load_fails_no_request(kubelet: Kubelet) -> None:
    async with load(kubelet) as clients:
        await more(clients)
        old = await kubelet.roll_out(router_deployment(kubelet))
        await more(clients)
    assert [] == clients.failures
    assert [False, False] == [pod.killed for pod in old]
    assert not set(old) & set(kubelet.pods["penstock-router"])


async def test_scaling_down_under_load_fails_no_request(kubelet: Kubelet) -> None:
    """A replica goes, then a router; what ran on them ends well."""
    replica, router = kubelet.pods["replicas"][0], kubelet.pods["penstock-router"][0]
    async with load(kubelet) as clients:
        await more(clients)
        await asyncio.gather(kubelet.remove(replica), kubelet.remove(router))
        await more(clients)
    assert [] == clients.failures
    assert not replica.killed
    assert not router.killed


async def test_a_second_ray_cluster_takes_over_gives_back_and_no_request_fails(kubelet: Kubelet) -> None:
    """What KubeRay makes of a changed pod template, and of the change that takes it back: the older pods have no work
    while the newer ones are there, and have it again when those go.
    """
    older = list(kubelet.pods["replicas"])
    async with load(kubelet) as clients:
        await more(clients)
        kubelet.clusters += 1
        newer = [kubelet.add_replica() for _ in older]
        await kubelet.until_ready(newer)
        await until(lambda: all(replica_sample(pod, "sequences_ended_total") for pod in newer), 60)
        await until(lambda: not any(replica_sample(pod, "slots_held") for pod in older), 60)
        before = [replica_sample(pod, "sequences_ended_total") for pod in older]
        await more(clients, 12)
        assert before == [replica_sample(pod, "sequences_ended_total") for pod in older]
        await asyncio.gather(*(kubelet.remove(pod) for pod in newer))
        await until(lambda: before != [replica_sample(pod, "sequences_ended_total") for pod in older], 60)
        await more(clients)
    kubelet.clusters -= 1
    assert [] == clients.failures
    assert not any(pod.killed for pod in newer)


NEXT = {
    "device": "cpu",
    "image": {"tag": "next"},
    "settings": {"engine": "sim", "replicas": 1, "sim": {"base_ms": 12, "max_num_seqs": 4}},
    "workers": {"order": 1, "min": 0, "max": 2, "resources": {"limits": {"memory": "1Gi"}}},
}
APPENDED = (
    f"--set-json=pools.next={json.dumps(NEXT)}",
    "--set=pools.demo.workers.min=0",
    '--set-json=settings.aliases.large={"targets": [{"model": "demo"}], "sticky": "none"}',
)
RETIRED = (
    *APPENDED,
    "--set=pools.demo.retired=true",
    "--set=pools.demo.settings.autoscale=null",
    "--set=autoscaler.enabled=false",
    '--set-json=settings.aliases.large={"targets": [{"model": "next"}], "sticky": "none"}',
)


async def test_another_image_comes_with_an_appended_pool_and_no_request_fails(kubelet: Kubelet) -> None:
    """The steps of the manual: a pool is appended, an alias moves, and the first pool is retired. No more replicas run
    than before, and KubeRay keeps its Ray cluster. Until routers know the new replica the fallback serves.
    """
    before, found = kubelet.objects, len(kubelet.pods["replicas"])
    clusters = RayClusters(one(before, "RayService"))
    for _ in range(2 - found):
        kubelet.add_replica()
    olds = list(kubelet.pods["replicas"])
    await kubelet.until_ready(olds)
    try:
        kubelet.objects = objects(*APPENDED)
        assert Change.IN_PLACE is clusters.take(one(kubelet.objects, "RayService"))
        await kubelet.roll_out(router_deployment(kubelet))
        async with load(kubelet, model="large") as clients, admin_of(kubelet) as admin:
            await more(clients)
            await kubelet.remove(olds[0])
            news = [kubelet.add_replica("next")]
            await lead(admin, "demo", "next", fallback="demo")
            await kubelet.until_ready(news)
            await until(lambda: replica_sample(news[0], "sequences_ended_total") > 0, 60)
            await until(lambda: knows(kubelet, "next"), 30)
            await lead(admin, "next")
            await until(lambda: not replica_sample(olds[1], "slots_held"), 60)
            kubelet.objects = objects(*RETIRED)
            assert Change.NOTHING is clusters.take(one(kubelet.objects, "RayService"))
            await kubelet.roll_out(router_deployment(kubelet))
            await kubelet.remove(olds[1])
            news.append(kubelet.add_replica("next"))
            await kubelet.until_ready(news)
            await until(lambda: replica_sample(news[1], "sequences_ended_total") > 0, 60)
            await more(clients)
        assert [] == clients.failures
        assert not any(pod.killed for pod in olds)
        assert news == kubelet.pods["replicas"]
        async with admin_of(kubelet) as admin:
            assert {"large", "next"} == {each.name for each in await admin.list_models()}
            await admin.edit_registry([RegistryEdit("alias", "large", None)])
    finally:
        kubelet.objects = before
        await asyncio.gather(*(kubelet.remove(pod) for pod in list(kubelet.pods["replicas"])))
        await kubelet.until_ready([kubelet.add_replica() for _ in range(found)])
        await kubelet.roll_out(router_deployment(kubelet))


def admin_of(kubelet: Kubelet) -> AsyncClient:
    return AsyncClient(endpoints(kubelet)()[0], api_key=key_of(kubelet), allow_plaintext_key=True)


async def knows(kubelet: Kubelet, pool: str) -> bool:
    """Say whether every router knows a replica of a pool."""
    for endpoint in endpoints(kubelet)():
        async with AsyncClient(endpoint, api_key=key_of(kubelet), allow_plaintext_key=True) as client:
            if not any(each.ready_replicas for each in await client.list_models() if each.name == pool):
                return False
    return True


async def lead(admin: AsyncClient, *pools: str, fallback: str | None = None) -> None:
    """Lead the alias to pools; every router knows when this returns."""
    value = {"targets": [{"model": name} for name in pools], "sticky": "none", "fallback": fallback}
    assert () == (await admin.edit_registry([RegistryEdit("alias", "large", value)], wait=10)).behind


async def test_a_wrong_port_is_found(kubelet: Kubelet) -> None:
    """Declared and probed, but not the one that the settings make the router bind."""
    async with extra_router(kubelet, lambda spec: spec["containers"][0]["ports"][1].update(containerPort=9091)) as pod:
        # The router is up, so a right port would be ready at the next look.
        await until(lambda: asyncio.to_thread(connects, pod.ip, 50051, 1.0), 60)
        with pytest.raises(PodError, match="not ready"):
            await kubelet.until_ready([pod], 1.0)
        assert pod.running


async def test_a_missing_variable_is_found(kubelet: Kubelet) -> None:
    async with extra_router(kubelet, lambda spec: spec["containers"][0]["env"].pop()) as pod:
        with pytest.raises(PodError, match=r"redis\.url must be set"):
            await kubelet.until_ready([pod])


async def test_a_missing_secret_is_found(kubelet: Kubelet) -> None:
    def rename(spec: Any) -> None:
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "cluster-secret")
        volume["secret"]["secretName"] = "penstock-clutser"

    with pytest.raises(PodError, match="secret penstock-clutser not found"):
        kubelet.add("planted", changed(router_deployment(kubelet), rename))


async def test_a_short_grace_is_found(kubelet: Kubelet) -> None:
    """With the grace that suits a web server streams are cut: the same update as above, one number less."""
    mistake: Callable[[Any], Any] = lambda spec: spec.update(terminationGracePeriodSeconds=1)  # noqa: E731
    async with extra_router(kubelet, mistake) as pod:
        await kubelet.until_ready([pod])
        # Streams of a second or two: with short ones it may end well in spite of it, if nobody looks for a moment.
        async with Load(lambda: [f"{pod.ip}:50051"], key_of(kubelet), 0.0, tokens=400) as clients:
            await more(clients, 4)
            await kubelet.remove(pod)
    assert pod.killed, pod.log_tail()
    assert clients.failures


async def test_a_missing_pause_is_found(kubelet: Kubelet) -> None:
    """Without preStop a router refuses while clients still come."""
    async with extra_router(kubelet, lambda spec: spec["containers"][0].pop("lifecycle")) as pod:
        await kubelet.until_ready([pod])
        # Below the second that preStop takes.
        async with load(kubelet, streams=8, delay_s=0.9) as clients:
            await more(clients)
            await kubelet.remove(pod)
            await more(clients)
    assert not pod.killed
    assert clients.failures


@pytest.mark.timeout(300)
async def test_autoscalers_move_replicas_and_one_takes_over_from_the_other(kubelet: Kubelet) -> None:
    """Two pods of the rendered Deployment, Redis, and Ray Serve's API behind the head's Service and Ray's token."""
    async with running_autoscalers(kubelet) as serve:
        pods = kubelet.pods["penstock-autoscaler"]
        await until(lambda: [1.0] == leads(pods), 30)
        async with load(kubelet, streams=14) as clients:
            await until(lambda: len(serve.replicas) == 3, 60)
            await kubelet.until_ready(serve.replicas)
            (first,) = [pod for pod in pods if leads([pod])]
            await kubelet.remove(first)
            assert not first.killed
            # At once: a pod that ends gives the lease back.
            await until(lambda: [1.0] == leads(pods), 30)
        # Work is averaged over a minute at least.
        await until(lambda: len(serve.replicas) == 2, 120)
        assert [] == clients.failures
        assert 0 == serve.refused
        assert 1 == len(pods)


async def test_an_autoscaler_without_rays_token_is_found(kubelet: Kubelet) -> None:
    """It reads the pool all the same, so only its alarm and metrics tell."""
    async with running_serve(kubelet) as serve:
        mistake: Callable[[Any], Any] = lambda spec: next(  # noqa: E731
            each for each in spec["volumes"] if each["name"] == "ray-token"
        )["secret"].update(secretName="penstock-redis", items=[{"key": "password", "path": "auth_token"}])
        pod = kubelet.add("planted", changed(one(kubelet.objects, "Deployment", "-autoscaler"), mistake))
        try:
            await kubelet.until_ready([pod])
            await until(lambda: serve.refused > 2, 30)
            await until(lambda: sample(pod, "penstock_autoscaler_alarms") > 0, 30)
        finally:
            await pod.destroy()
            kubelet.pods["planted"] = []


def leads(pods: list[Pod]) -> list[float]:
    """Return the marks of those that lead."""
    return [1.0 for pod in pods if sample(pod, "penstock_autoscaler_leading") == 1.0]


def replica_sample(pod: Pod, name: str) -> float:
    """Read a metric of a replica, all its series together."""
    url = f"http://{pod.ip}:{pod.port('replica-metrics')}/metrics"
    with urllib.request.urlopen(url, timeout=5) as reply:
        found = re.findall(rf"^penstock_replica_{name}(?:{{[^}}]*}})? (\S+)$", reply.read().decode(), re.MULTILINE)
    return sum(map(float, found))


def sample(pod: Pod, name: str) -> float:
    """Read a metric of a pod; 0 without it."""
    url = f"http://{pod.ip}:{pod.port('metrics')}/metrics"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        found = re.search(rf"^{name}{{[^}}]*}} (\S+)$", reply.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0
    return 0.0
