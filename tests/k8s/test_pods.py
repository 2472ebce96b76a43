"""What an operator adds to pods reaches every component in the same way, and images come from where the values say."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from k8s.render.binaries import run
from k8s.render.generated import CHART
from tests.k8s.charts import Object, of_kind, one, parse, render, render_values
from tests.k8s.kuberay.pods import AUTOSCALER, head
from tests.k8s.kuberay.writes import canonical
from tests.k8s.view import PodSpec, pods

pytestmark = pytest.mark.slow

ALL = {
    "autoscaler.enabled": True,
    "console.enabled": True,
    "gcsRedis.enabled": True,
    "auth.anonymous": True,
    "networkPolicy.enabled": False,
    "pools.demo.settings.autoscale": {"mode": "advisory", "max_replicas": 2},
}
SECTIONS = {
    "router": "router",
    "autoscaler": "autoscaler",
    "console": "console",
    "redis": "redis",
    "redis-gcs": "gcsRedis",
    "ray-head": "ray.head",
    "ray-worker": "pools.demo.workers",
    "test": "test",
}
"""Section of the values by component."""
FIELDS: dict[str, Any] = {
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}],
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["10.0.0.2"]},
    "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["hub"]}],
    "hostNetwork": True,
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
    "serviceAccountName": "own",
    "runtimeClassName": "nvidia",
    "schedulerName": "volcano",
    "priorityClassName": "high",
    "initContainers": [{"name": "first", "image": "i", "resources": {}}],
    "containers": [{"name": "beside", "image": "b", "resources": {}}],
    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}, {"name": "tmp", "emptyDir": {"sizeLimit": "3Gi"}}],
    "securityContext": {"runAsUser": 1234, "supplementalGroups": [5]},
}
OF_MAIN: dict[str, Any] = {
    "env": [{"name": "A", "value": "1"}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
}
OWN = {"capabilities": {"add": ["IPC_LOCK"]}, "readOnlyRootFilesystem": False}


def _missing(pod: PodSpec) -> list[str]:
    """Return the fields that a pod lacks."""
    spec, main = pod.spec, next(each for each in pod.spec["containers"] if each["name"] != "beside")
    wanted = {"labels": {"team": "x"}, "annotations": {"note": "y"}}
    pairs = [(spec, FIELDS), (main, OF_MAIN), (pod.metadata, wanted), (main, {"securityContext": OWN})]
    return [name for where, fields in pairs for name, value in fields.items() if not _within(value, where.get(name))]


def _within(value: Any, there: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(there, dict) and all(_within(inner, there.get(key)) for key, inner in value.items())
    if isinstance(value, list):
        return isinstance(there, list) and all(each in there for each in value)
    return bool(value == there)


def _asked() -> dict[str, Any]:
    labels = {"labels": {"team": "x"}, "annotations": {"note": "y"}, "containerSecurityContext": OWN}
    return {**FIELDS, **OF_MAIN, **labels}


def test_every_component_takes_every_field_from_pods_and_from_its_own() -> None:
    everywhere = pods(render_values("defaults", {**ALL, "pods": _asked()}))
    assert SECTIONS.keys() == {pod.component for pod in everywhere}
    # A container beside the test would keep it from ending.
    assert {"test": ["containers"]} == {pod.component: missing for pod in everywhere if (missing := _missing(pod))}
    one_by_one = pods(render_values("defaults", {**ALL, **{f"{name}.pod": _asked() for name in SECTIONS.values()}}))
    assert {} == {pod.owner: missing for pod in one_by_one if (missing := _missing(pod))}
    # And nobody has them without being asked.
    untouched = pods(render_values("defaults", ALL))
    assert all(len(_missing(pod)) >= len(FIELDS) for pod in untouched)


def test_the_fields_are_those_of_the_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert values["pods"].keys() - {"fixedUser"} == _asked().keys()
    for section in SECTIONS.values():
        with pytest.raises(subprocess.CalledProcessError) as error:
            render_values("defaults", {f"{section}.pod": {"tolerationz": []}})
        assert "tolerationz" in error.value.stderr


def test_a_component_wins_over_pods_and_the_charts_own_labels_over_both() -> None:
    values = {
        "pods": {
            "priorityClassName": "low",
            "env": [{"name": "A", "value": "1"}],
            "nodeSelector": {"a": "1", "b": "1"},
        },
        "router.pod": {"priorityClassName": "high", "env": [{"name": "A", "value": "2"}], "nodeSelector": {"b": "2"}},
    }
    (router,) = [pod for pod in pods(render_values("defaults", values)) if pod.component == "router"]
    assert "high" == router.spec["priorityClassName"]
    assert {"a": "1", "b": "2"} == router.spec["nodeSelector"]
    assert ["2"] == [each["value"] for each in router.spec["containers"][0]["env"] if each["name"] == "A"]
    with pytest.raises(subprocess.CalledProcessError):
        render_values("defaults", {"pods.labels": {"app.kubernetes.io/component": "mine"}})


OLDER: dict[str, Any] = {
    "nodeSelector": {"disk": "own"},
    "affinity": {"podAntiAffinity": {"x": "own"}},
    "priorityClassName": "own",
    "env": [{"name": "A", "value": "own"}],
    "podAnnotations": {"note": "own"},
}


def _of(objects: list[Object], component: str) -> PodSpec:
    (pod,) = [pod for pod in pods(objects) if pod.component == component]
    return pod


@pytest.mark.parametrize(("section", "component"), [("router", "router"), ("pools.demo.workers", "ray-worker")])
def test_older_fields_of_a_component_win_over_pods_and_lose_to_its_own_pod(section: str, component: str) -> None:
    everywhere: dict[str, Any] = {
        "nodeSelector": {"disk": "pods", "zone": "a"},
        "affinity": {"podAntiAffinity": {"x": "pods"}},
        "priorityClassName": "pods",
        "env": [{"name": "A", "value": "pods"}],
        "annotations": {"note": "pods"},
        "labels": {"team": "pods", "site": "pods"},
        "serviceAccountName": "pods",
        "schedulerName": "pods",
        "hostNetwork": True,
    }
    own = {f"{section}.{name}": value for name, value in OLDER.items()}
    undone = {"schedulerName": "", "hostNetwork": False, "serviceAccountName": "", "labels": {"team": "own"}}
    values = {"networkPolicy.enabled": False, "pods": everywhere, **own, f"{section}.pod": undone}
    pod = _of(render_values("defaults", values), component)
    assert {"disk": "own", "zone": "a"} == pod.spec["nodeSelector"]
    assert {"podAntiAffinity": {"x": "own"}} == pod.spec["affinity"]
    assert "own" == pod.spec["priorityClassName"] == pod.metadata["annotations"]["note"] == pod.labels["team"]
    assert "pods" == pod.labels["site"]
    assert ["own"] == [each["value"] for each in pod.spec["containers"][0]["env"] if each["name"] == "A"]
    assert not {"schedulerName", "hostNetwork", "dnsPolicy"} & pod.spec.keys()
    assert f"penstock-{component.removesuffix('-worker')}" == pod.spec["serviceAccountName"]

    last = {"priorityClassName": "last", "env": [{"name": "A", "value": "last"}], "nodeSelector": {"disk": ""}}
    pod = _of(render_values("defaults", {**values, f"{section}.pod": last}), component)
    assert "last" == pod.spec["priorityClassName"]
    assert ["last"] == [each["value"] for each in pod.spec["containers"][0]["env"] if each["name"] == "A"]
    assert "" == pod.spec["nodeSelector"]["disk"]
    assert pod.spec["hostNetwork"]
    assert "ClusterFirstWithHostNet" == pod.spec["dnsPolicy"]


def test_a_variable_that_is_replaced_stays_in_its_place() -> None:
    """Kubernetes puts into $(NAME) only what stands before it, and KubeRay's definition refuses a name twice."""
    password = {"name": "QUEUE_REDIS_PASSWORD", "value": "mine"}
    for section, component in (("router", "router"), ("pools.demo.workers", "ray-worker")):
        objects = render_values("defaults", {f"{section}.env": [password, password], f"{section}.pod.env": [password]})
        names = [each["name"] for each in _of(objects, component).spec["containers"][0]["env"]]
        assert len(set(names)) == len(names)
        assert names.index("QUEUE_REDIS_PASSWORD") < names.index("PENSTOCK_REDIS__URL")


