"""The restricted pod security standard, pinned images, and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.k8s.charts import Object, of_kind, one
from tests.k8s.kuberay.pods import made
from tests.k8s.view import PodSpec, pods

OURS = "ghcr.io/penstock/"
VOLUMES = frozenset(
    {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret", "csi", "ephemeral", "image"}
)
"""Kinds that the standard allows; `image` since Kubernetes 1.33."""


def pods_are_restricted(objects: list[Object]) -> list[str]:
    """Every pod passes the restricted standard, with a read-only root and bounded resources on top."""
    found = []
    for pod in running_pods(objects):
        context = pod.spec.get("securityContext", {})
        # OpenShift chooses a user where there is none.
        if not context.get("runAsNonRoot") or context.get("runAsUser") == 0:
            found.append(f"{pod.owner}: may run as root")
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(field):
                found.append(f"{pod.owner}: {field}")
        for volume in pod.spec.get("volumes", []):
            if not VOLUMES & volume.keys():
                found.append(f"{pod.owner}: volume {volume['name']} of a kind that is not allowed")
        for container in pod.containers():
            found += [f"{pod.owner}/{container['name']}: {what}" for what in _container(container)]
    return found


def running_pods(objects: list[Object]) -> list[PodSpec]:
    """Return all kinds of pods that there will be: those of Ray as KubeRay makes them."""
    others = [pod for pod in pods(objects) if not pod.owner.startswith("RayService/")]
    return [*others, *made(one(objects, "RayService"))]


def _container(container: dict[str, Any]) -> Iterator[str]:
    context = container.get("securityContext", {})
    wanted = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for key, value in wanted.items():
        if context.get(key) != value:
            yield f"{key} is {context.get(key)}"
    if context.get("privileged"):
        yield "privileged"
    for part in ("requests", "limits"):
        if not {"cpu", "memory"} <= container.get("resources", {}).get(part, {}).keys():
            yield f"no {part}"


def images_are_pinned(objects: list[Object]) -> list[str]:
    """Others' images have a digest; ours have one, or the version of the chart."""
    found = []
    for pod in running_pods(objects):
        for container in pod.containers():
            image = container["image"]
            if re.search(r"@sha256:[0-9a-f]{64}$", image):
                continue
            if not image.startswith(OURS) or not re.search(r":\d+\.\d+\.\d+$", image):
                found.append(f"{pod.owner}: {image} is not pinned")
    return found


def tokens_are_mounted_only_where_used(objects: list[Object]) -> list[str]:
    """Only pods whose service account may do something get its token."""
    bound = {subject["name"] for each in of_kind(objects, "RoleBinding") for subject in each["subjects"]}
    found = []
    for pod in running_pods(objects):
        mounted = pod.spec.get("automountServiceAccountToken", True)
        if mounted and pod.spec.get("serviceAccountName") not in bound:
            found.append(f"{pod.owner}: has a token for nothing")
    for role in of_kind(objects, "Role"):
        for rule in role["rules"]:
            if "*" in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]) or "secrets" in rule["resources"]:
                found.append(f"Role/{role['metadata']['name']}: {rule}")
    return found
