"""Structured merge: who owns what, what conflicts, what a removed field does, as Kubernetes' manual says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.k8s.charts import Object
from tests.k8s.ownership.fields import compare, merge, owned
from tests.k8s.ownership.paths import text
from tests.k8s.ownership.schema import schema_of
from tests.k8s.ownership.server import ConflictError, Manager, RefusedError, Server

VERSIONS = ("1.32", "1.33", "1.34", "1.35", "1.36")


def deployment(**spec: Any) -> Object:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def pod(**spec: Any) -> Object:
    return deployment(selector={"matchLabels": {"app": "web"}}, template={"spec": spec})


def container(**fields: Any) -> Any:
    return {"name": "web", **fields}


def live(server: Server) -> Any:
    return server.get("Deployment", "web")["spec"]


def of_pod(server: Server) -> Any:
    return live(server)["template"]["spec"]


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Server:
    return Server(request.param)


def conflict(server: Server, config: Object, manager: str) -> str:
    before = copy.deepcopy(server.kept)
    with pytest.raises(ConflictError) as error:
        server.apply(config, manager)
    assert before == server.kept
    return str(error.value)


def test_another_value_conflicts_and_the_same_value_is_shared(server: Server) -> None:
    server.apply(deployment(replicas=2, minReadySeconds=1), "a")
    server.apply(deployment(replicas=2), "b")
    assert {"a", "b"} == server.owners("Deployment", "web", "spec", "replicas")
    assert 'Apply failed with 1 conflict: conflict with "a": .spec.replicas' == conflict(
        server, deployment(replicas=3), "b"
    )


def test_force_takes_a_field_over(server: Server) -> None:
    server.apply(deployment(replicas=2), "a")
    server.apply(deployment(replicas=3), "b", force=True)
    assert {"b"} == server.owners("Deployment", "web", "spec", "replicas")
    assert 'Apply failed with 1 conflict: conflict with "b": .spec.replicas' == conflict(
        server, deployment(replicas=2), "a"
    )


def test_several_conflicts_are_listed_by_manager(server: Server) -> None:
    server.apply(deployment(replicas=2), "a")
    other = live(server) | {"paused": True}
    server.update(deployment(**other), "kubectl-edit")
    assert (
        "Apply failed with 2 conflicts: "
        'conflicts with "a":\n- .spec.replicas\nconflicts with "kubectl-edit" using apps/v1:\n- .spec.paused'
    ) == conflict(server, deployment(replicas=3, paused=False), "b")


def test_an_update_owns_what_it_changes_and_nothing_else(server: Server) -> None:
    server.apply(deployment(replicas=2, minReadySeconds=1), "a")
    server.update(deployment(replicas=5, minReadySeconds=1), "kubectl", "scale")
    assert {"kubectl"} == server.owners("Deployment", "web", "spec", "replicas")
    assert {"a"} == server.owners("Deployment", "web", "spec", "minReadySeconds")
    message = 'Apply failed with 1 conflict: conflict with "kubectl" with subresource "scale" using apps/v1: '
    assert message + ".spec.replicas" == conflict(server, deployment(replicas=2, minReadySeconds=1), "a")


def test_an_update_without_a_change_owns_nothing(server: Server) -> None:
    server.apply(deployment(replicas=2), "a")
    server.update(server.get("Deployment", "web"), "operator")
    assert [Manager("a", "Apply", "apps/v1")] == list(server.kept["Deployment", "web"].managers)


def test_items_of_a_list_with_keys_have_owners_of_their_own(server: Server) -> None:
    server.apply(pod(containers=[container(env=[{"name": "A", "value": "1"}])]), "a")
    server.apply(pod(containers=[container(env=[{"name": "B", "value": "2"}])]), "b")
    assert ["A", "B"] == [each["name"] for each in of_pod(server)["containers"][0]["env"]]
    server.apply(pod(containers=[container(env=[{"name": "C", "value": "3"}])]), "a")
    assert {"B", "C"} == {each["name"] for each in of_pod(server)["containers"][0]["env"]}


def test_the_configurations_order_wins_and_others_items_stay_where_they_were(server: Server) -> None:
    def env(*names: str) -> Object:
        return pod(containers=[container(env=[{"name": name, "value": "x"} for name in names])])

    server.apply(env("A", "B"), "a")
    server.apply(env("A", "X"), "b")
    server.apply(env("N", "A", "B"), "a")
    assert ["N", "A", "B", "X"] == [each["name"] for each in of_pod(server)["containers"][0]["env"]]


def test_a_port_without_a_protocol_is_a_tcp_port(server: Server) -> None:
    server.apply(pod(containers=[container(ports=[{"containerPort": 80, "name": "http"}])]), "a")
    other = {"containerPort": 80, "protocol": "TCP", "name": "web"}
    message = conflict(server, pod(containers=[container(ports=[other])]), "b")
    assert (
        'Apply failed with 1 conflict: conflict with "a": '
        '.spec.template.spec.containers[name="web"].ports[containerPort=80,protocol="TCP"].name'
    ) == message


def test_an_atomic_list_is_one_field(server: Server) -> None:
    server.apply(pod(tolerations=[{"key": "a", "operator": "Exists"}]), "a")
    assert 'Apply failed with 1 conflict: conflict with "a": .spec.template.spec.tolerations' == conflict(
        server, pod(tolerations=[{"key": "b", "operator": "Exists"}]), "b"
    )


def test_an_atomic_map_is_one_field(server: Server) -> None:
    server.apply(deployment(selector={"matchLabels": {"app": "web"}}), "a")
    assert 'Apply failed with 1 conflict: conflict with "a": .spec.selector' == conflict(
        server, deployment(selector={"matchLabels": {"app": "web", "part": "x"}}), "b"
    )


def test_values_of_a_set_have_owners_of_their_own(server: Server) -> None:
    def finalized(*names: str) -> Object:
        return {**deployment(), "metadata": {"name": "web", "finalizers": [*names]}}

    server.apply(finalized("a/1"), "a")
    server.apply(finalized("b/1"), "b")
    server.apply(deployment(), "a")
    assert ["b/1"] == server.get("Deployment", "web")["metadata"]["finalizers"]


def test_a_field_goes_when_its_only_applier_leaves_it_out(server: Server) -> None:
    server.apply(deployment(replicas=2, strategy={"rollingUpdate": {"maxSurge": 1}}), "a")
    server.apply(deployment(replicas=2), "a")
    assert {"replicas": 2} == live(server)


def test_a_field_of_two_appliers_stays_when_one_leaves_it_out(server: Server) -> None:
    server.apply(deployment(replicas=2), "a")
    server.apply(deployment(replicas=2), "b")
    server.apply(deployment(), "a")
    assert 2 == live(server)["replicas"]


def test_a_field_that_an_update_took_over_stays_when_the_applier_leaves_it_out(server: Server) -> None:
    server.apply(deployment(replicas=2), "a")
    server.update(deployment(replicas=5), "kubectl", "scale")
    server.apply(deployment(), "a")
    assert 5 == live(server)["replicas"]


def test_what_a_server_never_changes_is_refused(server: Server) -> None:
    server.apply(deployment(selector={"matchLabels": {"app": "web"}}), "a")
    with pytest.raises(RefusedError, match=r"spec\.selector: field is immutable"):
        server.apply(deployment(selector={"matchLabels": {"app": "other"}}), "a")


NAMES = st.sampled_from(["A", "B", "C", "D"])
ENV = st.dictionaries(NAMES, st.sampled_from(["1", "2"]))


def with_env(values: dict[str, str], labels: dict[str, str]) -> Object:
    config = pod(containers=[container(env=[{"name": name, "value": value} for name, value in values.items()])])
    config["metadata"]["labels"] = labels
    return config


@given(ENV, ENV, ENV, ENV)
def test_who_applies_by_force_gets_what_is_asked_for_and_leaves_others_fields(
    first: dict[str, str], second: dict[str, str], labels: dict[str, str], more: dict[str, str]
) -> None:
    server = Server("1.34")
    server.apply(with_env(first, labels), "a")
    config = with_env(second, more)
    server.apply(config, "b", force=True)
    kept = server.get("Deployment", "web")
    assert not compare(kept, merged_with(kept, config), schema_of(config, "1.34")).modified
    # Nothing of the other one is gone, and again is no change.
    assert first.keys() | second.keys() == {
        each["name"] for each in kept["spec"]["template"]["spec"]["containers"][0].get("env", [])
    }
    before = copy.deepcopy(server.kept)
    server.apply(config, "b")
    assert before == server.kept


def merged_with(kept: Object, config: Object) -> Object:
    merged: Object = merge(kept, config, schema_of(config, "1.34"))
    return merged


@given(ENV, ENV)
def test_a_conflict_is_what_differs_and_belongs_to_another_one(first: dict[str, str], second: dict[str, str]) -> None:
    server = Server("1.34")
    server.apply(with_env(first, {}), "a")
    wanted = {name for name in first.keys() & second.keys() if first[name] != second[name]}
    try:
        server.apply(with_env(second, {}), "b")
        named: set[str] = set()
    except ConflictError as error:
        named = {name for name in first if f'env[name="{name}"].value' in str(error)}
    assert wanted == named


def test_owned_fields_are_those_of_the_manual() -> None:
    """https://kubernetes.io/docs/reference/using-api/server-side-apply has this example."""
    config: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "test-cm", "labels": {"test-label": "test"}},
        "data": {"key": "some value"},
    }
    paths = {text(path) for path in owned(config, schema_of(config, "1.34"))}
    assert {".data.key", ".metadata.labels.test-label"} == paths - {".apiVersion", ".kind", ".metadata.name"}