def test_rays_autoscaler_may_do_its_work_under_another_account() -> None:
    def subject(values: dict[str, Any]) -> str:
        return str(one(render_values("defaults", values), "RoleBinding")["subjects"][0]["name"])

    assert "penstock-ray" == subject({})
    assert "all" == subject({"pods.serviceAccountName": "all"})
    assert "head" == subject({"pods.serviceAccountName": "all", "ray.head.pod.serviceAccountName": "head"})
    assert "penstock-ray" == subject({"pods.serviceAccountName": "all", "ray.head.pod.serviceAccountName": ""})


def test_security_contexts_may_be_left_to_the_cluster() -> None:
    """OpenShift refuses a user that is not of the namespace's range."""
    for pod in pods(render_values("defaults", {**ALL, "pods.fixedUser": False})):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod.spec["securityContext"].keys()
        assert pod.spec["securityContext"]["runAsNonRoot"]
    for name in ("securityContext", "containerSecurityContext"):
        for pod in pods(render_values("defaults", {**ALL, f"pods.{name}": None})):
            where = pod.spec if name == "securityContext" else pod.spec["containers"][0]
            assert "securityContext" not in where, pod.owner
    objects = render_values("defaults", {**ALL, "redis.pod.securityContext": None})
    assert ["redis"] == [pod.component for pod in pods(objects) if "securityContext" not in pod.spec]


