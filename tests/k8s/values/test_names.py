"""Names of releases, and overrides, of every form that Helm takes make names that servers take."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from k8s.render.binaries import run
from k8s.render.generated import CHART
from tests.k8s.charts import Object, of_kind, one, parse
from tests.k8s.kuberay import validation
from tests.k8s.rules import RULES
from tests.k8s.rules.names import names_fit
from tests.k8s.view import pods

pytestmark = pytest.mark.slow


def released(name: str, values: dict[str, Any] | None = None) -> list[Object]:
    """Render with everything that has a name of its own."""
    flags = [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
    # The scenario's own name is in the way.
    file = f"--values={CHART}/ci/everything-values.yaml"
    return parse(
        run("helm", "template", name, str(CHART), "--namespace", "one", file, "--set=fullnameOverride=", *flags)
    )


@pytest.mark.parametrize(
    "name",
    [
        "a", "penstock", "my.release", "a1.b2.c3", "x" * 53, f"{'x' * 30}.{'y' * 22}", f"{'x' * 38}--{'y' * 13}",
        f"{'x' * 39}.{'y' * 13}", "on", "true", "null", "a-1e3",
    ],
)  # fmt: skip
def test_every_name_of_a_release_makes_names_that_servers_take(name: str) -> None:
    weights = {"pools.demo.settings.model": "o/n", "networkPolicy.modelSources": [{"podSelector": {}}]}
    claim = {"volume": "newClaim", "download": {"enabled": True}}
    objects = released(name, {**weights, "pools.demo.weights": claim, "router.http.enabled": True})
    assert [] == names_fit(objects)
    assert [] == validation.complaints(one(objects, "RayService"))
    assert [] == RULES["addresses_are_services"](objects)
    assert {name} == {pod.labels["app.kubernetes.io/instance"] for pod in pods(objects)}


@pytest.mark.parametrize("name", ["123", "on", "1e3", "x" * 40, f"{'x' * 38}-y", "a--b"])
def test_every_override_makes_names_that_servers_take(name: str) -> None:
    objects = released("a", {"nameOverride": name})
    assert [] == names_fit(objects)
    assert {name} == {each["metadata"]["labels"]["app.kubernetes.io/name"] for each in of_kind(objects, "Service")}


@pytest.mark.parametrize("name", ["My_Name", "a-", "-a", "a.b", "x" * 41])
def test_an_override_that_makes_no_name_is_refused(name: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        released("a", {"nameOverride": name})
    assert "/nameOverride" in error.value.stderr


def test_two_releases_in_one_namespace_share_nothing() -> None:
    first, second = released("one"), released("two")
    names = [{(each["kind"], each["metadata"]["name"]) for each in objects} for objects in (first, second)]
    assert set() == names[0] & names[1]
    for objects, others in ((first, second), (second, first)):
        theirs = [pod.labels for pod in pods(others)]
        for each in objects:
            spec = each.get("spec", {})
            found = spec.get("podSelector") or spec.get("selector") or {}
            wanted = found.get("matchLabels", found if each["kind"] == "Service" else {})
            assert not any(wanted and wanted.items() <= labels.items() for labels in theirs), each["metadata"]["name"]


LABELS = {"team": "mine", "app.kubernetes.io/name": "mine", "helm.sh/chart": "mine"}


def test_labels_of_a_value_win_over_those_of_all_and_no_key_is_there_twice() -> None:
    """A key twice is refused by Kustomize and by servers that validate strictly; of others the last one holds."""
    values = {
        "commonLabels": {"team": "all", "app.kubernetes.io/version": "all"},
        "router.service.labels": LABELS,
        "console.service.labels": LABELS,
        "ray.labels": LABELS,
        "gateway.labels": LABELS,
        "gateway.annotations": {"note": "mine"},
        "gateway.http": {"enabled": True, "hostnames": ["other.example"]},
        "router.ingress": {"enabled": True, "hostnames": ["a.example"], "labels": LABELS},
        "router.http": {
            "enabled": True,
            "service": {"labels": LABELS},
            "ingress": {"enabled": True, "hostnames": ["b.example"], "labels": LABELS},
        },
        "console.ingress.labels": LABELS,
        "ray.annotations": {"ray.io/initializing-timeout": "3h"},
        "monitoring.labels": LABELS,
        "monitoring.dashboards.labels": LABELS,
    }
    objects = released("penstock", values)
    kinds = (
        "RayService", "ServiceMonitor", "PodMonitor", "PrometheusRule", "GRPCRoute", "HTTPRoute", "Ingress",
    )  # fmt: skip
    services = ("penstock-router", "penstock-router-http", "penstock-console")
    own = [
        each
        for each in objects
        if each["kind"] in kinds
        or (each["kind"] == "Service" and each["metadata"]["name"] in services)
        or "-dashboard-" in each["metadata"]["name"]
    ]
    assert {3, 2} == {len(of_kind(objects, "Ingress")), len(of_kind(own, "GRPCRoute") + of_kind(own, "HTTPRoute"))}
    for route in (one(objects, "GRPCRoute"), one(objects, "HTTPRoute")):
        assert "mine" == route["metadata"]["annotations"]["note"]
    for each in objects:
        labels = each["metadata"].get("labels", {})
        wanted = {**LABELS, "app.kubernetes.io/version": "all"} if each in own else {"team": "all"}
        if each["kind"] != "Pod":
            assert wanted.items() <= labels.items(), each["metadata"]["name"]
    assert "3h" == one(objects, "RayService")["metadata"]["annotations"]["ray.io/initializing-timeout"]
