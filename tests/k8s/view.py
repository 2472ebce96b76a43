"""Looks at rendered objects as a cluster would: which pods there will be, and what a selector finds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.k8s.charts import Object, one


@dataclass(frozen=True)
class PodSpec:
    """A kind of pod that an object makes."""

    owner: str
    """Kind/name, and for Ray the group."""
    metadata: dict[str, Any]
    spec: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return self.metadata.get("labels", {})

    @property
    def component(self) -> str:
        """What it is for."""
        return self.labels.get("app.kubernetes.io/component", "")

    def containers(self) -> list[dict[str, Any]]:
        """Its containers, those of the start first."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def ports(self) -> dict[str, int]:
        """The named ports."""
        return {p["name"]: p["containerPort"] for c in self.containers() for p in c.get("ports", []) if "name" in p}


def pods(objects: list[Object]) -> list[PodSpec]:
    """Return all kinds of pods."""
    return list(_pods(objects))


def _pods(objects: list[Object]) -> Iterator[PodSpec]:
    for each in objects:
        owner = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = each["spec"]["template"]
            yield PodSpec(owner, template["metadata"], template["spec"])
        elif each["kind"] == "Pod":
            yield PodSpec(owner, each["metadata"], each["spec"])
        elif each["kind"] == "RayService":
            cluster = each["spec"]["rayClusterConfig"]
            groups = [("head", cluster["headGroupSpec"]), *((g["groupName"], g) for g in cluster["workerGroupSpecs"])]
            for name, group in groups:
                yield PodSpec(f"{owner}/{name}", group["template"]["metadata"], group["template"]["spec"])


def selected(objects: list[Object], labels: dict[str, str]) -> list[PodSpec]:
    """Return the kinds of pods that a selector finds."""
    return [pod for pod in pods(objects) if labels.items() <= pod.labels.items()]


def settings_toml(objects: list[Object]) -> dict[str, Any]:
    """Return the routers' settings file."""
    return tomllib.loads(one(objects, "ConfigMap", "-settings")["data"]["settings.toml"])


def serve_config(service: Object) -> dict[str, Any]:
    """Return the Serve config of a RayService."""
    config: dict[str, Any] = yaml.load(service["spec"]["serveConfigV2"], Loader=yaml.CSafeLoader)
    return config
