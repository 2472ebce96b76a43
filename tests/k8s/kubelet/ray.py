"""Ray on Kubernetes without its operator: pods as KubeRay 1.7 makes them, and the Serve config that it submits.

`tests.k8s.kuberay.pods` makes the pods. The operator's autoscaler beside the head and its upgrades are left out.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from cluster.errors import BootstrapError
from cluster.ray_serve.client import ServeApi
from tests.k8s.charts import one
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.pod import Pod, PodError, http_ok
from tests.k8s.kuberay.pods import AGENT, DASHBOARD, GCS, HEALTH, head, head_address, service_address, worker
from tests.k8s.view import PodSpec, serve_config
from tests.support.waiting import until

LOOK_S = 0.5
ATTEMPTS = 3
"""Ray gives its agents 15 s and a raylet 30 s to come up, which a busy machine can miss."""
START_S = 120.0
"""For Ray to start, on a machine that others use too."""


class Ray:
    """Runs the RayService of a kubelet's objects."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self.service = one(kubelet.objects, "RayService")
        self._cluster: dict[str, Any] = self.service["spec"]["rayClusterConfig"]
        self._host = service_address(self.service)
        self.head: Pod | None = None
        self.serve: ServeApi | None = None

    async def start(self, folder: Path) -> None:
        """Start head and workers, and submit the Serve config; returns when every worker is ready."""
        first = self.head = await self._node("ray-head", head(self.service))
        for host in (self._host, head_address(self.service)):
            for port in (GCS, DASHBOARD):
                self._kubelet.name_service(host, port, first.ip)
        for group in self._cluster["workerGroupSpecs"]:
            for _ in range(group["replicas"]):
                # One after the other: a machine of two cores has enough to do with each.
                await self._node("replicas", worker(self.service, group))
        token = folder / "ray-token"
        token.write_text(self._kubelet.secret(self._cluster["authOptions"]["secretName"])["auth_token"])
        self.serve = ServeApi(f"http://{first.ip}:{DASHBOARD}", token)
        await self._kubelet.until_ready([first], START_S)
        await self.submit(serve_config(self.service))
        await self._kubelet.until_ready(self._kubelet.pods["replicas"], START_S)

    async def _node(self, workload: str, spec: PodSpec) -> Pod:
        """Start a pod until its node is up; one that ended instead is made anew, as the operator does."""
        for _ in range(ATTEMPTS):
            pod = self._kubelet.add(workload, spec)

            async def decided(pod: Pod = pod) -> bool:
                await asyncio.sleep(LOOK_S)
                return not pod.running or await asyncio.to_thread(http_ok, f"http://{pod.ip}:{AGENT}{HEALTH}", 5.0)

            await until(decided, START_S)
            if pod.running:
                return pod
            await self._kubelet.remove(pod)
        raise PodError(f"{pod.name}: {pod.log_tail()}")

    async def submit(self, config: dict[str, Any]) -> None:
        """Hand a Serve config over, as the operator does whenever it changed, and again until it is taken."""
        # Paths of the container are folders here, the same for each worker.
        view = self._kubelet.pods["replicas"][0].view
        translated = json.loads(view.of(json.dumps(config)))

        async def taken() -> bool:
            assert self.serve is not None
            try:
                await self.serve.deploy(translated)
            except BootstrapError:
                # Serve starts with the first config, which takes longer than a call may on a busy machine.
                return False
            return True

        await until(taken, START_S)

    async def until_running(self, replicas: int, seconds: float = 90.0) -> None:
        """Wait until Serve has brought its application to so many replicas."""

        async def there() -> bool:
            assert self.serve is not None
            # Each look costs Ray's dashboard more than what it looks at.
            await asyncio.sleep(LOOK_S)
            (app,) = (await self.serve.status()).values()
            assert app.status != "DEPLOY_FAILED", app.message
            return (app.status, app.running, app.target) == ("RUNNING", replicas, replicas)

        await until(there, seconds)
