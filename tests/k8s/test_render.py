"""The chart renders with every set of values, and refuses those that make no sense."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from k8s.render.binaries import run
from k8s.render.generated import CHART, RELEASE, stale
from k8s.render.values_schema import FREE_MAPS, comments_of, pattern_of
from tests.k8s.charts import SCENARIOS, Object, of_kind, one, render, render_values
from tests.k8s.crds import CRD_DIR
from tests.k8s.rules import runtime
from tests.k8s.view import pods, serve_config, settings_toml

pytestmark = pytest.mark.slow

GATEWAY = {"gateway.enabled": True, "gateway.parentRefs": [{"name": "g"}]}
ALIAS = {"settings.aliases": {"fast": {"targets": [{"model": "demo"}]}}}
POOL = {"settings": {}, "device": "cpu", "workers": {"min": 1, "max": 1, "resources": {"requests": {}, "limits": {}}}}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_chart_renders(scenario: str) -> None:
    objects = render(scenario)
    names = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in objects]
    assert sorted(set(names)) == sorted(names)
    assert {"Deployment", "RayService", "ConfigMap"} <= {each["kind"] for each in objects}


def test_helm_lints_the_chart() -> None:
    assert "0 chart(s) failed" in run("helm", "lint", str(CHART), "--strict")


@pytest.mark.parametrize(("scenario", "word"), [("defaults", "These secrets must exist"), ("everything", "decisions")])
def test_the_notes_tell_what_to_do_next(scenario: str, word: str) -> None:
    text = run("helm", "install", RELEASE, str(CHART), "--dry-run=client", *SCENARIOS[scenario]).split("\nNOTES:\n")[1]
    assert word in text
    assert ("helm -n default test" in text) == bool(of_kind(render(scenario), "Pod"))


@pytest.mark.parametrize(
    ("values", "asked", "first_key"),
    [
        ({}, {"penstock-cluster", "penstock-ray-token", "penstock-redis", "penstock-keys"}, False),
        # Who lets everybody in needs the others none the less.
        ({"auth.anonymous": True}, {"penstock-cluster", "penstock-ray-token", "penstock-redis"}, False),
        ({"secrets.generate": True}, set(), True),
        ({"secrets.generate": True, "auth.anonymous": True}, set(), False),
        ({"secrets.generate": True, "auth.existingSecret": "mine"}, {"mine"}, False),
        # Certificates that no cert-manager makes.
        (
            {
                "secrets.generate": True,
                "router.tls.enabled": True,
                "replica.tls.enabled": True,
                "console.enabled": True,
                "console.tls.enabled": True,
            },
            {"penstock-router-tls", "penstock-link-tls", "penstock-console-tls"},
            True,
        ),
    ],
)
def test_the_notes_name_the_secrets_that_are_asked_for_and_made(
    values: dict[str, Any], asked: set[str], first_key: bool
) -> None:
    flags = [f"--set={key}={str(value).lower()}" for key, value in {**values, "secrets.generateOffline": True}.items()]
    notes = run("helm", "install", RELEASE, str(CHART), "--dry-run=client", *flags).split("\nNOTES:\n")[1]
    (line,) = re.findall("These secrets must exist: (.*)", notes) or [""]
    assert asked == set(re.findall(r"(\S+) \(", line))
    assert first_key == ("penstock-first-key" in notes)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["KubeRay in the namespace kuberay-operator", "model sources: none"]),
        (
            {"networkPolicy.operatorNamespace": "ray", "networkPolicy.modelSources": [{}]},
            ["in the namespace ray.", "networkPolicy.modelSources, ports 443"],
        ),
        (
            {**GATEWAY, "router.tls.enabled": True, "gateway.backendTls.enabled": False},
            ["Without a BackendTLSPolicy"],
        ),
    ],
)
def test_the_notes_say_what_is_let_in_and_what_is_missing(values: dict[str, Any], words: list[str]) -> None:
    flags = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    notes = run("helm", "install", RELEASE, str(CHART), "--dry-run=client", *flags).split("\nNOTES:\n")[1]
    assert not [word for word in words if word not in notes]
    assert ("BackendTLSPolicy" in notes) == ("gateway.enabled" in values)


def test_names_end_with_the_domain_of_the_cluster() -> None:
    text = json.dumps(render("everything", "--set=clusterDomain=corp.example"))
    assert ".svc.corp.example" in text
    assert ".svc.cluster.local" not in text.replace("kubernetes.default.svc.cluster.local", "")


def test_generated_files_are_current() -> None:
    """The Kustomize base is what `helm template` says, the schema what values.yaml says, the dashboards what their
    description says; `make k8s-render` writes them.
    """
    assert [] == stale()


def test_what_is_switched_off_is_not_there() -> None:
    kinds = {each["kind"] for each in render("bare")}
    assert not kinds & {"NetworkPolicy", "Role", "HorizontalPodAutoscaler", "GRPCRoute", "Certificate", "PodMonitor"}
    assert "PodDisruptionBudget" not in kinds


def test_everything_can_be_switched_on() -> None:
    kinds = {each["kind"] for each in render("everything")}
    assert kinds >= {
        "BackendTrafficPolicy", "Certificate", "GRPCRoute", "HorizontalPodAutoscaler", "Ingress", "Issuer",
        "NetworkPolicy", "Pod",
        "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "RayService", "Role", "RoleBinding", "Secret",
        "ServiceAccount", "ServiceMonitor", "StatefulSet",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"rooter": {}}, "rooter"),
        ({"router.drainSeconds": "long"}, "drainSeconds"),
        ({"fullnameOverride": "x" * 41}, "fullnameOverride"),
        (
            {"replica.drainSeconds": 1180},
            "ray.clusterDeletionDelaySeconds must be above replica.drainSeconds + 20 = 1200, got 1200",
        ),
        (
            {"router.drainSeconds": 1200},
            "ray.clusterDeletionDelaySeconds must be above router.drainSeconds = 1200, got 1200",
        ),
        ({"replica.port": 9401}, "replica.port must be a port of its own in worker pods, got 9401"),
        ({"replica.metricsPort": 9400}, "replica.port must be a port of its own in worker pods, got 9400"),
        ({"replica.port": 10002}, "replica.port must not be 10002 to 19999, which Ray's workers take, got 10002"),
        ({"replica.metricsPort": 19999}, "replica.metricsPort must not be 10002 to 19999"),
        ({"replica.metricsPort": 8080}, "replica.metricsPort must be a port of its own in worker pods, got 8080"),
        ({"replica.port": 8000}, "got 8000, which is that of Serve's proxy"),
        ({"replica.port": 52365}, "got 52365, which is that of Ray's agent"),
        (
            {"auth.jwt.company": {"issuer": "https://login.example.org", "audiences": ["a"], "tenant": "acme"}},
            "auth.jwt.company needs networkPolicy.issuers, which lets routers fetch its keys",
        ),
        # Each render would replace them.
        ({"secrets.generate": True}, "secrets.generate needs a server to ask which secrets exist"),
        ({"ray.head.pod.hostNetwork": True}, "hostNetwork of ray-head needs networkPolicy.enabled false"),
        # Nobody would be asked for one, and nothing would say so.
        ({"router.tls.clientCertificates": True}, "router.tls.clientCertificates needs router.tls.enabled"),
        ({"console.enabled": True, "console.ingress.enabled": True}, "console.ingress.enabled needs console.hostnames"),
        (
            {"console.enabled": True, "console.ingress.enabled": True, "console.hostnames": ["c.example.org"]},
            "console.ingress.enabled needs networkPolicy.consoleClients",
        ),
        (
            {"console.enabled": True, "router.tls.enabled": True, "router.tls.clientCertificates": True},
            "console.routerTls.clientCertificateSecret must be set",
        ),
        # An empty list is every address in a policy.
        ({"auth.serviceAccounts.settings": {"issuer": "https://x"}}, "/auth/serviceAccounts/settings/issuer"),
        ({"networkPolicy.apiServer.cidrs": []}, "/networkPolicy/apiServer/cidrs"),
        (
            {"router.hpa.enabled": True, "router.hpa.min": 9, "router.hpa.max": 2},
            "router.hpa.min must be at most router.hpa.max = 2, got 9",
        ),
        (
            {"redis.maxMemory": "2Gi"},
            "redis.maxMemory must be below redis.resources.limits.memory = 2Gi, got 2Gi",
        ),
        (
            {"gcsRedis.enabled": True, "gcsRedis.maxMemory": "8Gi"},
            "gcsRedis.maxMemory must be below gcsRedis.resources.limits.memory = 1Gi, got 8Gi",
        ),
        ({"commonLabels": {"app.kubernetes.io/part-of": "platform"}}, "/commonLabels"),
        ({"commonLabels": {"app.kubernetes.io/component": "llm"}}, "/commonLabels"),
        ({"commonLabels": {"app.kubernetes.io/instance": "llm"}}, "/commonLabels"),
        ({"commonLabels": {"penstock.io/pool": "large"}}, "/commonLabels"),
        ({"images.router.digest": "latest"}, "digest"),
        ({"images.requireDigest": True}, "digest must be set"),
        ({"ray.upgradeStrategy": "Rolling"}, "upgradeStrategy"),
        ({"redis.enabled": False}, "exactly one of redis.enabled and externalRedis.enabled"),
        ({"externalRedis.enabled": True}, "exactly one of redis.enabled and externalRedis.enabled"),
        ({"ray.gcsFaultTolerance.enabled": True}, "needs gcsRedis.enabled"),
        ({"pools.demo.workers.max": 1, "pools.demo.settings.replicas": 2}, "workers.max must be at least"),
        # The chart counts with them, so they would be rounded, or 1.
        ({"pools.demo.settings.replicas": 0}, "/pools/demo/settings/replicas"),
        ({"pools.demo.settings.replicas": 1.5}, "/pools/demo/settings/replicas"),
        ({"pools.demo.settings.tensor_parallel_size": 0}, "/pools/demo/settings/tensor_parallel_size"),
        ({"pools.demo.settings.pipeline_parallel_size": 0}, "/pools/demo/settings/pipeline_parallel_size"),
        ({"pools.demo.workers.min": 5}, "pools.demo: workers.min must be at most workers.max = 4, got 5"),
        ({"pools.demo.settings.pipeline_parallel_size": 2}, "needs device gpu"),
        ({"settings.pools": {"x": {}}}, "settings"),
        ({"settings.autoscaler": {"tick_s": 10}}, "/settings/autoscaler"),
        ({"redis.maxMemory": "lots"}, "maxMemory"),
        # Replicas alone would take them.
        ({"settings.replica.host": "10.0.0.1"}, "/settings/replica/host"),
        ({"settings.router.drain_s": 60}, "/settings/router/drain_s"),
        ({"settings.cluster.log_format": "text"}, "/settings/cluster/log_format"),
        ({"autoscaler.settings.port": 9000}, "/autoscaler/settings/port"),
        ({"settings.redis.url": "redis://other:6379/0"}, "/settings/redis/url"),
        ({"pools": {"a.b": POOL, "a-b": POOL}}, "pools.a-b and pools.a.b would both have the worker group a-b"),
        ({"pools": {"Large": POOL, "large": POOL}}, "pools.Large and pools.large would both have"),
        ({"pools": {"a_b": POOL, "a-b": POOL}}, "pools.a-b and pools.a_b would both have"),
        ({"gateway.enabled": True}, "parentRefs must name a Gateway"),
        # And nothing is said of what else it might be, such as null.
        (
            {"pools.demo.workers.mn": 1},
            "penstock:\n- at '/pools/demo/workers': additional properties 'mn' not allowed\n",
        ),
        ({"pools.demo.device": "tpu"}, "penstock:\n- at '/pools/demo/device': value must be one of 'cpu', 'gpu'\n"),
        ({"pools.demo.retired": True}, "pools must have one that is not retired"),
        (
            {"pools.demo.retired": True, "pools.other": POOL},
            "pools.demo.workers.min must be 0 before the pool is retired, got 1",
        ),
        (
            {"pools.demo": {"retired": True, "workers": {"min": 0}}, "pools.other": POOL, **ALIAS},
            "settings.aliases.fast names demo, which must be a pool that is served: one of other",
        ),
        ({"settings.aliases": {"fast": {"targets": [{"model": "demo"}], "fallback": "x"}}}, "aliases.fast names x,"),
        ({"settings.aliases": {"fast": {"targets": [{"model": "demo"}], "shadow": {"model": "y"}}}}, "names y,"),
        ({"settings.aliases": {"demo": {"targets": [{"model": "demo"}]}}}, "aliases.demo must have another name"),
        (
            {"settings.tenants": {"acme": {"pools": {"demo": {}, "lost": {"tokens_per_minute": 9}}}}},
            "settings.tenants.acme.pools names lost, which must be a pool that is served: one of demo",
        ),
        (
            {
                "pools.demo": {"retired": True, "workers": {"min": 0}},
                "pools.other": POOL,
                "settings.default_tenant": {"pools": {"demo": {"concurrency": 1}}},
            },
            "settings.default_tenant.pools names demo, which must be a pool that is served: one of other",
        ),
        (
            {
                "images.requireDigest": True,
                "images.router.digest": "sha256:" + "1" * 64,
                "images.replica.digest": "sha256:" + "2" * 64,
                "pools.demo.image.tag": "other",
            },
            "image.digest of the pool must be set, because images.requireDigest is on",
        ),
        ({"pools.demo.image.digest": "latest"}, "/image/digest"),
        # Drains would never end.
        ({"router.pdb.maxUnavailable": 0}, "/router/pdb/maxUnavailable"),
        ({"router.pdb.maxUnavailable": "0%"}, "/router/pdb/maxUnavailable"),
        # Another number than Ray is told would be taken instead, without a word.
        (
            {"pools.demo.device": "gpu", "pools.demo.workers.resources.limits": {"nvidia.com/gpu": 2}},
            "limits: nvidia.com/gpu must be left out, or be settings.tensor_parallel_size = 1, got 2",
        ),
        (
            {
                "redis.enabled": False,
                "externalRedis": {"enabled": True, "url": "redis://q:6379/0", "tls": {"enabled": True}},
            },
            "externalRedis.url must begin with rediss:// where externalRedis.tls is set",
        ),
        (
            {
                "redis.enabled": False,
                "externalRedis": {"enabled": True, "url": "redis://q:6379/0", "tls": {"caSecret": "ca"}},
            },
            "externalRedis.url must begin with rediss:// where externalRedis.tls is set",
        ),
        *(
            (
                {
                    "redis.enabled": False,
                    "externalRedis": {
                        "enabled": True,
                        "mode": mode,
                        mode: {"hosts": ["q:1"]},
                        "tls": {"caSecret": "ca"},
                    },
                },
                "externalRedis.tls.enabled must be true where externalRedis.tls.caSecret is set",
            )
            for mode in ("sentinel", "cluster")
        ),
        ({"ray.modelCache.readOnly": True}, "ray.modelCache.readOnly needs ray.modelCache.existingClaim"),
        # API servers refuse what is no text.
        ({"pods.annotations": {"a": 1}}, "at '/pods/annotations/a': got number, want string"),
        ({"router.service.annotations": {"a": True}}, "/router/service/annotations/a"),
        ({"pods.nodeSelector": {"gpu": True}}, "/pods/nodeSelector/gpu"),
        ({"commonLabels": {"a": 1}}, "/commonLabels/a"),
        ({"router.pod.env": [{"name": "A", "value": 1}]}, "/router/pod/env/0/value"),
        ({"pods.volumeMounts": [{"name": "a"}]}, "/pods/volumeMounts/0"),
        ({"ray.labels": {"penstock.io/pool": "x"}}, "/ray/labels"),
        ({"monitoring.labels": {"app.kubernetes.io/instance": "x"}}, "/monitoring/labels"),
        ({"images.digests": {"a:b": "latest"}}, "/images/digests"),
        ({"externalRedis.url": "redis://user:secret@host"}, "url"),
        (
            {"redis.enabled": False, "externalRedis.enabled": True, "externalRedis.mode": "cluster"},
            "cluster.hosts must name servers",
        ),
        (
            {"redis.enabled": False, "externalRedis.enabled": True, "externalRedis.mode": "sentinel"},
            "sentinel.hosts must name sentinels",
        ),
        ({"autoscaler.enabled": True}, "needs a pool with settings.autoscale.mode"),
        ({"pools.demo.settings.autoscale": {"mode": "active", "max_replicas": 2}}, "needs autoscaler.enabled"),
        (
            {"autoscaler.enabled": True, "pools.demo.settings.autoscale": {"mode": "active", "max_replicas": 5}},
            "workers.max must be at least autoscale.max_replicas",
        ),
        (
            {
                "autoscaler.enabled": True,
                "ray.autoscaler.enabled": False,
                "pools.demo.settings.autoscale": {"mode": "active", "max_replicas": 2},
            },
            "workers.min must be at least autoscale.max_replicas x pipeline_parallel_size = 2 where",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        render_values("defaults", values)
    assert complaint in error.value.stderr


@pytest.mark.parametrize("name", ["123", "true", "null", "on", "0x1F", "a-", "a._-", f"{'x' * 38}--y"])
def test_every_name_of_a_pool_makes_a_worker_group(name: str) -> None:
    """Also one that YAML takes for something else, and one that no label may end like."""
    objects = render_values("defaults", {"pools": {"demo": None, name: POOL}})
    (group,) = one(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    slug = group["groupName"]
    assert isinstance(slug, str)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", slug)
    assert {slug} == {group["labels"]["penstock.io/pool"], group["template"]["metadata"]["labels"]["penstock.io/pool"]}
    assert {} == _kept_by_drains(objects)


@pytest.mark.parametrize(
    ("scenario", "url"),
    [
        ("defaults", "redis://:$(QUEUE_REDIS_PASSWORD)@penstock-redis:6379/0"),
        (
            "redis-url",
            "rediss://$(QUEUE_REDIS_USERNAME):$(QUEUE_REDIS_PASSWORD)@queue.example.org:6380/1"
            "?ssl_ca_certs=/etc/penstock/redis-ca/ca.crt",
        ),
        (
            "redis-sentinel",
            "rediss+sentinel://$(QUEUE_REDIS_USERNAME):$(QUEUE_REDIS_PASSWORD)@s0:26379,s1:26379,s2:26379/queue/2"
            "?sentinel_password=$(QUEUE_SENTINEL_PASSWORD)",
        ),
        (
            "redis-cluster",
            "rediss+cluster://:$(QUEUE_REDIS_PASSWORD)@c0.example.org:6379,c1.example.org:6379"
            "?ssl_ca_certs=/etc/penstock/redis-ca/ca.crt",
        ),
    ],
)
def test_every_kind_of_redis_has_its_address(scenario: str, url: str) -> None:
    assert url == environment(one(render(scenario), "Deployment", "-router"))["PENSTOCK_REDIS__URL"]


def test_an_external_address_keeps_its_own_options() -> None:
    values = {"externalRedis.url": "rediss://queue.example.org:6380/1?ssl_check_hostname=false"}
    url = environment(one(render_values("redis-url", values), "Deployment", "-router"))["PENSTOCK_REDIS__URL"]
    assert {
        "ssl_check_hostname": ["false"],
        "ssl_ca_certs": ["/etc/penstock/redis-ca/ca.crt"],
    } == parse_qs(urlsplit(url).query)


@pytest.mark.parametrize(
    ("scenario", "values"),
    [
        ("redis-sentinel", {}),
        ("redis-url", {}),
        ("redis-url", {"externalRedis.url": "rediss://[fd00::5]:6380"}),
        ("redis-cluster", {"externalRedis.cluster.hosts": ["c0.example.org:7000", "c1.example.org:7001"]}),
    ],
)
def test_policies_let_through_to_the_ports_that_addresses_name(scenario: str, values: dict[str, Any]) -> None:
    """Whoever leaves `ports` at its default would have a Redis that is away, for no reason that any log tells."""
    objects = render_values(scenario, {"externalRedis.ports": [6379], **values})
    url = environment(one(objects, "Deployment", "-router"))["PENSTOCK_REDIS__URL"]
    named = {int(port) for port in re.findall(r":([0-9]{4,5})\b", url)}
    for end in ("-router", "-ray-worker"):
        rules = one(objects, "NetworkPolicy", end)["spec"]["egress"]
        assert named | {6379} in [{port["port"] for port in rule.get("ports", [])} for rule in rules]


def environment(deployment: Object) -> dict[str, Any]:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each.get("value") or each["valueFrom"] for each in container["env"]}


def test_a_whole_address_can_come_from_a_secret() -> None:
    env = environment(one(render("redis-secret-url"), "Deployment", "-router"))
    assert {"secretKeyRef": {"name": "queue", "key": "url"}} == env["PENSTOCK_REDIS__URL"]


def test_tokens_of_service_accounts_are_an_issuer_whose_keys_the_router_may_fetch() -> None:
    objects = render_values("defaults", {"auth.serviceAccounts.enabled": True})
    assert [] == runtime.settings_load(objects)
    found = settings_toml(objects)["auth"]["jwt"]["kubernetes"]
    assert "/kubernetes.io/namespace" == found["tenant_claim"]
    pod = one(objects, "Deployment", "-router")["spec"]["template"]["spec"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "service-account"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "service-account"]
    token, authority = volume["projected"]["sources"]
    assert found["token_file"] == f"{mount['mountPath']}/{token['serviceAccountToken']['path']}"
    assert found["ca_file"] == f"{mount['mountPath']}/{authority['configMap']['items'][0]['path']}"
    # With the audience of the API server, so that it takes the token and routers' callers can't use it here.
    assert "audience" not in token["serviceAccountToken"]
    assert not pod["automountServiceAccountToken"]


def test_routers_restart_when_their_settings_change_and_ray_does_not() -> None:
    """A new Ray cluster means every GPU twice; quotas are no reason for it."""
    before, after = render(), render_values("defaults", {"settings.tenants": {"acme": {"weight": 2}}})
    assert one(before, "RayService") == one(after, "RayService")
    assert one(before, "Deployment", "-router") != one(after, "Deployment", "-router")


def test_replicas_settings_change_only_what_kuberay_updates_in_place() -> None:
    before = one(render(), "RayService")
    after = one(render_values("defaults", {"settings.queue": {"lease_s": 8}}), "RayService")
    assert before["spec"].pop("serveConfigV2") != after["spec"].pop("serveConfigV2")
    assert before == after


@pytest.mark.parametrize("resources", [{"requests": {}, "limits": {"memory": "64Gi"}}, {"limits": {"memory": "64Gi"}}])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_workers_may_have_limits_alone(device: str, resources: dict[str, Any]) -> None:
    """Kubernetes takes what is missing among the requests from the limits."""
    pool = {"settings": {}, "device": device, "workers": {"min": 1, "max": 1, "resources": resources}}
    objects = render_values("defaults", {"pools": {"demo": None, "one": pool}})
    (worker,) = [pod for pod in pods(objects) if pod.component == "ray-worker"]
    gpus = {"nvidia.com/gpu": "1"} if device == "gpu" else {}
    wanted = {**({"requests": gpus} if gpus else {}), "limits": {"memory": "64Gi", **gpus}}
    assert wanted == worker.spec["containers"][0]["resources"]


def test_another_number_of_replicas_replaces_none() -> None:
    def args(scenario: str, replicas: int) -> Any:
        service = one(render_values(scenario, {"pools.demo.settings.replicas": replicas}), "RayService")
        return serve_config(service)["applications"][0]["args"]

    assert args("defaults", 1) == args("defaults", 3)
    # Of several cells, and with replicas that stand by.
    assert args("redis-cluster", 2) == args("redis-cluster", 3)
    assert args("everything", 1) == args("everything", 3)


def test_another_number_on_standby_replaces_no_replica() -> None:
    """Whether they may stand by counts when they start: an engine that is to sleep is made for it."""

    def args(standby: int) -> Any:
        service = one(render_values("everything", {"pools.demo.settings.autoscale.standby": standby}), "RayService")
        return serve_config(service)["applications"][0]["args"]

    assert args(1) == args(3) != args(0)


@pytest.mark.parametrize("section", ["control", "autoscale"])
def test_off_without_quotes_is_off(section: str) -> None:
    """YAML reads it as false."""
    objects = render_values("defaults", {f"pools.demo.settings.{section}.mode": False})
    assert "off" == settings_toml(objects)["pools"]["demo"][section]["mode"]
    (app,) = serve_config(one(objects, "RayService"))["applications"]
    # How many replicas there are is none of their business.
    wanted = {"mode": "off"} if section == "control" else None
    assert wanted == app["args"]["settings"]["pools"]["demo"].get(section)


@pytest.mark.parametrize(
    "section",
    ["settings", "settings.jobs", "settings.telemetry", "autoscaler.settings", "monitoring.dashboards.labels"],
)
def test_a_section_without_keys_is_an_empty_one(section: str) -> None:
    """As it is where a file of values has its name, and every key below as a comment."""
    assert [] == runtime.settings_load(render_values("everything", {section: None}))


def test_the_promise_about_node_drains_is_what_budgets_can_hold() -> None:
    """Without a scale subresource only a fixed number counts, which can't follow a pool that grows."""
    definition = yaml.safe_load((CRD_DIR / "ray.io_rayclusters.yaml").read_text(encoding="utf-8"))
    assert "RayCluster" == definition["spec"]["names"]["kind"]
    assert {"status"} == {name for each in definition["spec"]["versions"] for name in each["subresources"]}
    for scenario, least in (
        # One replica alone may go: a budget would block drains for ever.
        ("defaults", {}),
        ("gpu-tp", {"small": 1}),
        ("gpu-pp", {"huge": 3}),
    ):
        assert least == _kept_by_drains(render(scenario)), scenario
    assert {} == _kept_by_drains(render_values("defaults", {"pools.demo.workers.min": 0}))
    # Pods above the replicas are never ready, and would keep the budget short for ever.
    assert {} == _kept_by_drains(render_values("defaults", {"pools.demo.workers.min": 3}))
    three = {"pools.demo.workers.min": 3, "pools.demo.settings.replicas": 3}
    assert {"demo": 2} == _kept_by_drains(render_values("defaults", three))
    scaled = {"autoscaler.enabled": True, "pools.demo.settings.autoscale": {"mode": "active", "max_replicas": 3}}
    # It may leave one.
    assert {} == _kept_by_drains(render_values("defaults", {**three, **scaled}))
    advisory = {**scaled, "pools.demo.settings.autoscale.mode": "advisory"}
    assert {"demo": 2} == _kept_by_drains(render_values("defaults", {**three, **advisory}))
    for least, kept in ((3, {"demo": 2}), (2, {"demo": 1}), (1, {})):
        fewer = {"pools.demo.settings.autoscale.min_replicas": least}
        assert kept == _kept_by_drains(render_values("defaults", {**three, **scaled, **fewer}))
    assert {} == _kept_by_drains(render_values("gpu-pp", {"ray.pdb.enabled": False}))
    promise = comments_of((CHART / "values.yaml").read_text(encoding="utf-8"))["ray", "pdb", "enabled"]
    assert "leaves one fewer than those that always have a replica" in promise
    assert "one such replica or none has no budget" in promise


