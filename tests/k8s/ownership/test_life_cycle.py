"""The life of a release with Helm 4 beside those who write to its objects: nobody fights, and planted mistakes do."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.k8s import crds
from tests.k8s.charts import SCENARIOS, Object, of_kind, one, render
from tests.k8s.kuberay import writes
from tests.k8s.ownership import controllers
from tests.k8s.ownership.controllers import everybody, kuberay
from tests.k8s.ownership.fields import merge
from tests.k8s.ownership.helm import MANAGER, FailedError, Release
from tests.k8s.ownership.schema import schema_of
from tests.k8s.ownership.server import ConflictError, Server

VERSIONS = ("1.32", "1.33", "1.34", "1.35", "1.36")
CHANGED = (
    "--set=settings.queue.lease_s=5",
    "--set=pods.annotations.changed=yes",
    "--set=commonLabels.changed=yes",
    "--set=ray.clusterDeletionDelaySeconds=7200",
)
"""Changes of routers, of every pod, of every object, of the RayService."""
ROUTERS = "penstock-router"
SCALED = "--set=router.hpa.enabled=true"
GENERATED = ("--set=secrets.generate=true", "--set=secrets.generateOffline=true")
LIST = ".spec.rayClusterConfig.workerGroupSpecs"


def installed(objects: list[Object], version: str = "1.36") -> Release:
    """A release that was installed, and to which everybody wrote."""
    release = Release(Server(version))
    release.install(objects)
    everybody(release.server)
    return release


def in_force(release: Release, objects: list[Object]) -> bool:
    """Say whether the server has everything that a manifest says."""
    for each in objects:
        if "helm.sh/hook" in each["metadata"].get("annotations", {}):
            continue
        kept = release.server.get(each["kind"], each["metadata"]["name"])
        merged = merge(kept, each, schema_of(each, release.server.version))
        known = (each["apiVersion"], each["kind"]) in crds.schemas()
        if kept != (crds.stored(merged) if known else merged):
            return False
    return True


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_values_file_upgrades_after_everybody_wrote(scenario: str, version: str) -> None:
    first, second = render(scenario), render(scenario, *CHANGED)
    release = installed(first, version)
    for objects in (second, first, second):
        release.upgrade(objects)
        assert in_force(release, objects)
        everybody(release.server)
        assert in_force(release, objects)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_operator_owns_nothing_of_the_spec(scenario: str) -> None:
    release = installed(render(scenario))
    (service,) = [stored for (kind, _), stored in release.server.kept.items() if kind == "RayService"]
    owned = {str(path[0]) for manager, paths in service.managers.items() if manager.name != MANAGER for path in paths}
    assert {".metadata", ".status"} == owned


def test_a_list_of_groups_without_scale_strategy_conflicts_with_the_operator() -> None:
    """What a real API server said to the chart before it rendered the field."""
    objects = render()
    one(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"][0].pop("scaleStrategy")
    release = installed(objects)
    assert {writes.MANAGER} == release.server.owners("RayService", "penstock", *LIST.strip(".").split("."))
    with pytest.raises(FailedError) as error:
        release.upgrade(objects)
    assert str(error.value) == (
        "conflict occurred while applying object penstock/penstock ray.io/v1, Kind=RayService: "
        f'Apply failed with 1 conflict: conflict with "kuberay-operator" using ray.io/v1: {LIST}'
    )
    release.upgrade(objects, force=True)
    release.upgrade(objects)


def quantity(objects: list[Object]) -> None:
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "8192Mi"


def empty(objects: list[Object]) -> None:
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    cluster["workerGroupSpecs"][0]["template"]["spec"]["tolerations"] = []


def of_head(objects: list[Object]) -> None:
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "4096Mi"


@pytest.mark.parametrize(
    ("plant", "path"),
    [
        (quantity, LIST),
        (empty, LIST),
        (
            of_head,
            '.spec.rayClusterConfig.headGroupSpec.template.spec.containers[name="ray-head"].resources.limits.memory',
        ),
    ],
)
def test_a_field_in_another_form_conflicts(plant: Callable[[list[Object]], None], path: str) -> None:
    objects = render()
    plant(objects)
    release = installed(objects)
    with pytest.raises(FailedError, match="kuberay-operator") as error:
        release.upgrade(objects)
    assert str(error.value).endswith(path)


@pytest.mark.parametrize("scenario", ["sim", "everything"])
def test_every_revision_can_be_rolled_back_to(scenario: str) -> None:
    """Also to the first one, whose secrets were made then; the secrets stay as they are."""
    first, second = render(scenario, *GENERATED), render(scenario, *GENERATED, *CHANGED)
    third = render(scenario, *GENERATED, "--set=monitoring.dashboards.enabled=true")
    release = installed(first)
    made = {key: copy.deepcopy(kept) for key, kept in release.server.kept.items() if key[0] == "Secret"}
    assert made
    for objects in (second, third):
        release.upgrade(objects)
        everybody(release.server)
    for revision, objects in ((1, first), (3, third), (2, second), (1, first)):
        release.rollback(revision)
        everybody(release.server)
        assert in_force(release, objects)
    release.upgrade(second)
    assert in_force(release, second)
    assert made == {key: kept for key, kept in release.server.kept.items() if key[0] == "Secret"}
    release.uninstall()
    assert made.keys() == release.server.kept.keys()


def test_a_secret_of_the_first_manifest_alone_ends_rollbacks_to_it() -> None:
    """What the chart did before its secrets were hooks."""
    first = render("sim", *GENERATED)
    for secret in of_kind(first, "Secret"):
        del secret["metadata"]["annotations"]["helm.sh/hook"]
    second = [each for each in first if each["kind"] != "Secret"]
    release = installed(first)
    release.upgrade(second)
    with pytest.raises(FailedError, match=r'original object Secret with the name "penstock-\S+" not found'):
        release.rollback(1)


def test_an_upgrade_that_fails_goes_back_by_itself() -> None:
    """Here the server refuses another size of the trial Redis' volume."""
    first = render("sim")
    release = installed(first)
    with pytest.raises(FailedError, match="updates to statefulset spec"):
        release.upgrade(render("sim", *CHANGED, "--set=redis.storage=16Gi"), rollback_on_failure=True)
    assert in_force(release, first)
    release.upgrade(render("sim", *CHANGED))


