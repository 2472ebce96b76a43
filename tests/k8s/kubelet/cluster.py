"""Keeps rendered objects running: workloads to pods, Services to addresses."""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.k8s.charts import Object, of_kind, one
from tests.k8s.kubelet.image import make_image
from tests.k8s.kubelet.network import Loopback, Network
from tests.k8s.kubelet.pod import Init, LatePodError, Pod, PodError, Sandbox
from tests.k8s.kubelet.texts import Translation, expand
from tests.k8s.kuberay.pods import worker
from tests.k8s.view import PodSpec, serve_config
from tests.support.waiting import TimedOutError, until

READY_S = 60.0
NAMESPACE = "penstock"
SPREAD_S = 0.5
"""What endpoints take to reach those who call; below every preStop of the tests."""


class Kubelet:
    """Runs objects of one namespace."""

    def __init__(
        self,
        objects: list[Object],
        secrets: Mapping[str, Mapping[str, str]],
        folder: Path,
        speed: float,
        network: Network | None = None,
    ) -> None:
        """`secrets` are those that exist beforehand."""
        self.objects = objects
        self.pods: dict[str, list[Pod]] = {}
        """By workload."""
        self.clusters = 1
        """RayClusters so far, one in place of the other."""
        self._secrets = {name: dict(data) for name, data in secrets.items()}
        for each in of_kind(objects, "Secret"):
            decoded = {key: base64.b64decode(value).decode() for key, value in each["data"].items()}
            self._secrets[each["metadata"]["name"]] = decoded
        self._folder = folder
        self._speed = speed
        self._image = make_image(folder / "image")
        self._numbers = itertools.count(1)
        self._network = network or Loopback()
        self._leaving: list[asyncio.Task[None]] = []
        self._services: dict[str, str] = {}

    # --- workloads ----------------------------------------------------------------------------------------------------

    async def apply(self, kind: str, end: str = "") -> list[Pod]:
        """Bring a workload to its number of pods, all ready.

        Raises:
            PodError: one does not get ready.
        """
        workload = one(self.objects, kind, end)
        name = workload["metadata"]["name"]
        for _ in range(workload["spec"]["replicas"]):
            self.add(name, self.template(workload))
        await self.until_ready(self.pods[name])
        return self.pods[name]

    async def apply_replicas(self) -> list[Pod]:
        """Start the replicas that the Serve config names, one per worker pod."""
        service = one(self.objects, "RayService")
        for app in serve_config(service)["applications"]:
            for _ in range(app["deployments"][0]["num_replicas"]):
                self.add_replica()
        await self.until_ready(self.pods["replicas"])
        return self.pods["replicas"]

    def add_replica(self, pool: str = "demo") -> Pod:
        """Start one more replica of a pool, in the newest RayCluster."""
        service = one(self.objects, "RayService")
        groups = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        (group,) = [each for each in groups if each["groupName"] == pool]
        (app,) = [each for each in serve_config(service)["applications"] if each["args"]["pool"] == pool]
        made = worker(service, group)
        made.labels["ray.io/cluster"] += f"-{self.clusters}" if self.clusters > 1 else ""
        # There is no Ray to wait for.
        made.spec.pop("initContainers")
        arguments = [app["import_path"], json.dumps(app["args"]), f"replica-{next(self._numbers)}"]
        arguments.append(f"session_2026-11-27_{9 + self.clusters:02}-00-00_000000_1")
        made.spec["containers"][0] |= {"command": ["python", "-m", "tests.k8s.replica_host"], "args": arguments}
        return self.add("replicas", made)

    @staticmethod
    def template(workload: Object) -> PodSpec:
        """Return the pods that a workload makes."""
        template = workload["spec"]["template"]
        return PodSpec(f"{workload['kind']}/{workload['metadata']['name']}", template["metadata"], template["spec"])

    def add(self, workload: str, spec: PodSpec) -> Pod:
        """Start a pod.

        Raises:
            PodError: a secret or ConfigMap is missing.
        """
        number = next(self._numbers)
        folder = self._folder / f"pod-{number}"
        folder.mkdir()
        mounts = self._mounts(spec, folder)
        view = Translation(self._network.address(number), mounts, self._addresses(), alone=self._network.alone)
        self._write_files(spec, mounts, view)
        sandbox = Sandbox(self._network.enter(number, folder), functools.partial(self._network.clear, number))
        name = f"{workload}-{number}"
        environ = self._environ(name, spec, spec.spec["containers"][0], view, folder)
        init = [
            Init(container, self._environ(name, spec, container, view, folder))
            for container in spec.spec.get("initContainers", [])
        ]
        pod = Pod(name, spec, view, environ, folder, self._speed, sandbox, init)
        pod.start()
        self.pods.setdefault(workload, []).append(pod)
        return pod

    def remove(self, pod: Pod) -> asyncio.Task[None]:
        """Delete a pod; the task ends with it."""
        for pods in self.pods.values():
            if pod in pods:
                pods.remove(pod)
        task = asyncio.create_task(pod.terminate(), name=f"terminate {pod.name}")
        self._leaving.append(task)
        return task

    async def roll_out(self, workload: Object) -> list[Pod]:
        """Replace a Deployment's pods as its strategy says; returns the old ones, ended."""
        name = workload["metadata"]["name"]
        rolling = workload["spec"]["strategy"]["rollingUpdate"]
        assert rolling == {"maxUnavailable": 0, "maxSurge": 1}, "the only strategy that this kubelet knows"
        old = list(self.pods[name])
        for pod in old:
            fresh = self.add(name, self.template(workload))
            await self.until_ready([fresh])
            self.remove(pod)
        await asyncio.gather(*self._leaving)
        return old

    async def until_ready(self, pods: list[Pod], seconds: float = READY_S) -> None:
        """Wait for pods.

        Raises:
            PodError: one has ended, or is not ready in time.
        """

        def ready() -> bool:
            for pod in pods:
                pod.check()
            return all(pod.ready for pod in pods)

        try:
            await until(ready, seconds)
        except (TimeoutError, TimedOutError) as error:
            late = [pod for pod in pods if not pod.ready]
            raise LatePodError(f"{late[0].name}: not ready: {late[0].log_tail()}") from error

    async def close(self) -> None:
        """End everything."""
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.gather(*(pod.destroy() for pods in self.pods.values() for pod in pods))

    # --- network ------------------------------------------------------------------------------------------------------

    def endpoints(self, service: str) -> list[str]:
        """Return ip:port of the ready pods behind the first port of a Service."""
        spec = one(self.objects, "Service", service)["spec"]
        port = spec["ports"][0]
        return [f"{pod.ip}:{pod.port(port['targetPort'])}" for pod in self.behind(spec["selector"])]

    def behind(self, selector: dict[str, str]) -> list[Pod]:
        """Return the ready pods that a selector finds."""
        return [
            pod
            for pods in self.pods.values()
            for pod in pods
            if pod.ready and selector.items() <= pod.spec.labels.items()
        ]

    def add_service(self, name: str, port: int) -> str:
        """Give a Service that an operator would make an address, and return it; nothing listens there yet."""
        ip = self._network.address(next(self._numbers))
        self.name_service(name, port, ip)
        return ip

    def name_service(self, name: str, port: int, ip: str) -> None:
        """Have a Service that an operator would make lead to an address."""
        self._services[f"{name}:{port}"] = f"{ip}:{port}"

    def _addresses(self) -> dict[str, str]:
        found = dict(self._services)
        for service in of_kind(self.objects, "Service"):
            for pod in self.behind(service["spec"]["selector"])[:1]:
                for port in service["spec"]["ports"]:
                    target = port["targetPort"]
                    if isinstance(target, int) or target in pod.spec.ports():
                        found[f"{service['metadata']['name']}:{port['port']}"] = f"{pod.ip}:{pod.port(target)}"
        return found

    # --- files and environment ----------------------------------------------------------------------------------------

    def _mounts(self, spec: PodSpec, folder: Path) -> dict[str, Path]:
        mounts = spec.spec["containers"][0].get("volumeMounts", [])
        # /dev/shm and /tmp stay: programs use them without being told.
        return {
            mount["mountPath"]: folder / mount["mountPath"].strip("/")
            for mount in mounts
            if mount["mountPath"] not in ("/dev/shm", "/tmp")  # noqa: S108 - of pods
        }

    def _write_files(self, spec: PodSpec, mounts: dict[str, Path], view: Translation) -> None:
        volumes = {volume["name"]: volume for volume in spec.spec.get("volumes", [])}
        for mount in spec.spec["containers"][0].get("volumeMounts", []):
            if (path := mounts.get(mount["mountPath"])) is None:
                continue
            content = self._content(volumes.get(mount["name"], {}))
            if "subPath" in mount:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(view.of(content[mount["subPath"]]), encoding="utf-8")
                continue
            path.mkdir(parents=True, exist_ok=True)
            for name, text in content.items():
                (path / name).write_text(view.of(text), encoding="utf-8")

    def _content(self, volume: dict[str, Any]) -> dict[str, str]:
        if source := volume.get("secret"):
            data = self.secret(source["secretName"])
            items = source.get("items") or [{"key": key, "path": key} for key in data]
            return {item["path"]: self._key(source["secretName"], item["key"]) for item in items}
        if source := volume.get("configMap"):
            return one(self.objects, "ConfigMap", source["name"])["data"]
        return {}

    def secret(self, name: str) -> dict[str, str]:
        """Return what a secret holds.

        Raises:
            PodError: it does not exist.
        """
        if name not in self._secrets:
            raise PodError(f"CreateContainerConfigError: secret {name} not found")
        return self._secrets[name]

    def _key(self, name: str, key: str) -> str:
        if key not in (data := self.secret(name)):
            raise PodError(f"CreateContainerConfigError: secret {name} has no {key}")
        return data[key]

    def _environ(
        self, name: str, spec: PodSpec, container: dict[str, Any], view: Translation, folder: Path
    ) -> dict[str, str]:
        environ = {**self._image, "HOME": str(folder)}
        fields = {"status.podIP": view.ip, "metadata.name": name, "metadata.namespace": NAMESPACE}
        fields |= {f"metadata.labels['{label}']": value for label, value in spec.labels.items()}
        for each in container.get("env", []):
            source = each.get("valueFrom", {})
            if ref := source.get("secretKeyRef"):
                if ref.get("optional") and ref["key"] not in self._secrets.get(ref["name"], {}):
                    continue
                value = self._key(ref["name"], ref["key"])
            elif ref := source.get("fieldRef"):
                value = fields[ref["fieldPath"]]
            else:
                value = view.of(expand(each.get("value", ""), environ))
            environ[each["name"]] = value
        return environ