def _kept_by_drains(objects: list[Object]) -> dict[str, int]:
    """Return how many workers' pods a drain leaves, by pool."""
    budgets = [each for each in of_kind(objects, "PodDisruptionBudget") if "-ray-worker" in each["metadata"]["name"]]
    specs = [each["spec"] for each in budgets]
    assert not any("maxUnavailable" in spec for spec in specs)
    for spec in specs:
        wanted = spec["selector"]["matchLabels"].items()
        assert 1 == sum(pod.labels.items() >= wanted for pod in pods(objects))
    return {spec["selector"]["matchLabels"]["penstock.io/pool"]: spec["minAvailable"] for spec in specs}


def _console(values: dict[str, Any]) -> list[str]:
    deployment = one(render_values("defaults", {"console.enabled": True, **values}), "Deployment", "-console")
    args: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def test_the_console_sends_keys_as_the_routers_take_them() -> None:
    """In the clear inside the cluster where they have no TLS, and over the authority that they say where they do."""
    assert "--allow-plaintext-key" in _console({})
    assert "--allow-plaintext-key" not in _console({"auth.anonymous": True})
    tls = {"router.tls.enabled": True}
    assert {"--tls-ca=/etc/penstock/router-ca/ca.crt"} == {a for a in _console(tls) if "tls" in a or "plain" in a}
    public = {**tls, "console.routerTls.caKey": ""}
    assert {"--tls"} == {a for a in _console(public) if "tls" in a or "plain" in a}


