"""Every object is what the API servers of several Kubernetes versions, and the operators, take."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from tests.k8s import crds, gateway_api, strict
from tests.k8s.charts import SCENARIOS, Object, one, render
from tests.k8s.kuberay import validation

VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")


def is_custom(each: Object) -> bool:
    group, dot, _ = each["apiVersion"].split("/")[0].partition(".")
    return bool(dot) and (group == "gateway" or not each["apiVersion"].split("/")[0].endswith(".k8s.io"))


@functools.cache
def distinct() -> dict[str, Object]:
    """All objects of all scenarios, equal ones once."""
    return {
        json.dumps(each, sort_keys=True): each
        for name in SCENARIOS
        for each in render(name)
        # The dashboards' content is none of Kubernetes' business.
        if "-dashboard-" not in each["metadata"]["name"]
    }


def complaints(each: Object, version: str) -> str:
    errors = strict.check(each, version)
    return f"{each['kind']}/{each['metadata']['name']}: {'; '.join(errors)}" if errors else ""


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(version: str) -> None:
    assert [] == [text for each in distinct().values() if not is_custom(each) if (text := complaints(each, version))]


def test_the_strict_check_finds_a_typo_and_a_wrong_type() -> None:
    deployment = one(render(), "Deployment", "-router")
    deployment["spec"]["replica"] = 2
    assert "replica" in complaints(deployment, "1.34")
    del deployment["spec"]["replica"]
    deployment["spec"]["replicas"] = "two"
    assert "two" in complaints(deployment, "1.34")


def test_the_check_by_hand_finds_a_typo_and_a_missing_authority() -> None:
    objects = render("ways-in")
    route, policy = one(objects, "HTTPRoute"), one(objects, "BackendTLSPolicy")
    route["spec"]["rules"][0]["timeout"] = "0s"
    assert "timeout" in " ".join(gateway_api.check(route))
    route["spec"]["rules"][0].pop("timeout")
    route["spec"]["rules"][0]["timeouts"]["request"] = "forever"
    assert "forever" in " ".join(gateway_api.check(route))
    del policy["spec"]["validation"]["caCertificateRefs"]
    assert gateway_api.check(policy)


@pytest.mark.slow
def test_operators_definitions_take_every_custom_resource() -> None:
    found = [each for each in distinct().values() if is_custom(each)]
    by_hand = [each for each in found if gateway_api.is_known(each)]
    assert {"HTTPRoute", "BackendTLSPolicy"} == {each["kind"] for each in by_hand}
    assert [] == [text for each in by_hand for text in gateway_api.check(each)]
    known = [each for each in found if not crds.is_unknown(each)]
    assert {"RayService", "GRPCRoute", "Certificate", "PodMonitor", "PrometheusRule"} <= {
        each["kind"] for each in known
    }
    assert [] == [f"{each['kind']}/{each['metadata']['name']}: {text}" for each in known for text in crds.check(each)]


@pytest.mark.slow
def test_envoys_policy_has_only_fields_that_its_definition_has() -> None:
    """Its definition is not among those in CRD_DIR; fields and values are as read there."""
    duration = r"([0-9]{1,5}(h|m|s|ms)){1,4}"
    policy = one(render("everything"), "BackendTrafficPolicy")
    assert "gateway.envoyproxy.io/v1alpha1" == policy["apiVersion"]
    assert {"targetRefs", "timeout"} == policy["spec"].keys()
    route = one(render("everything"), "GRPCRoute")["metadata"]["name"]
    assert [{"group": "gateway.networking.k8s.io", "kind": "GRPCRoute", "name": route}] == policy["spec"]["targetRefs"]
    times = policy["spec"]["timeout"]["http"]
    assert {"requestTimeout": "0s", "maxStreamDuration": "0s", "streamIdleTimeout": "60s"} == times
    assert all(re.fullmatch(duration, time) for time in times.values())
    plain = one(render("everything", "--set=gateway.streamIdleTimeout="), "BackendTrafficPolicy")["spec"]["timeout"][
        "http"
    ]
    # Older gateways don't know the third one.
    assert {"requestTimeout", "maxStreamDuration"} == plain.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("excludeHeadPodFromServeSvcs", True, "excludeHeadPodFromServeSvcs"),
        ("rayClusterDeletionDelaySeconds", "soon", "soon"),
        ("rayClusterConfig.authOptions.mode", "maybe", "maybe"),
        ("rayClusterConfig.workerGroupSpecs", [{"groupName": "x"}], "required"),
    ],
)
def test_the_definitions_find_planted_mistakes(path: str, value: Any, complaint: str) -> None:
    service = one(render(), "RayService")
    node = service["spec"]
    *parents, last = path.split(".")
    for part in parents:
        node = node[part]
    node[last] = value
    assert complaint in " ".join(crds.check(service))


@pytest.mark.slow
def test_nulls_and_defaults_come_before_the_check() -> None:
    """As in an API server; KubeRay's own samples need it."""
    service = one(render(), "RayService")
    service["spec"]["rayClusterConfig"]["headGroupSpec"]["headService"] = None
    assert [] == crds.check(service)


@pytest.mark.slow
def test_rules_in_cel_are_run() -> None:
    route = one(render("everything"), "GRPCRoute")
    del route["spec"]["rules"][0]["backendRefs"][0]["port"]
    assert "Must have port for Service reference" in " ".join(crds.check(route))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kuberay_takes_the_service(scenario: str) -> None:
    assert [] == validation.complaints(one(render(scenario), "RayService"))


def plant(service: Object, what: str) -> None:
    spec = service["spec"]
    cluster = spec["rayClusterConfig"]
    head, worker = cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]
    match what:
        case "name":
            service["metadata"]["name"] = "x" * 48
        case "minReplicas":
            worker["minReplicas"] = 99
        case "restartPolicy":
            worker["template"]["spec"]["restartPolicy"] = "Always"
        case "REDIS_PASSWORD":
            cluster["gcsFaultToleranceOptions"] = {"redisAddress": "r:6379"}
            worker["template"]["spec"]["containers"][0]["env"].append({"name": "REDIS_PASSWORD", "value": "x"})
        case "token":
            cluster["rayVersion"] = "2.51.0"
        case "num-cpus":
            worker["rayStartParams"] = {"num-cpus": "4"}
        case "headService":
            head["headService"] = {"metadata": {"name": "mine"}}
        case "upgradeStrategy":
            spec["upgradeStrategy"]["type"] = "Rolling"
        case "clusterUpgradeOptions":
            spec["upgradeStrategy"]["type"] = "NewClusterWithIncrementalUpgrade"
        case "serve":
            head["template"]["spec"]["containers"][0]["ports"] = []
        case "feature gate":
            cluster["networkPolicy"] = {"mode": "x"}
        case _:
            worker["priority"] = 5
            cluster["autoscalerOptions"]["version"] = "v1"


@pytest.mark.parametrize(
    "what",
    [
        "name", "minReplicas", "restartPolicy", "REDIS_PASSWORD", "token", "num-cpus", "headService", "upgradeStrategy",
        "clusterUpgradeOptions", "serve", "feature gate", "priority",
    ],
)  # fmt: skip
def test_the_operators_rules_find_planted_mistakes(what: str) -> None:
    service = one(render(), "RayService")
    plant(service, what)
    assert what in " ".join(validation.complaints(service))