def _beside_head(values: dict[str, Any]) -> dict[str, Any]:
    """Return the container of Ray's autoscaler as KubeRay makes it."""
    service = one(render_values("defaults", values), "RayService")
    (found,) = [each for each in head(service).spec["containers"] if each["name"] == AUTOSCALER]
    return found


def test_rays_autoscaler_takes_fields_like_the_containers_that_the_chart_makes() -> None:
    """KubeRay puts it into the head's pod; the chart can say only what the operator takes."""
    own = {**OF_MAIN, "containerSecurityContext": OWN}
    found = _beside_head({f"ray.autoscaler.{name}": value for name, value in own.items()})
    for name, value in {**OF_MAIN, "securityContext": OWN}.items():
        assert _within(value, found[name]), name
    assert ["ALL"] == found["securityContext"]["capabilities"]["drop"]
    untouched = _beside_head({})
    assert ["ALL"] == untouched["securityContext"]["capabilities"]["drop"]
    assert "envFrom" not in untouched


@pytest.mark.parametrize("section", ["pods", "ray.head.pod", "ray.autoscaler"])
def test_rays_autoscaler_has_the_security_context_of_the_pod_that_it_is_in(section: str) -> None:
    assert not _beside_head({f"{section}.containerSecurityContext": OWN})["securityContext"]["readOnlyRootFilesystem"]
    assert "securityContext" not in _beside_head({f"{section}.containerSecurityContext": None})
    late = {"pods.containerSecurityContext": None, "ray.autoscaler.containerSecurityContext": {"privileged": False}}
    assert {"privileged": False} == _beside_head(late)["securityContext"]


def test_a_class_of_volumes_may_be_none() -> None:
    """The word of `pools.demo.weights.storageClass`, for the trial Redis servers too."""
    for section, end in (("redis", "-redis"), ("gcsRedis", "-redis-gcs")):
        objects = render_values("defaults", {**ALL, f"{section}.storageClass": "-"})
        assert "" == one(objects, "StatefulSet", end)["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"]


def test_issuers_may_listen_on_other_ports() -> None:
    values = {"networkPolicy.issuers": [{"podSelector": {}}], "networkPolicy.issuerPorts": [8443, 8080]}
    rules = one(render_values("defaults", values), "NetworkPolicy", "-router")["spec"]["egress"]
    assert {"to": [{"podSelector": {}}], "ports": [{"port": 8443}, {"port": 8080}]} in rules


def test_extra_objects_are_templates() -> None:
    maps = {each["metadata"]["name"]: each.get("data") for each in of_kind(render("bent"), "ConfigMap")}
    assert {"release": "penstock"} == maps["penstock-extra"]
    assert "penstock-text" in maps


def _image(values: dict[str, Any], end: str = "-router") -> str:
    objects = render_values("defaults", values)
    return str(one(objects, "Deployment", end)["spec"]["template"]["spec"]["containers"][0]["image"])


def test_a_digest_is_of_one_repository_and_tag() -> None:
    ours, digest = "ghcr.io/penstock/penstock-router", f"sha256:{'5' * 64}"
    released = {"images.digests": {f"{ours}:0.2.0": digest}}
    assert f"{ours}@{digest}" == _image(released)
    # What the release did not build has none of its digests.
    assert f"{ours}:mine" == _image({**released, "images.router.tag": "mine"})
    assert "corp/r:0.2.0" == _image({**released, "images.router.repository": "corp/r"})
    mirror = {**released, "global": {"imageRegistry": "registry.example.org:5000/x/"}}
    assert "registry.example.org:5000/x/penstock/penstock-router:0.2.0" == _image(mirror)
    own = f"sha256:{'6' * 64}"
    assert f"{ours}@{own}" == _image({**released, "images.router.digest": own})


