"""Weights: who fetches them, who waits for them, and claims that pods can share."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.k8s.charts import Object, of_kind, one
from tests.k8s.view import PodSpec, pods

CACHE = "/models/cache"
DAY_S = 86400.0
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
MANY = frozenset({"ReadWriteMany", "ReadOnlyMany"})


def weights_come_to_where_they_are_read(objects: list[Object]) -> list[str]:
    """Pods that wait for weights have somebody who fetches them, all of them, to the same claim and folder, and may
    write there. Nobody is offline who has not waited.
    """
    jobs = [pod for pod in pods(objects) if pod.component == "weights"]
    found = [
        f"{job.owner}: fetches to a claim that it can't write"
        for job in jobs
        if _mount(job.spec["containers"][0]).get("readOnly") or _claim(job).get("readOnly")
    ]
    for pod in _workers(objects):
        starts = [each for each in pod.spec.get("initContainers", []) if each["name"] == "weights"]
        worker = pod.spec["containers"][0]
        if "HF_HUB_OFFLINE" in _environ(worker) and not starts:
            found.append(f"{pod.owner}: never asks the hub, and nobody fetched anything")
        for start in starts:
            if _environ(start)["HF_HOME"] != _environ(worker)["HF_HOME"]:
                found.append(f"{pod.owner}: waits for another cache than it reads")
            if start["command"][-1] == "fetch":
                if _claim(pod):
                    found.append(f"{pod.owner}: each pod fetches to the same claim")
                if _mount(start).get("readOnly"):
                    found.append(f"{pod.owner}: fetches to a volume that it can't write")
                continue
            wanted = _wanted(objects, pod)
            if not wanted or not any(_fetches(job, pod, start, wanted) for job in jobs):
                found.append(f"{pod.owner}: nobody fetches {', '.join(sorted(wanted))} to its claim")
    return found


def pods_name_no_model(objects: list[Object]) -> list[str]:
    """KubeRay starts a second cluster, with as many GPUs again, for each change of a pod's template. So models are
    named beside it.
    """
    return [
        f"{pod.owner}: {name}: {each} is in the pod's template"
        for pod in _workers(objects)
        for each in _wanted(objects, pod)
        for name, content in _texts(pod.spec)
        if each in content
    ]


def claims_can_be_shared(objects: list[Object]) -> list[str]:
    """A claim of this release exists, has a mode with which all pods of its pool can mount it, and is mounted read-only
    as a whole or not at all.
    """
    made = {each["metadata"]["name"]: each for each in of_kind(objects, "PersistentVolumeClaim")}
    full = one(objects, "RayService")["metadata"]["name"]
    groups = one(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    most = {group["groupName"]: group["maxReplicas"] for group in groups}
    found = []
    for pod in [*_workers(objects), *(pod for pod in pods(objects) if pod.component == "weights")]:
        claim = _claim(pod)
        mounts = [mount for c in pod.containers() for mount in c.get("volumeMounts", []) if mount["name"] == "models"]
        if claim and any(claim.get("readOnly", False) != mount.get("readOnly", False) for mount in mounts):
            found.append(f"{pod.owner}: the claim is read-only, or its mount is, and not both")
        name = claim.get("claimName", "")
        if name.startswith(f"{full}-weights-") and name not in made:
            found.append(f"{pod.owner}: nobody makes the claim {name}")
    for name, claim in made.items():
        modes = set(claim["spec"]["accessModes"])
        pool = claim["metadata"]["labels"]["penstock.io/pool"]
        if not modes & MANY and most[pool] > 1:
            found.append(f"{name}: {modes} for up to {most[pool]} pods")
        if not modes & MANY:
            found += _apart(objects, pool, name)
        if claim["metadata"].get("annotations", {}).get("helm.sh/resource-policy") != "keep":
            found.append(f"{name}: goes with the release, and hours of downloads with it")
    return found


def starts_have_time_for_weights(objects: list[Object]) -> list[str]:
    """KubeRay gives up for good on a cluster that takes too long. Its weights come first."""
    text = one(objects, "RayService")["metadata"]["annotations"]["ray.io/initializing-timeout"]
    given = sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([0-9.]+)(ms|h|m|s)", text))
    return [
        f"{pod.owner}: weights may take a day, and the whole cluster {given:.0f} s"
        for pod in _workers(objects)
        if any(start["name"] == "weights" for start in pod.spec.get("initContainers", [])) and given <= DAY_S
    ]


def jobs_end(objects: list[Object]) -> list[str]:
    """A Job has no second try of what can never work, has its own name for each content, and tries again else. Nothing
    runs on beside its only container.
    """
    found = []
    for job in of_kind(objects, "Job"):
        name, spec = job["metadata"]["name"], job["spec"]
        if spec["template"]["spec"]["restartPolicy"] != "Never":
            found.append(f"{name}: Kubernetes refuses a policy on failures with another restart policy")
        containers = {each["name"] for each in spec["template"]["spec"]["containers"]}
        if len(containers) != 1:
            found.append(f"{name}: ends only when all of {sorted(containers)} end")
        lasting = [rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
        if not any(each["containerName"] in containers and 2 in each["values"] for each in lasting):
            found.append(f"{name}: tries again what can't work")
        if not re.search(r"-[0-9a-f]{10}$", name):
            found.append(f"{name}: can't be changed by an upgrade")
        if spec.get("backoffLimit", 6) < 1:
            found.append(f"{name}: never tries again")
    return found


def _workers(objects: list[Object]) -> list[PodSpec]:
    return [pod for pod in pods(objects) if pod.component == "ray-worker"]


def _fetches(job: PodSpec, pod: PodSpec, start: dict[str, Any], wanted: set[str]) -> bool:
    fetch = job.spec["containers"][0]
    same_place = _claim(job).get("claimName") == _claim(pod).get("claimName")
    same_folder = _environ(fetch).get("HF_HOME") == _environ(start)["HF_HOME"] and _mount(fetch)["mountPath"] == CACHE
    return same_place and same_folder and wanted <= _models(fetch)


def _wanted(objects: list[Object], pod: PodSpec) -> set[str]:
    """Return the models that a pod waits for, or fetches: the lines of its file."""
    volume = next((each["configMap"] for each in pod.spec["volumes"] if each["name"] == "wanted-weights"), None)
    if volume is None:
        return set()
    (item,) = volume["items"]
    (found,) = (each for each in of_kind(objects, "ConfigMap") if each["metadata"]["name"] == volume["name"])
    return set(found["data"].get(item["key"], "").split())


def _texts(spec: dict[str, Any]) -> list[tuple[str, str]]:
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    return [(each["name"], json.dumps(each)) for each in containers]


def _apart(objects: list[Object], pool: str, claim: str) -> list[str]:
    """Return why the Job of a pool may run on another node than its workers."""
    (worker,) = (pod for pod in _workers(objects) if pod.labels["penstock.io/pool"] == pool)
    found = []
    for job in (pod for pod in pods(objects) if pod.component == "weights" and _claim(pod).get("claimName") == claim):
        for field in ("nodeSelector", "affinity", "tolerations"):
            if job.spec.get(field) != worker.spec.get(field):
                found.append(f"{job.owner}: its {field} is not that of {worker.owner}, and one node can mount {claim}")
    return found


def _models(container: dict[str, Any]) -> set[str]:
    return {argument for argument in container["args"] if not argument.startswith("--")}


def _mount(container: dict[str, Any]) -> dict[str, Any]:
    return next((each for each in container["volumeMounts"] if each["name"] == "models"), {})


def _claim(pod: PodSpec) -> dict[str, Any]:
    volume = next((each for each in pod.spec["volumes"] if each["name"] == "models"), {})
    claim: dict[str, Any] = volume.get("persistentVolumeClaim", {})
    return claim


def _environ(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container.get("env", [])}
