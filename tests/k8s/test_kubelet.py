"""Rendered pods run as processes: probes, updates and scale-downs under load, and mistakes that only running shows."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from penstock.v1 import inference_pb2_grpc

from tests.k8s.charts import Object, one
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.load import Load
from tests.k8s.kubelet.pod import Pod, PodError, connects
from tests.k8s.kubelet.stack import ROUTERS, endpoints, key_of, load
from tests.k8s.view import PodSpec, pods
from tests.support.stack import collect, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def more(load: Load, requests: int = 6) -> None:
    """Wait until so many further requests have ended, well or not."""
    wanted = load.done + len(load.failures) + requests
    await until(lambda: load.done + len(load.failures) >= wanted, 60)


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
        async with Load(lambda: [f"{pod.ip}:50051"], key_of(kubelet), 0.0) as clients:
            await more(clients, 4)
            await kubelet.remove(pod)
    assert pod.killed
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
