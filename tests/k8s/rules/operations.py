"""What operators of a cluster do later: upgrades, rollbacks, node drains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.k8s import crds
from tests.k8s.charts import Object, of_kind, one
from tests.k8s.kuberay import writes
from tests.k8s.view import pods, selected, settings_toml

BY = "app.kubernetes.io/managed-by"


def operators_write_back_nothing(objects: list[Object]) -> list[str]:
    """KubeRay reads a RayService, adds a finalizer, and writes all of it: what changes by that is its own from then on,
    and an upgrade that applies on the server conflicts.
    """
    kept = crds.stored(one(objects, "RayService"))
    changed = differences("spec", kept["spec"], crds.stored(writes.written_back(kept))["spec"])
    found = [f"{path}: KubeRay writes {new!r}, not {old!r}" for path, old, new in changed]
    for pod in pods(objects):
        if pod.component not in ("ray-head", "ray-worker"):
            continue
        for container in pod.containers():
            names = [each["name"] for each in container.get("env", [])]
            if len(names) != len(set(names)):
                found.append(f"{pod.owner}/{container['name']}: KubeRay's definition refuses a variable twice")
            found += _nothing(f"{pod.owner}/{container['name']}", container.get("resources", {}))
    return found


def differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Return where two values differ: path, the first one's, the second one's. What one lacks is None."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from differences(f"{path}.{name}", old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (first, second) in enumerate(zip(old, new, strict=True)):
            yield from differences(f"{path}[{number}]", first, second)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield path, old, new


def _nothing(owner: str, resources: dict[str, Any]) -> Iterator[str]:
    for part in ("requests", "limits"):
        for name, value in resources.get(part, {}).items():
            if writes.canonical(value) == "0":
                yield f"{owner}: {name} is nothing, such as a fraction that was cut"


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
        autoscale = settings.get("autoscale", {})
        least = autoscale.get("min_replicas", 1) if autoscale.get("mode") == "active" else settings["replicas"]
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
