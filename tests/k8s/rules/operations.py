"""What operators of a cluster do later: upgrades, rollbacks, node drains."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tests.k8s.charts import Object, of_kind, one
from tests.k8s.view import pods, selected, settings_toml

KEPT_EMPTY = frozenset({"emptyDir", "resources", "securityContext", "scaleStrategy", "rayStartParams", "metadata"})
"""Fields that a program in Go writes even where they are empty: pointers, and structures without omitempty."""
PLAIN_FLAGS = frozenset({"readOnly", "hostNetwork", "hostPID", "hostIPC", "stdin", "tty"})
"""Fields that a program in Go leaves out where they are false."""
BY = "app.kubernetes.io/managed-by"
DECIMAL = ("", "k", "M", "G", "T", "P", "E")
BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def operators_write_back_nothing(objects: list[Object]) -> list[str]:
    """KubeRay reads a RayService, adds a finalizer, and writes all of it: what changes by that is its own from then on,
    and an upgrade that applies on the server conflicts.
    """
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    found = [
        f"{group['groupName']}: KubeRay adds scaleStrategy"
        for group in cluster["workerGroupSpecs"]
        if "scaleStrategy" not in group
    ]
    for pod in pods(objects):
        if pod.component not in ("ray-head", "ray-worker"):
            continue
        for container in pod.containers():
            names = [each["name"] for each in container.get("env", [])]
            if len(names) != len(set(names)):
                found.append(f"{pod.owner}/{container['name']}: KubeRay's definition refuses a variable twice")
            if "resources" not in container:
                found.append(f"{pod.owner}/{container['name']}: KubeRay adds resources")
            found += _amounts(f"{pod.owner}/{container['name']}", container.get("resources", {}))
        for volume in pod.spec.get("volumes", []):
            if size := volume.get("emptyDir", {}).get("sizeLimit"):
                found += _amounts(f"{pod.owner}/{volume['name']}", {"limits": {"sizeLimit": size}})
    found += _amounts("autoscalerOptions", cluster.get("autoscalerOptions", {}).get("resources", {}))
    return [*found, *_left_out("rayClusterConfig", cluster)]


def _amounts(owner: str, resources: dict[str, Any]) -> Iterator[str]:
    for part in ("requests", "limits"):
        for name, value in resources.get(part, {}).items():
            if canonical(value) == "0":
                yield f"{owner}: {name} is nothing, such as a fraction that was cut"
            if value != canonical(value):
                yield f"{owner}: KubeRay writes {name} {value!r} as {canonical(value)!r}"


def canonical(quantity: str | float) -> str:
    """Return a quantity as Kubernetes' own libraries write it."""
    text = str(quantity)
    number = text.rstrip("kKmMGTPEi")
    unit = text.removeprefix(number)
    if unit in BINARY[1:]:
        amount, step, units = Decimal(number) * 1024 ** BINARY.index(unit), 1024, BINARY
    else:
        amount = Decimal(number) * (Decimal("0.001") if unit == "m" else 1000 ** DECIMAL.index(unit))
        step, units = 1000, DECIMAL
    if amount != int(amount):
        return f"{int(amount * 1000)}m"
    whole, at = int(amount), 0
    while whole and whole % step == 0:
        whole, at = whole // step, at + 1
    return f"{whole}{units[at]}"


def _left_out(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            empty = inner is None or inner in ("", [], {}) or (inner is False and key in PLAIN_FLAGS)
            if empty and not (key in KEPT_EMPTY and inner == {}):
                yield f"{path}.{key}: KubeRay leaves {inner!r} out"
            yield from _left_out(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _left_out(f"{path}[{number}]", inner)


def secrets_belong_to_no_revision(objects: list[Object]) -> list[str]:
    """A secret that is made once is a hook: a rollback can neither miss it nor bring an older state of it back."""
    found = []
    made = [each for each in of_kind(objects, "Secret") if each["metadata"].get("labels", {}).get(BY) == "Helm"]
    for secret in made:
        notes = secret["metadata"].get("annotations", {})
        events = set(notes.get("helm.sh/hook", "").split(","))
        if events != {"pre-install", "pre-upgrade"}:
            found.append(f"Secret/{secret['metadata']['name']}: a part of the release")
        if "helm.sh/hook-delete-policy" in notes:
            found.append(f"Secret/{secret['metadata']['name']}: some hook deletes it")
    return found


def node_drains_end(objects: list[Object]) -> list[str]:
    """A budget lets one pod go at a time, and none forbids all for ever."""
    counts = {
        group["groupName"]: min(group["minReplicas"], group["replicas"])
        for group in one(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    }
    # Pods without a replica are never ready.
    for pool, settings in settings_toml(objects)["pools"].items():
        least = settings.get("autoscale", {}).get("min_replicas", settings["replicas"])
        group = pool.lower().replace(".", "-").replace("_", "-")
        have = min(least, settings["replicas"]) * settings.get("pipeline_parallel_size", 1)
        counts[group] = min(counts[group], have)
    found = []
    for budget in of_kind(objects, "PodDisruptionBudget"):
        spec, labels = budget["spec"], budget["spec"]["selector"]["matchLabels"]
        name = f"PodDisruptionBudget/{budget['metadata']['name']}"
        behind = selected(objects, labels)
        if len(behind) != 1:
            found.append(f"{name}: has {len(behind)} kinds of pods")
            continue
        if spec.get("maxUnavailable", 1) in (0, "0%"):
            found.append(f"{name}: lets no pod go")
        if "minAvailable" not in spec:
            continue
        # A number of pods, of those that always stay.
        pod = behind[0]
        there = counts.get(pod.labels.get("penstock.io/pool", ""), 1)
        if spec["minAvailable"] != there - 1:
            found.append(f"{name}: keeps {spec['minAvailable']} of {there} pods")
        if "readinessProbe" not in pod.spec["containers"][0]:
            found.append(f"{name}: some of its pods are never ready, so their number is not what the budget counts")
    return found


def spreads_count_only_nodes_that_pods_may_use(objects: list[Object]) -> list[str]:
    """A tainted node is no domain with zero pods."""
    return [
        f"{pod.owner}: spreads over {each['topologyKey']} with tainted nodes"
        for pod in pods(objects)
        for each in pod.spec.get("topologySpreadConstraints", [])
        if each.get("nodeTaintsPolicy") != "Honor"
    ]
