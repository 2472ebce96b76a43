"""What the operator refuses and its CRD does not say (controllers/ray/utils/validation.go)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MAX_NAME = 47
TOKEN_SINCE = (2, 52)
PRIORITY_SINCE = (2, 56)
UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
IN_START_PARAMS = frozenset({"num-cpus", "num-gpus", "memory", "resources"})
GATED = ("networkPolicy", "tlsOptions", "historyServerOptions")
"""Alpha: refused unless a feature gate of the operator is on."""


def complaints(service: dict[str, Any]) -> list[str]:
    """Return why the operator would refuse a RayService, or not do what it says."""
    spec = service["spec"]
    return [
        *_names(service),
        *_upgrade(spec),
        *_cluster(spec["rayClusterConfig"]),
        *_ports(spec["rayClusterConfig"]["headGroupSpec"]),
    ]


def _names(service: dict[str, Any]) -> Iterator[str]:
    name = service["metadata"]["name"]
    if len(name) > MAX_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield f"name {name!r} must be a DNS-1035 label of at most {MAX_NAME} characters"
    if service["spec"]["rayClusterConfig"]["headGroupSpec"].get("headService", {}).get("metadata", {}).get("name"):
        yield "headService.metadata.name must not be set"


def _upgrade(spec: dict[str, Any]) -> Iterator[str]:
    strategy = spec.get("upgradeStrategy") or {}
    kind = strategy.get("type", "NewCluster")
    if kind not in UPGRADES:
        yield f"upgradeStrategy.type must be one of {UPGRADES}, got {kind!r}"
    if kind == "NewClusterWithIncrementalUpgrade":
        options = strategy.get("clusterUpgradeOptions")
        if not options:
            yield "an incremental upgrade needs clusterUpgradeOptions"
        elif not 0 <= options["stepSizePercent"] <= options.get("maxSurgePercent", 100) <= 100:
            yield "0 <= stepSizePercent <= maxSurgePercent <= 100 must hold"
        elif options["intervalSeconds"] <= 0:
            yield "intervalSeconds must be positive"
        if not spec["rayClusterConfig"].get("enableInTreeAutoscaling"):
            yield "an incremental upgrade needs Ray's autoscaler"


def _cluster(cluster: dict[str, Any]) -> Iterator[str]:
    version = tuple(int(part) for part in cluster["rayVersion"].split(".")[:2])
    if (cluster.get("authOptions") or {}).get("mode") == "token":
        if version < TOKEN_SINCE:
            yield f"token authentication needs Ray 2.52, got {cluster['rayVersion']}"
        if cluster["authOptions"].get("enableK8sTokenAuth"):
            yield "enableK8sTokenAuth is refused for a RayService"
    yield from (f"{field} is behind a feature gate" for field in GATED if cluster.get(field))
    scaling = bool(cluster.get("enableInTreeAutoscaling"))
    second = (cluster.get("autoscalerOptions") or {}).get("version") == "v2"
    groups = [("headGroupSpec", cluster["headGroupSpec"]), *((g["groupName"], g) for g in cluster["workerGroupSpecs"])]
    for name, group in groups:
        yield from _group(name, group, cluster, scaling=scaling, second=second)
    for group in cluster["workerGroupSpecs"]:
        yield from _counts(group, version, scaling=scaling, second=second)
    names = [group["groupName"] for group in cluster["workerGroupSpecs"]]
    if len(set(names)) != len(names):
        yield f"worker groups must have names of their own, got {names}"


def _group(name: str, group: dict[str, Any], cluster: dict[str, Any], *, scaling: bool, second: bool) -> Iterator[str]:
    pod = group["template"]["spec"]
    env = {each["name"] for container in pod["containers"] for each in container.get("env", [])}
    if scaling and second and pod.get("restartPolicy", "Never") != "Never":
        yield f"{name}: the autoscaler v2 needs restartPolicy Never"
    if cluster.get("gcsFaultToleranceOptions"):
        for wrong in sorted(env & {"REDIS_PASSWORD", "RAY_REDIS_ADDRESS"}):
            yield f"{name}: {wrong} must not be set beside gcsFaultToleranceOptions"
        if any(key.startswith("ray.io/ft") for key in group["template"]["metadata"].get("annotations", {})):
            yield f"{name}: no annotations for fault tolerance beside gcsFaultToleranceOptions"
    if "KUBERAY_GEN_AUTOSCALER_START_CMD" in env:
        yield f"{name}: KUBERAY_GEN_AUTOSCALER_START_CMD must not be set"
    if group.get("resources") and (both := IN_START_PARAMS & group.get("rayStartParams", {}).keys()):
        yield f"{name}: {sorted(both)} are both in rayStartParams and in resources"


def _counts(group: dict[str, Any], version: tuple[int, ...], *, scaling: bool, second: bool) -> Iterator[str]:
    name, least, most = group["groupName"], group.get("minReplicas"), group.get("maxReplicas")
    if not scaling and (least is None or most is None):
        yield f"{name}: minReplicas and maxReplicas must be set without Ray's autoscaler"
    if least is not None and most is not None and least > most:
        yield f"{name}: minReplicas {least} exceeds maxReplicas {most}"
    if group.get("priority") and (version < PRIORITY_SINCE or not second):
        yield f"{name}: priority needs Ray 2.56 and the autoscaler v2"


def _ports(head: dict[str, Any]) -> Iterator[str]:
    ports = [port.get("name", "") for port in head["template"]["spec"]["containers"][0].get("ports", [])]
    if not any(name == "serve" or name.startswith("serve-") for name in ports):
        yield "the head must declare a port named serve"
