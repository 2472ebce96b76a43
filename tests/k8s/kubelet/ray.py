"""Ray on Kubernetes without its operator: pods as KubeRay 1.7 makes them, and the Serve config that it submits.

The command, what it takes from the group's resources and labels, the token and the head's probe follow the operator's
pod.go. The operator's autoscaler sidecar and its upgrades are left out.
"""

from __future__ import annotations

import asyncio
import json
from math import ceil
from pathlib import Path
from typing import Any

from cluster.errors import BootstrapError
from cluster.ray_serve.client import ServeApi
from tests.k8s.charts import one
from tests.k8s.kubelet.cluster import Kubelet
from tests.k8s.kubelet.pod import Pod, PodError, http_ok
from tests.k8s.view import PodSpec, serve_config
from tests.support.waiting import until

GCS, DASHBOARD, AGENT, METRICS = 6379, 8265, 52365, 8080
LOOK_S = 0.5
HEALTH = "/api/healthz"
"""Of a node, its raylet included; since Ray 2.53."""
ATTEMPTS = 3
"""Ray gives its agents 15 s and a raylet 30 s to come up, which a busy machine can miss."""
START_S = 120.0
"""For Ray to start, on a machine that others use too."""
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": 1e-3}


class Ray:
    """Runs the RayService of a kubelet's objects."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self.service = one(kubelet.objects, "RayService")
        self._cluster: dict[str, Any] = self.service["spec"]["rayClusterConfig"]
        self._host = f"{self.service['metadata']['name']}-head-svc"
        self.head: Pod | None = None
        self.serve: ServeApi | None = None

    async def start(self, folder: Path) -> None:
        """Start head and workers, and submit the Serve config; returns when every worker is ready."""
        head = self.head = await self._node("ray-head", self._pod("head", self._cluster["headGroupSpec"]))
        for port in (GCS, DASHBOARD):
            self._kubelet.name_service(self._host, port, head.ip)
        for group in self._cluster["workerGroupSpecs"]:
            for _ in range(group["replicas"]):
                # One after the other: a machine of two cores has enough to do with each.
                await self._node("replicas", self._pod("worker", group))
        token = folder / "ray-token"
        token.write_text(self._kubelet.secret(self._cluster["authOptions"]["secretName"])["auth_token"])
        self.serve = ServeApi(f"http://{head.ip}:{DASHBOARD}", token)
        await self._kubelet.until_ready([head], START_S)
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

    def _pod(self, kind: str, group: dict[str, Any]) -> PodSpec:
        template = json.loads(json.dumps(group["template"]))
        container = template["spec"]["containers"][0]
        assert "command" not in container, "the operator would put its own command behind this one"
        container["command"] = ["/bin/bash", "-c", "--"]
        container["args"] = [f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {self._start(kind, group)}"]
        token = {"name": self._cluster["authOptions"]["secretName"], "key": "auth_token"}
        container["env"] += [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": token}},
        ]
        health = {"httpGet": {"path": HEALTH, "port": AGENT}, "periodSeconds": 5, "timeoutSeconds": 5}
        # A probe of ours stays, so a worker is ready when its replica is.
        container.setdefault("readinessProbe", {**health, "failureThreshold": 10})
        container.setdefault("livenessProbe", {**health, "failureThreshold": 120})
        return PodSpec(f"RayService/{kind}", template["metadata"], template["spec"])

    def _start(self, kind: str, group: dict[str, Any]) -> str:
        options = {
            **group.get("rayStartParams", {}),
            "metrics-export-port": METRICS,
            "dashboard-agent-listen-port": AGENT,
        }
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        own = {}
        for name, amount in group.get("resources", {}).items():
            known = {"cpu": "num-cpus", "gpu": "num-gpus", "memory": "memory"}.get(name.lower())
            if known:
                options[known] = int(quantity(amount))
            else:
                own[name] = quantity(amount)
        if own:
            options["resources"] = f"'{json.dumps(own)}'"
        if labels := group.get("labels"):
            options["labels"] = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        options.setdefault("num-cpus", ceil(quantity(limits["cpu"])))
        options.setdefault("memory", int(quantity(limits["memory"])))
        if kind == "worker":
            options["address"] = f"{self._host}:{GCS}"
        switches = ["--head"] * (kind == "head") + ["--block"]
        # The operator's sidecar is the autoscaler.
        switches += ["--no-monitor"] * (kind == "head" and self._cluster["enableInTreeAutoscaling"])
        return " ".join(["ray start", *switches, *(f"--{name}={value}" for name, value in sorted(options.items()))])


def quantity(text: str | float) -> float:
    """Read a quantity of Kubernetes."""
    text = str(text)
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * UNITS.get(unit, 1)
