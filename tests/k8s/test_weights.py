"""How the chart gives pods their weights, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from cluster.sources import SourceKind, source_of
from tests.k8s.charts import Object, of_kind, one, render, render_values
from tests.k8s.rules import RULES

pytestmark = pytest.mark.slow


def weights(**fields: Any) -> dict[str, Any]:
    """Return values of the default pool's weights."""
    return {f"pools.demo.weights.{name}": value for name, value in fields.items()}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            weights(volume="newClaim", accessMode="ReadWriteOnce"),
            "pools.demo.weights.accessMode must be ReadWriteMany for a pool of up to 4 pods (workers.max), got "
            "ReadWriteOnce, which one node can mount at a time: take a storage class with ReadWriteMany, volume "
            "ephemeral (a claim for each pod), or volume image; or set oneNode where all pods run on one node",
        ),
        (
            weights(volume="existingClaim", existingClaim="c", accessMode="ReadWriteOncePod", oneNode=True),
            "up to 4 pods",
        ),
        (
            {**weights(volume="newClaim", accessMode="ReadWriteOnce"), "pools.demo.workers.max": 1},
            "because ray.upgradeStrategy NewCluster runs two clusters at once, got ReadWriteOnce",
        ),
        (weights(volume="newClaim", accessMode="ReadOnlyMany"), "a new claim is empty, and nobody could write to it"),
        (
            weights(volume="newClaim", readOnly=True),
            "readOnly needs pools.demo.weights.download.enabled for a new claim",
        ),
        (
            weights(volume="existingClaim", existingClaim="c", accessMode="ReadOnlyMany"),
            "pools.demo.weights.readOnly must be true for a claim with ReadOnlyMany",
        ),
        (
            weights(volume="existingClaim", existingClaim="c", accessMode="ReadOnlyMany", download={"enabled": True}),
            "for a download, got ReadOnlyMany, which nobody can write",
        ),
        (weights(volume="existingClaim"), "pools.demo.weights.existingClaim must name a claim"),
        (
            weights(existingClaim="c"),
            'existingClaim needs pools.demo.weights.volume existingClaim, got "", which is emptyDir',
        ),
        (
            {**weights(readOnly=True), "ray.modelCache.existingClaim": "c"},
            'volume existingClaim or newClaim, got "", which is existingClaim',
        ),
        (weights(volume="newClaim", existingClaim="c"), "existingClaim needs pools.demo.weights.volume existingClaim"),
        (weights(volume="ephemeral", readOnly=True), "readOnly needs pools.demo.weights.volume existingClaim or"),
        (weights(accessMode="ReadWriteMany"), "accessMode needs pools.demo.weights.volume existingClaim or newClaim"),
        (weights(volume="image", image={"reference": "r"}, oneNode=True), "oneNode needs pools.demo.weights.volume"),
        (weights(storageClass="s"), "storageClass needs pools.demo.weights.volume newClaim or ephemeral"),
        (
            weights(volume="existingClaim", existingClaim="c", size="1Ti"),
            "size needs pools.demo.weights.volume emptyDir or newClaim or ephemeral, got existingClaim",
        ),
        (weights(image={"reference": "r"}), "image.reference needs pools.demo.weights.volume image, got emptyDir"),
        (
            {
                "pools.demo.settings.model": "org/m",
                "networkPolicy.modelSources": [{}],
                **weights(volume="newClaim", download={"enabled": True, "also": ["org/n@../elsewhere"]}),
            },
            "also",
        ),
        (weights(download={"also": ["org/n"]}), "download.also needs pools.demo.weights.download.enabled"),
        (
            {
                "pools.demo.settings.model": "org/m",
                **weights(volume="ephemeral", download={"enabled": True, "also": ["o/n"]}),
            },
            "download.also needs pools.demo.weights.volume newClaim or existingClaim, got ephemeral",
        ),
        (
            {
                "pools.demo.workers.max": 1,
                "ray.upgradeStrategy": "None",
                **weights(volume="newClaim", accessMode="ReadWriteOnce", download={"enabled": True}),
            },
            "the Job and the workers that wait for it have the claim at once",
        ),
        (
            {
                "pools.demo.workers.max": 1,
                **weights(volume="newClaim", accessMode="ReadWriteOncePod", oneNode=True, download={"enabled": True}),
            },
            "for a download, got ReadWriteOncePod",
        ),
        (weights(volume="image"), "pools.demo.weights.image.reference must name an image"),
        (weights(volume="image", image={"reference": "r"}, download={"enabled": True}), "download must be off for"),
        (weights(volume="nfs"), "volume"),
        (
            weights(download={"enabled": True}),
            "download needs a model from a hub, such as org/name, got settings.model demo",
        ),
        (
            weights(objectStore={"endpoint": "https://s:9000"}),
            "networkPolicy.modelSources must name where https://s:9000 comes from",
        ),
        (
            {"pools.demo.settings.vllm.lora_modules": {"poet": "s3://b/poet"}},
            "networkPolicy.modelSources must name where s3://b/poet comes from",
        ),
        (weights(objectStore={"endpoint": "s:9000"}), "endpoint"),
        (
            {"pools.demo.settings.model": "org/m"},
            "networkPolicy.modelSources must name where org/m comes from, because networkPolicy.enabled: [] allows",
        ),
        ({"pools.demo.settings.model": "s3://b/m"}, "networkPolicy.modelSources must name where s3://b/m comes from"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        render_values("defaults", values)
    assert complaint in error.value.stderr


@pytest.mark.parametrize(
    ("model", "sources"),
    [
        ("org/m", ["org/m"]),
        ("org/m@v1", ["org/m@v1"]),
        ("org/m@refs/pr/1", ["org/m@refs/pr/1"]),
        ("org/m@../elsewhere", None),
        ("org/m@/elsewhere", None),
        ("gpt2", ["gpt2"]),
        ("demo", None),
        ("/models/m", None),
        ("~/m", None),
        ("./m", None),
        ("s3://b/m", None),
    ],
)
def test_what_comes_from_a_hub_is_known_as_the_engine_knows_it(model: str, sources: list[str] | None) -> None:
    """The chart's templates can't ask `cluster.sources`."""
    assert (sources is not None) == (model != "demo" and source_of(model).kind is SourceKind.HUB)
    values = {
        "pools.demo.settings.model": model,
        "networkPolicy.modelSources": [{}],
        **weights(download={"enabled": True}),
    }
    if sources is None:
        with pytest.raises(subprocess.CalledProcessError) as error:
            render_values("defaults", values)
        assert "download needs a model from a hub" in error.value.stderr
        return
    wanted = one(render_values("defaults", values), "ConfigMap", "-weights")["data"]
    assert {"demo": sources} == {pool: text.split() for pool, text in wanted.items()}


def test_an_image_volume_is_refused_by_a_cluster_that_does_not_know_it() -> None:
    flags = [
        f"--set-json={key}={json.dumps(value)}"
        for key, value in weights(volume="image", image={"reference": "r"}).items()
    ]
    with pytest.raises(subprocess.CalledProcessError) as error:
        render("defaults", *flags, "--kube-version=1.30.4")
    assert "pools.demo.weights.volume image needs Kubernetes 1.31 or newer, got v1.30.4" in error.value.stderr
    render("defaults", *flags, "--kube-version=1.31.0-eks-1")


def test_a_changed_download_is_another_job() -> None:
    """Jobs can't be changed, so an upgrade would fail."""
    names = set()
    for more in ([], ["--set=pools.shared.weights.size=2Ti"], ["--set=pools.shared.weights.download.parallel=8"]):
        jobs = of_kind(render("weights", *more), "Job")
        names |= {
            each["metadata"]["name"] for each in jobs if each["metadata"]["labels"]["penstock.io/pool"] == "shared"
        }
    assert 3 == len(names)


def test_whoever_fetches_has_the_proxies_and_authorities_of_all_pods() -> None:
    values = {
        "pods.env": [{"name": "HF_ENDPOINT", "value": "https://hub.corp"}, {"name": "HOME", "value": "/elsewhere"}],
        "pods.envFrom": [{"configMapRef": {"name": "proxies"}}],
        "pods.volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "pods.volumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    }
    objects = render_values("weights", values)
    groups = one(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    starts = [start for group in groups for start in group["template"]["spec"].get("initContainers", [])]
    jobs = [job["spec"]["template"]["spec"]["containers"][0] for job in of_kind(objects, "Job")]
    assert (4, 3) == (len(starts), len(jobs))
    for each in (*starts, *jobs):
        environ = {variable["name"]: variable.get("value") for variable in each["env"]}
        assert ("https://hub.corp", "/elsewhere") == (environ["HF_ENDPOINT"], environ["HOME"])
        assert [{"configMapRef": {"name": "proxies"}}] == each["envFrom"]
        assert "/etc/ca" in [mount["mountPath"] for mount in each["volumeMounts"]]


def test_adapters_from_a_hub_can_come_while_a_replica_runs() -> None:
    groups = one(render("weights"), "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    names = {g["groupName"]: {e["name"] for e in g["template"]["spec"]["containers"][0]["env"]} for g in groups}
    # A pod with a volume for itself has nobody who fetches the model of a later roll-out, so it may always ask.
    assert {"shared", "near"} == {pool for pool, names in names.items() if "HF_HUB_OFFLINE" in names}


@pytest.mark.parametrize(
    "change",
    [
        {"download.also": ["org/next@v3", "org/another"]},
        {"download.giveUpAfterSeconds": 60},
        {"download.waitSeconds": 1000},
        {"download.resources": {"limits": {"memory": "9Gi"}}},
        {"settings": {"model": "org/next", "replicas": 2}},
        {"settings": {"model": "org/model", "revision": "v7", "replicas": 2}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_models_is_no_second_ray_cluster(change: dict[str, Any]) -> None:
    """KubeRay would start one for each change of the cluster's spec."""
    paths = {name if name == "settings" else f"weights.{name}": value for name, value in change.items()}
    changed = render_values("weights", {f"pools.shared.{name}": value for name, value in paths.items()})
    before, after = (one(each, "RayService")["spec"]["rayClusterConfig"] for each in (render("weights"), changed))
    assert before == after


@pytest.mark.parametrize("pool", ["each", "given"])
def test_pods_of_every_volume_learn_their_models_beside_their_template(pool: str) -> None:
    changed = render_values("weights", {f"pools.{pool}.settings.model": "org/next"})
    assert "org/next" in one(changed, "ConfigMap", "-weights")["data"][pool]
    before, after = (one(each, "RayService")["spec"]["rayClusterConfig"] for each in (render("weights"), changed))
    assert before == after


def test_workers_do_not_wait_for_the_model_of_a_coming_roll_out() -> None:
    objects = render("weights")
    assert "org/next@v2" in fetched(objects, "shared")
    assert "org/next@v2" not in one(objects, "ConfigMap", "-weights")["data"]["shared"]


def test_the_pattern_of_one_form_reaches_who_fetches() -> None:
    objects = render_values("weights", weights_of("shared", include=["*.json", "*Q4_K_M*.gguf"]))
    assert {"--include=*.json", "--include=*Q4_K_M*.gguf"} <= set(fetched(objects, "shared"))


def test_containers_of_all_pods_do_not_keep_a_job_from_its_end() -> None:
    agent = {"name": "agent", "image": "registry.example.org/agent:1"}
    assert [] == RULES["jobs_end"](render_values("weights", {"pods.containers": [agent]}))


def test_a_size_alone_is_that_of_the_folder() -> None:
    group = one(render_values("defaults", weights(size="500Gi")), "RayService")["spec"]["rayClusterConfig"][
        "workerGroupSpecs"
    ][0]
    volumes = {each["name"]: each for each in group["template"]["spec"]["volumes"]}
    assert {"sizeLimit": "500Gi"} == volumes["models"]["emptyDir"]


def test_adapters_from_an_object_store_have_its_credentials() -> None:
    """They may come while replicas run, so any model may need them."""
    values = {"networkPolicy.modelSources": [{}], **weights(objectStore={"existingSecret": "store"})}
    (group,) = one(render_values("defaults", values), "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    environ = {each["name"] for each in group["template"]["spec"]["containers"][0]["env"]}
    assert "AWS_SECRET_ACCESS_KEY" in environ


def weights_of(pool: str, **download: Any) -> dict[str, Any]:
    return {f"pools.{pool}.weights.download.{name}": value for name, value in download.items()}


def fetched(objects: list[Object], pool: str) -> list[str]:
    """Return the arguments of a pool's Job."""
    (job,) = (each for each in of_kind(objects, "Job") if each["metadata"]["labels"]["penstock.io/pool"] == pool)
    args: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return args