def _of_worker(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return image and policy of the containers of a worker."""
    pod = _of(render_values("defaults", values), "ray-worker")
    return [
        (each["image"], each["imagePullPolicy"])
        for each in (*pod.spec.get("initContainers", []), *pod.spec["containers"])
    ]


def test_a_pool_may_have_an_image_of_its_own() -> None:
    ours, digests = "ghcr.io/penstock/penstock-replica-cpu", [f"sha256:{number * 64}" for number in "78"]
    own = {"networkPolicy.enabled": False, "images.replica.digest": digests[0]}
    own["pools.demo.settings.model"], own["pools.demo.weights.download"] = "org/name", {"enabled": True}
    assert {(f"{ours}@{digests[0]}", "IfNotPresent")} == set(_of_worker(own))
    # The digest of images.replica is that of another image.
    for image, wanted in (
        ({"tag": "x"}, f"{ours}:x"),
        ({"repository": "corp/r"}, "corp/r:0.2.0"),
        ({"repository": "corp/r", "tag": "x", "digest": digests[1]}, f"corp/r@{digests[1]}"),
        ({"digest": digests[1]}, f"{ours}@{digests[1]}"),
    ):
        assert [(wanted, "Always")] * 2 == _of_worker({**own, "pools.demo.image": {**image, "pullPolicy": "Always"}})
    of_head = _of(render_values("defaults", {**own, "pools.demo.image": {"tag": "x"}}), "ray-head")
    assert f"{ours}@{digests[0]}" == of_head.spec["containers"][0]["image"]
    known = {**own, "images.digests": {f"{ours}:x": digests[1]}, "pools.demo.image": {"tag": "x"}}
    assert {f"{ours}@{digests[1]}"} == {image for image, _ in _of_worker(known)}
    mirrored = {**own, "global": {"imageRegistry": "mirror.example"}, "pools.demo.image": {"tag": "x"}}
    assert {"mirror.example/penstock/penstock-replica-cpu:x"} == {image for image, _ in _of_worker(mirrored)}


def test_pull_secrets_are_names_or_objects() -> None:
    for pod in pods(render("bent")):
        assert [{"name": "shared"}, {"name": "regcred"}, {"name": "other"}] == pod.spec["imagePullSecrets"]
    with pytest.raises(subprocess.CalledProcessError):
        render_values("defaults", {"imagePullSecrets": [{"nam": "x"}]})


@pytest.mark.parametrize("name", ["123", "9lives"])
def test_a_name_that_kuberay_would_refuse_is_refused_here(name: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        run("helm", "template", name, str(CHART))
    assert f"must begin with a letter, got {name}-penstock" in error.value.stderr
    objects = parse(run("helm", "template", name, str(CHART), "--set=fullnameOverride=llm"))
    assert {name} == {pod.labels["app.kubernetes.io/instance"] for pod in pods(objects)}


@pytest.mark.parametrize("word", ["0", "::", "- x", "on", "a: b"])
def test_a_text_stays_a_text_whatever_it_looks_like(word: str) -> None:
    """Names of classes, secrets and addresses that YAML would take for something else."""
    values = {
        "redis.storageClass": word,
        "networkPolicy.apiServer.cidrs": [word],
        "networkPolicy.monitoringNamespace": word,
        "networkPolicy.operatorNamespace": word,
        "console": {"enabled": True, "hostnames": [word], "ingress": {"enabled": True, "className": word}},
        "networkPolicy.consoleClients": [{"podSelector": {}}],
        "router.priorityClassName": word,
        "pools.demo.workers.priorityClassName": word,
        "secrets.huggingFace": {"existingSecret": word, "key": word},
        "secrets.cluster": {"existingSecret": word, "key": word},
        "secrets.rayToken.existingSecret": word,
        "auth": {"existingSecret": word, "key": word},
        "redis.existingSecret": word,
        "redis.key": word,
        "ray.modelCache.existingClaim": word,
        "test.existingSecret": word,
        "gateway": {"enabled": True, "parentRefs": [{"name": "g"}], "hostnames": [word]},
    }
    objects = render_values("defaults", values)
    assert 17 < json.dumps(objects).count(json.dumps(word)[1:-1])
    (worker,) = [pod for pod in pods(objects) if pod.component == "ray-worker"]
    claims = [each["persistentVolumeClaim"] for each in worker.spec["volumes"] if each["name"] == "models"]
    assert [{"claimName": word}] == claims
    assert word == worker.spec["priorityClassName"]
    claim = one(objects, "StatefulSet", "-redis")["spec"]["volumeClaimTemplates"][0]["spec"]
    assert word == claim["storageClassName"]
    assert (
        word
        == one(objects, "Ingress")["spec"]["rules"][0]["host"]
        == one(objects, "Ingress")["spec"]["ingressClassName"]
    )
    assert [{"ipBlock": {"cidr": word}}] in [
        rule.get("to") for rule in one(objects, "NetworkPolicy", "-ray-head")["spec"]["egress"]
    ]


def _budgets(values: dict[str, Any]) -> set[str]:
    two = {"pools.demo.workers.min": 2, "pools.demo.settings.replicas": 2}
    objects: list[Object] = render_values("defaults", {**ALL, **two, **values})
    return {each["metadata"]["name"].removeprefix("penstock-") for each in of_kind(objects, "PodDisruptionBudget")}


def test_every_budget_has_a_switch() -> None:
    usual = {"router", "autoscaler", "console", "ray-worker-demo"}
    assert usual == _budgets({})
    switches = {"router": "router", "autoscaler": "autoscaler", "console": "console", "ray-worker-demo": "ray"}
    for name, section in switches.items():
        assert usual - {name} == _budgets({f"{section}.pdb.enabled": False})
    alone = {"redis": "redis", "redis-gcs": "gcsRedis", "ray-head": "ray.head"}
    for name, section in alone.items():
        assert usual | {name} == _budgets({f"{section}.pdb.enabled": True})


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (0.5, "500m"), (2.25, "2250m"), (2.0, "2"),
        ("0.5", "500m"), ("1.0", "1"), (4, "4"), ("1000m", "1"), ("1500m", "1500m"), ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"), ("0.5Gi", "512Mi"), ("1000Ki", "1000Ki"), ("2000", "2k"), ("1G", "1G"), (0, "0"),
        (4294967296, "4294967296"), ("768Gi", "768Gi"), ("1.5G", "1500M"), ("512Ki", "512Ki"), ("2048Gi", "2Ti"),
    ],
)  # fmt: skip
def test_quantities_are_written_as_kubernetes_writes_them(written: str | float, wanted: str) -> None:
    assert wanted == canonical(written)
    objects = render_values("defaults", {"ray.head.resources": {"limits": {"memory": written}}})
    (head,) = [pod for pod in pods(objects) if pod.component == "ray-head"]
    assert wanted == head.spec["containers"][0]["resources"]["limits"]["memory"]


def test_accelerators_go_by_the_name_of_their_resource() -> None:
    def worker(values: dict[str, Any]) -> PodSpec:
        workers = [
            pod for pod in pods(render_values("gpu-tp", values)) if pod.labels.get("penstock.io/pool") == "small"
        ]
        return workers[0]

    for name in ("nvidia.com/mig-3g.40gb", "amd.com/gpu"):
        pod = worker({"pools.small.workers.accelerator": name})
        resources = pod.spec["containers"][0]["resources"]
        assert "1" == resources["requests"][name] == resources["limits"][name]
        assert "nvidia.com/gpu" not in resources["limits"]
        assert [name] == [each["key"] for each in pod.spec["tolerations"]]
    claimed = worker({"pools.small.workers.accelerator": "", "pools.small.workers.resources.claims": [{"name": "gpu"}]})
    resources = claimed.spec["containers"][0]["resources"]
    assert {"cpu", "memory"} == resources["limits"].keys()
    assert [{"name": "gpu"}] == resources["claims"]
    assert "tolerations" not in claimed.spec


def test_labels_for_a_batch_scheduler_are_the_ray_clusters_and_no_pods() -> None:
    """KubeRay copies them to the cluster and gives its pods what the scheduler needs. In a pod's template a change of
    one would make a second cluster.
    """
    wanted = {"ray.io/gang-scheduling-enabled": "true", "kai.scheduler/queue": "serving"}
    objects = render_values("gpu-pp", {})
    assert wanted.items() <= one(objects, "RayService")["metadata"]["labels"].items()
    for pod in pods(objects):
        assert set() == wanted.keys() & pod.labels.keys()
