"""What KubeRay makes of every values file is what Kubernetes takes, and what the replicas in it rely on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.k8s import crds, strict
from tests.k8s.charts import SCENARIOS, one, render
from tests.k8s.kuberay.pods import AUTOSCALER, WAIT, head, head_address, made, start_command, worker
from tests.k8s.view import PodSpec


def service(scenario: str) -> dict[str, Any]:
    return crds.stored(one(render(scenario), "RayService"))


def pods(scenario: str) -> list[PodSpec]:
    return made(service(scenario))


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") or each.get("valueFrom") for each in container["env"]}


def by_name(pod: PodSpec, name: str) -> dict[str, Any]:
    (found,) = [each for each in pod.containers() if each["name"] == name]
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kubernetes_takes_the_pods(scenario: str) -> None:
    for pod in pods(scenario):
        metadata = {**pod.metadata, "name": "x"}
        assert [] == strict.check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod.spec}, "1.34")
        for container in pod.containers():
            names = [each["name"] for each in container.get("env", [])]
            assert len(set(names)) == len(names), (pod.owner, container["name"])
        paths = [mount["mountPath"] for mount in pod.spec["containers"][0]["volumeMounts"]]
        assert len(set(paths)) == len(paths)
        assert {mount["name"] for mount in pod.spec["containers"][0]["volumeMounts"]} <= {
            volume["name"] for volume in pod.spec["volumes"]
        }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_charts_labels_survive_those_of_the_operator(scenario: str) -> None:
    """Policies, budgets and monitors select by them."""
    cluster = service(scenario)["spec"]["rayClusterConfig"]
    for group, pod in zip((cluster["headGroupSpec"], *cluster["workerGroupSpecs"]), pods(scenario), strict=True):
        assert pod.component == ("ray-head" if pod.labels["ray.io/node-type"] == "head" else "ray-worker")
        assert group["template"]["metadata"]["labels"].items() <= pod.labels.items()


def test_a_replica_learns_in_which_ray_cluster_it_is() -> None:
    spec = pods("gpu-tp")[1].spec["containers"][0]
    label = {"fieldRef": {"fieldPath": "metadata.labels['ray.io/cluster']"}}
    assert label == variables(spec)["RAY_CLUSTER_NAME"]
    assert "penstock-x7k2p" == pods("gpu-tp")[1].labels["ray.io/cluster"]


def test_a_worker_waits_for_its_own_head_with_its_token() -> None:
    given = service("sim")
    waits = by_name(worker(given, given["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]), WAIT)
    assert "penstock-x7k2p-head-svc.penstock.svc.cluster.local" == head_address(given)
    assert head_address(given) in waits["args"][0]
    assert {"RAY_AUTH_TOKEN", "FQ_RAY_IP", "PENSTOCK_REPLICA__HOST"} <= variables(waits).keys()


def test_the_autoscaler_stands_beside_the_head_and_not_inside() -> None:
    pod = head(service("sim"))
    beside = by_name(pod, AUTOSCALER)
    assert "--no-monitor" in pod.spec["containers"][0]["args"][0]
    assert "Never" == pod.spec["restartPolicy"]
    assert {"mountPath": "/tmp/ray", "name": "ray-logs"} in beside["volumeMounts"]  # noqa: S108 - of a pod
    assert "RAY_AUTH_TOKEN" in variables(beside)
    assert "--no-monitor" not in head(service("bare")).spec["containers"][0]["args"][0]
    assert 1 == len(head(service("bare")).spec["containers"])


@pytest.mark.parametrize(
    ("scenario", "path", "port"), [("sim", "/metrics", "replica-metrics"), ("gpu-pp", "/api/healthz", 52365)]
)
def test_probes_of_the_chart_stay(scenario: str, path: str, port: int | str) -> None:
    container = pods(scenario)[1].spec["containers"][0]
    assert {"path": path, "port": port} == container["readinessProbe"]["httpGet"]
    assert {"path": "/api/healthz", "port": 52365} == container["livenessProbe"]["httpGet"]
    assert 120 == container["livenessProbe"]["failureThreshold"]


def test_a_worker_without_a_probe_is_asked_for_its_proxy() -> None:
    """Which Serve runs only where a replica is, so that such a pod is never ready without one."""
    given = service("sim")
    group = given["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    group["template"]["spec"]["containers"][0].pop("readinessProbe")
    probe = worker(given, group).spec["containers"][0]["readinessProbe"]
    assert "http://localhost:8000/-/healthz" in probe["exec"]["command"][2]
    assert 1 == probe["failureThreshold"]


def test_rays_state_is_in_redis_only_for_the_head() -> None:
    first, *others = pods("everything")
    found = variables(first.spec["containers"][0])
    assert ("llm-redis-gcs:6379", "true") == (
        found["RAY_REDIS_ADDRESS"],
        first.metadata["annotations"]["ray.io/ft-enabled"],
    )
    assert "secretKeyRef" in found["REDIS_PASSWORD"]
    for pod in others:
        assert "600" == variables(pod.spec["containers"][0])["RAY_gcs_rpc_server_reconnect_timeout_s"]
        assert "RAY_REDIS_ADDRESS" not in variables(pod.spec["containers"][0])


def test_ray_counts_what_the_group_says_and_not_what_the_pod_has() -> None:
    (text,) = pods("gpu-pp")[1].spec["containers"][0]["args"]
    assert "--num-gpus=8 " in text
    assert "--num-cpus=9 " in text
    assert "--labels=penstock.io/pool=huge " in text


@pytest.mark.parametrize(
    ("resources", "flags"),
    [
        ({"limits": {"cpu": "1500m", "memory": "1Gi"}}, " --memory=1073741824  --num-cpus=2 "),
        ({"requests": {"cpu": "4"}}, " --num-cpus=4 "),
        ({"limits": {"cpu": "1", "nvidia.com/gpu": "2"}}, " --num-cpus=1  --num-gpus=2 "),
        ({"limits": {"cpu": "1", "nvidia.com/mig-3g.40gb": "1"}}, " --num-cpus=1  --num-gpus=1 "),
    ],
)
def test_without_a_group_that_says_it_the_pod_counts(resources: dict[str, Any], flags: str) -> None:
    assert f"ray start {flags}" == start_command("worker", {}, resources)
