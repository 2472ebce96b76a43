"""A pool gets another image, or another number of GPUs per replica, without a second Ray cluster and without one more
GPU: a second pool is appended, an alias moves, and the first one is retired. Steps that are left out are found.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.k8s.charts import Object, of_kind, one, render, render_values
from tests.k8s.kuberay.clusters import Change, RayClusters
from tests.k8s.view import serve_config, settings_toml

pytestmark = pytest.mark.slow

Values = dict[str, Any]
OTHERS = "small"
"""A pool that is not changed, and whose name comes after those of the others."""


def pool(replicas: int, gpus: int = 1, **further: Any) -> Values:
    settings = {"model": "/models/cache/m", "replicas": replicas, "tensor_parallel_size": gpus}
    workers = {"min": replicas, "max": 4, "resources": {"limits": {"memory": "8Gi"}}}
    return {"device": "gpu", "settings": settings, "workers": workers, **further}


def changed(values: Values, path: str, value: Any) -> Values:
    found = copy.deepcopy(values)
    *parents, last = path.split(".")
    here = found
    for part in parents:
        here = here[part]
    here[last] = value
    return found


def alias(*pools: str) -> Values:
    return {"large": {"targets": [{"model": name} for name in pools]}}


NEW = pool(1, image={"tag": "0.2.0-vllm33"})
BEFORE: Values = {
    "pools": {"demo": None, "large-a": pool(2), OTHERS: pool(1)},
    "settings": {"aliases": alias("large-a")},
}
APPENDED = changed(BEFORE, "pools.large-b", NEW)
for where, number in (
    ("pools.large-b.workers.order", 1),
    ("pools.large-b.workers.min", 0),
    ("pools.large-a.workers.min", 0),
    ("pools.large-a.settings.replicas", 1),
):
    APPENDED = changed(APPENDED, where, number)
SHARED = changed(APPENDED, "settings.aliases", alias("large-a", "large-b"))
MOVED = changed(APPENDED, "settings.aliases", alias("large-b"))
RETIRED = changed(changed(MOVED, "pools.large-a.retired", True), "pools.large-b.settings.replicas", 2)
STEPS = (APPENDED, SHARED, MOVED, RETIRED)


class Machines:
    """Accelerators that there are, and the worker pods on them."""

    def __init__(self, gpus: int, clusters: RayClusters, objects: list[Object]) -> None:
        self.free = gpus
        self.pods: dict[str, int] = {}
        self.clusters = clusters
        self.settle(objects)

    def settle(self, objects: list[Object], *, replaced: bool = False) -> dict[str, int]:
        """Let Serve, Ray's autoscaler and KubeRay do what a RayService says; return the running replicas by group.

        Replicas beyond Serve's number go, and pods without one, down to the least that the cluster knows, go after
        them. Then pods start that replicas, or KubeRay, ask for, while there are GPUs.
        """
        service = one(objects, "RayService")
        wanted = replicas(service)
        sizes = gpus_of(service)
        for group, size in sizes.items():
            least = self.clusters.active.least(group)
            gone = max(0, self.pods.get(group, 0) - max(wanted.get(group, 0), least))
            self.pods[group] = self.pods.get(group, 0) - gone
            self.free += gone * size
        for group, size in sizes.items():
            asked = max(wanted.get(group, 0), self.clusters.active.asked(group) if replaced else 0)
            new = min(max(0, asked - self.pods[group]), self.free // size)
            self.pods[group] += new
            self.free -= new * size
        return {group: min(self.pods[group], number) for group, number in wanted.items()}


def replicas(service: Object) -> dict[str, int]:
    """Return Serve's numbers, by the worker group that has the replica's resource."""
    found = {}
    for app in serve_config(service)["applications"]:
        (deployment,) = app["deployments"]
        (resource,) = deployment["ray_actor_options"]["resources"]
        found[resource.removeprefix("penstock-")] = deployment["num_replicas"]
    return found


def gpus_of(service: Object) -> dict[str, int]:
    """Return the GPUs of a pod, by group."""
    groups = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    return {group["groupName"]: int(group["resources"]["GPU"]) for group in groups}


def rendered(values: Values) -> list[Object]:
    return render_values("defaults", {"networkPolicy.enabled": False, **values})


def test_another_image_needs_no_second_cluster_and_no_further_gpu() -> None:
    before = rendered(BEFORE)
    clusters = RayClusters(one(before, "RayService"))
    machines = Machines(3, clusters, before)
    assert ({"large-a": 2, OTHERS: 1}, 0) == (machines.pods, machines.free)
    seen = []
    for values in STEPS:
        objects = rendered(values)
        change = clusters.take(one(objects, "RayService"))
        running = machines.settle(objects, replaced=change is Change.IN_PLACE)
        seen.append((change, running.get("large-a", 0), running["large-b"]))
        # Every GPU has work, and the alias leads to a pool that has a replica.
        assert 1 == running[OTHERS]
        assert 2 == running.get("large-a", 0) + running["large-b"]
        settings = settings_toml(objects)
        assert all(running[target["model"]] for target in settings["aliases"]["large"]["targets"])
    assert [
        (Change.IN_PLACE, 1, 1),
        (Change.NOTHING, 1, 1),
        (Change.NOTHING, 1, 1),
        (Change.NOTHING, 0, 2),
    ] == seen
    assert 1 == clusters.made
    assert {"large-a": 0, "large-b": 2, OTHERS: 1} == machines.pods


def test_a_single_replica_gives_way_to_one_that_waits_for_its_gpu() -> None:
    start = changed(BEFORE, "pools.large-a", pool(1))
    last = changed(changed(APPENDED, "settings.aliases", alias("large-b")), "pools.large-a.retired", True)
    before = rendered(start)
    clusters = RayClusters(one(before, "RayService"))
    machines = Machines(2, clusters, before)
    seen = []
    for values in (APPENDED, last):
        objects = rendered(values)
        change = clusters.take(one(objects, "RayService"))
        running = machines.settle(objects, replaced=change is Change.IN_PLACE)
        seen.append((change, running.get("large-a", 0), running["large-b"]))
    assert [(Change.IN_PLACE, 1, 0), (Change.NOTHING, 0, 1)] == seen
    assert 1 == clusters.made


def test_another_number_of_gpus_per_replica_comes_the_same_way() -> None:
    """Of two GPUs each, one replica after the other gives way to two with one GPU."""
    start = changed(BEFORE, "pools.large-a", pool(2, 2))
    steps = [changed(step, "pools.large-a.settings.tensor_parallel_size", 2) for step in STEPS]
    steps = [changed(step, "pools.large-b.settings.replicas", 4 if step == steps[-1] else 2) for step in steps]
    before = rendered(start)
    clusters = RayClusters(one(before, "RayService"))
    machines = Machines(5, clusters, before)
    seen = []
    for values in steps:
        objects = rendered(values)
        change = clusters.take(one(objects, "RayService"))
        running = machines.settle(objects, replaced=change is Change.IN_PLACE)
        seen.append((running.get("large-a", 0), running["large-b"]))
    assert [(1, 2), (1, 2), (1, 2), (0, 4)] == seen
    assert 1 == clusters.made


def test_routers_and_budgets_forget_a_retired_pool_and_its_group_stays_as_it_was() -> None:
    moved, retired = rendered(MOVED), rendered(RETIRED)
    assert {"large-b", OTHERS} == settings_toml(retired)["pools"].keys()
    groups = [one(each, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"] for each in (moved, retired)]
    assert ["large-a", OTHERS, "large-b"] == [group["groupName"] for group in groups[1]]
    assert groups[0][0]["template"] == groups[1][0]["template"]
    assert (0, 0) == (groups[1][0]["replicas"], groups[1][0]["minReplicas"])
    assert [] == [each for each in of_kind(retired, "PodDisruptionBudget") if "large-a" in each["metadata"]["name"]]


@pytest.mark.parametrize(
    ("values", "change"),
    [
        # The names sort before that of another pool.
        (changed(APPENDED, "pools.large-b.workers.order", 0), Change.SECOND),
        (changed(BEFORE, "pools.large-a.image", {"tag": "other"}), Change.SECOND),
        (changed(BEFORE, "pools.large-a.settings.tensor_parallel_size", 2), Change.SECOND),
        (changed(BEFORE, "images", {"replica": {"tag": "other"}}), Change.SECOND),
        (changed(BEFORE, "ray", {"autoscaler": {"idleTimeoutSeconds": 60}}), Change.SECOND),
        ({"pools": {"demo": None, OTHERS: pool(1)}}, Change.SECOND),
        (changed(BEFORE, "pools.large-a.workers.min", 0), Change.NOTHING),
        (changed(BEFORE, "pools.large-a.settings.replicas", 1), Change.NOTHING),
        (changed(BEFORE, "ray", {"upgradeStrategy": "None"}), Change.NOTHING),
        # A mistake is without effect then.
        (
            {**changed(APPENDED, "pools.large-b.workers.order", 0), "ray": {"upgradeStrategy": "None"}},
            Change.IGNORED,
        ),
        ({**APPENDED, "ray": {"upgradeStrategy": "None"}}, Change.IN_PLACE),
    ],
)
def test_what_makes_a_second_cluster_and_what_does_not(values: Values, change: Change) -> None:
    clusters = RayClusters(one(rendered(BEFORE), "RayService"))
    assert change is clusters.take(one(rendered(values), "RayService"))
    assert clusters.made == (2 if change is Change.SECOND else 1)


def test_a_least_number_that_is_lowered_too_late_keeps_the_gpus_for_ever() -> None:
    """KubeRay takes it only together with an appended group."""
    late = changed(APPENDED, "pools.large-a.workers.min", 2)
    before = rendered(BEFORE)
    clusters = RayClusters(one(before, "RayService"))
    machines = Machines(3, clusters, before)
    for values in (late, MOVED, RETIRED):
        objects = rendered(values)
        change = clusters.take(one(objects, "RayService"))
        running = machines.settle(objects, replaced=change is Change.IN_PLACE)
    assert 0 == running["large-b"]
    assert 2 == machines.pods["large-a"]


def test_more_replicas_than_run_come_back_with_an_appended_group() -> None:
    """An autoscaler may have taken some away; the RayService's number is KubeRay's again for a moment."""
    before = rendered(BEFORE)
    clusters = RayClusters(one(before, "RayService"))
    clusters.active.spec["workerGroupSpecs"][0]["replicas"] = 1
    assert 1 == clusters.active.asked("large-a")
    clusters.take(one(rendered(changed(APPENDED, "pools.large-a.settings.replicas", 2)), "RayService"))
    assert 2 == clusters.active.asked("large-a")


@pytest.mark.parametrize("scenario", ["defaults", "gpu-tp", "everything", "weights"])
def test_settings_of_routers_and_replicas_make_no_second_cluster(scenario: str) -> None:
    clusters = RayClusters(one(render(scenario), "RayService"))
    for flag in ("settings.queue.lease_s=5", "commonLabels.a=b", "settings.tenants.acme.weight=2"):
        wanted = Change.SECOND if "commonLabels" in flag else Change.NOTHING
        assert wanted is clusters.take(one(render(scenario, f"--set={flag}"), "RayService")), flag
        clusters = RayClusters(one(render(scenario), "RayService"))