def test_the_console_answers_under_its_services_names_and_those_of_browsers() -> None:
    names = {arg.partition("=")[2] for arg in _console({"console.hostnames": ["c.example.org"]}) if "--name" in arg}
    service = "penstock-console.penstock"
    assert names == {"penstock-console", service, f"{service}.svc", f"{service}.svc.cluster.local", "c.example.org"}


def test_gateways_are_told_to_speak_in_the_clear_only_where_routers_do() -> None:
    def protocols(scenario: str) -> set[str | None]:
        services = [each for each in of_kind(render(scenario), "Service") if "-router" in each["metadata"]["name"]]
        assert 2 == len(services)
        return {p.get("appProtocol") for each in services for p in each["spec"]["ports"] if p["name"] == "grpc"}

    assert {"kubernetes.io/h2c"} == protocols("defaults")
    assert {None} == protocols("production")


def test_secrets_are_made_only_when_asked_for() -> None:
    assert [] == of_kind(render(), "Secret")
    made = {each["metadata"]["name"] for each in of_kind(render("everything"), "Secret")}
    assert {"llm-cluster", "llm-ray-token", "llm-redis", "llm-redis-gcs", "llm-keys", "llm-first-key"} == made


def test_the_first_key_opens_the_door() -> None:
    """What the chart makes is what `penstock keys new` makes: the hash of that key, in a file that routers read."""
    import base64

    from router.identity.key import hash_key, key_id
    from router.identity.keys_file import parse_keys_file

    secrets = {each["metadata"]["name"]: each["data"] for each in of_kind(render("everything"), "Secret")}
    key = base64.b64decode(secrets["llm-first-key"]["key"]).decode()
    (entry,) = parse_keys_file(base64.b64decode(secrets["llm-keys"]["keys.toml"]).decode()).keys
    assert (key_id(key), hash_key(key), "admin") == (entry.id, entry.sha256, entry.role)