def replicas(release: Release, name: str = ROUTERS) -> int:
    number: int = release.server.get("Deployment", name)["spec"]["replicas"]
    return number


def test_an_autoscaler_of_routers_keeps_its_number_through_upgrades() -> None:
    release = installed(render("sim", SCALED))
    assert 7 == replicas(release)
    for objects in (render("sim", SCALED, *CHANGED), render("sim", SCALED)):
        release.upgrade(objects)
        assert 7 == replicas(release)
        everybody(release.server)


def test_a_number_beside_an_autoscaler_conflicts() -> None:
    objects = render("sim", SCALED)
    one(objects, "Deployment", "-router")["spec"]["replicas"] = 2
    release = installed(objects)
    with pytest.raises(FailedError) as error:
        release.upgrade(objects)
    assert str(error.value).endswith(
        'conflict with "kube-controller-manager" with subresource "scale" using apps/v1: .spec.replicas'
    )


def test_an_autoscaler_that_is_switched_on_takes_over_from_kubectl_and_not_from_helm() -> None:
    """Helm takes its number away, and a Deployment without one has one pod; a number of kubectl's stays."""
    release = installed(render("sim"))
    release.upgrade(render("sim", SCALED))
    assert "replicas" not in release.server.get("Deployment", ROUTERS)["spec"]
    release = installed(render("sim"))
    controllers.scale(release.server, "Deployment", ROUTERS, 3)
    release.upgrade(render("sim", SCALED))
    assert 3 == replicas(release)
    everybody(release.server)
    assert 7 == replicas(release)


def test_a_number_of_kubectl_conflicts_until_the_values_say_the_same() -> None:
    release = installed(render("sim"))
    controllers.scale(release.server, "Deployment", ROUTERS, 3)
    with pytest.raises(FailedError, match=r'"kubectl" with subresource "scale" using apps/v1: \.spec\.replicas'):
        release.upgrade(render("sim"))
    release.upgrade(render("sim", "--set=router.replicas=3"))
    # Both own it, and the next number is Helm's once kubectl's is overruled.
    release.upgrade(render("sim", "--set=router.replicas=4"), force=True)
    release.upgrade(render("sim", "--set=router.replicas=5"))
    assert 5 == replicas(release)


def test_an_autoscaler_that_is_switched_off_hands_its_number_over() -> None:
    release = installed(render("sim", SCALED))
    release.upgrade(render("sim", "--set=router.replicas=7"))
    assert 7 == replicas(release)


def test_a_restart_by_kubectl_stays_and_conflicts_with_nothing() -> None:
    release = installed(render("sim"))
    controllers.restart(release.server, "Deployment", ROUTERS, "2026-11-27T00:00:00Z")
    release.upgrade(render("sim", *CHANGED))
    notes = release.server.get("Deployment", ROUTERS)["spec"]["template"]["metadata"]["annotations"]
    assert "2026-11-27T00:00:00Z" == notes["kubectl.kubernetes.io/restartedAt"]


def test_services_keep_their_addresses() -> None:
    release = installed(render("sim"))
    before = addresses(release)
    release.upgrade(render("sim", *CHANGED))
    assert before == addresses(release)
    assert {"10.96.0.10", "None"} == set(before.values())


def addresses(release: Release) -> dict[str, Any]:
    return {
        name: release.server.get(kind, name)["spec"]["clusterIP"]
        for kind, name in release.server.kept
        if kind == "Service"
    }


COMPLETED = {"RayService": [LIST], "GRPCRoute": [".spec.parentRefs", ".spec.rules"]}
"""Lists that are one field, and whose items get defaults from their definitions."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_second_tool_shares_everything_but_lists_that_the_server_completes(scenario: str) -> None:
    """Such as `kubectl apply --server-side` on a release of Helm. With defaults in its items the list that is kept is
    not the list of the manifest, so the same manifest changes it.
    """
    objects = render(scenario)
    release = installed(objects)
    for each in objects:
        if each["kind"] not in COMPLETED:
            release.server.apply(each, "kubectl")
            continue
        with pytest.raises(ConflictError, match='with "helm"') as error:
            release.server.apply(each, "kubectl")
        assert COMPLETED[each["kind"]] == re.findall(r"\.spec\S+", str(error.value))
        release.server.apply(each, "kubectl", force=True)
        release.server.apply(each, "kubectl")
    everybody(release.server)
    assert in_force(release, objects)


def test_what_a_release_adds_to_the_service_survives_the_operator() -> None:
    """Another manager's annotation is its own: an upgrade neither takes it away nor conflicts."""
    release = installed(render("sim"))
    server = release.server
    service = server.get("RayService", "penstock")
    service["metadata"]["annotations"]["example.org/owner"] = "platform"
    server.update(service, "kubectl-annotate")
    kuberay(server)
    release.upgrade(render("sim", *CHANGED))
    assert "platform" == server.get("RayService", "penstock")["metadata"]["annotations"]["example.org/owner"]