def without_comment(text: str) -> list[str]:
    """List the values that no comment is about: neither their own nor that of the small map they stand in."""
    comments = comments_of(text)

    def bare(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
        for key, inner in value.items():
            here = (*path, key)
            is_map = isinstance(inner, dict) and bool(inner)
            of_its_own = is_map and any(len(each) > len(here) and each[: len(here)] == here for each in comments)
            if of_its_own:
                yield from bare(inner, here)
            elif here not in comments and pattern_of(here) not in FREE_MAPS:
                yield ".".join(here)

    return list(bare(yaml.safe_load(text), ()))


def test_every_value_has_a_comment() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert [] == without_comment(text)
    assert ["redis.storage"] == without_comment(
        text.replace("  # Size of the volume for the append-only file.\n", "", 1)
    )


@pytest.mark.parametrize(
    ("values", "memory", "jobs_mb"),
    [
        ({}, 2 * 1024**3 * 6 // 10, 614),
        ({"redis.resources.limits.memory": "1.5G"}, 900_000_000, 429),
        ({"redis.resources.limits.memory": 4 * 1024**3}, 4 * 1024**3 * 6 // 10, 1228),
        ({"redis.maxMemory": "1Gi"}, 1024**3, 512),
        ({"redis.maxMemory": "1Gi", "settings.jobs.max_mb": 7}, 1024**3, 7),
        ({"redis.resources.limits": {"memory": None}}, None, None),
    ],
)
def test_the_trial_redis_is_full_before_its_pod_is_killed(
    values: dict[str, Any], memory: int | None, jobs_mb: int | None
) -> None:
    objects = render_values("defaults", values)
    found = re.search(r"^maxmemory (\d+)$", one(objects, "ConfigMap", "-redis")["data"]["valkey.conf"], re.MULTILINE)
    assert memory == (int(found[1]) if found else None)
    assert jobs_mb == settings_toml(objects).get("jobs", {}).get("max_mb")


def test_stored_jobs_that_do_not_fit_are_warned_of() -> None:
    def notes(megabytes: int) -> str:
        flags = ["--dry-run=client", f"--set=settings.jobs.max_mb={megabytes}"]
        return run("helm", "install", RELEASE, str(CHART), *flags).split("\nNOTES:\n")[1]

    assert "settings.jobs.max_mb (4096) is more than half of redis.maxMemory" in notes(4096)
    assert "settings.jobs.max_mb" not in notes(100)


def test_pods_listen_on_both_families() -> None:
    """Where there is IPv6 alone probes and Services ask pods at addresses that 0.0.0.0 does not have."""
    settings = settings_toml(render("everything"))
    assert ("::", "::") == (settings["router"]["host"], settings["autoscaler"]["host"])
    config = one(render(), "ConfigMap", "-redis")["data"]["valkey.conf"]
    assert ["* -::*"] == re.findall("^bind (.*)$", config, re.MULTILINE)
    for host in ("0.0.0.0", "::"):  # noqa: S104 - of a pod
        ray = one(render_values("defaults", {"ray.dashboardHost": host}), "RayService")
        assert host == ray["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["dashboard-host"]


@pytest.mark.parametrize(
    ("values", "megabytes"),
    [
        ({}, None),
        ({"pools.other": POOL}, 256),
        ({"router.resources.limits.memory": "512Mi"}, 256),
        ({"router.resources.limits.memory": "8Gi", "pools.other": POOL}, None),
        ({"router.resources.limits.memory": "1Mi", "pools.other": POOL}, 1),
        ({"router.resources.limits": {"memory": None}, "pools.other": POOL}, None),
        ({"settings.router.max_unread_total_mb": 900, "pools.other": POOL}, 900),
    ],
)
def test_slow_readers_end_before_their_routers_pod(values: dict[str, Any], megabytes: int | None) -> None:
    """Of every pool as much is kept: without more said all of them together half of the pod's memory."""
    router = settings_toml(render_values("defaults", values))["router"]
    assert megabytes == router.get("max_unread_total_mb")
