"""What must hold between objects does, in every scenario; and every rule finds a mistake that is planted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from k8s.render.binaries import run
from k8s.render.generated import CHART, RELEASE
from tests.k8s.charts import SCENARIOS, Object, of_kind, one, render
from tests.k8s.rules import RULES, wiring
from tests.k8s.view import serve_config


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("rule", RULES)
def test_the_chart_keeps_the_rule(rule: str, scenario: str) -> None:
    assert [] == RULES[rule](render(scenario))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_secret_is_made_or_asked_for(scenario: str) -> None:
    made = {each["metadata"]["name"] for each in of_kind(render(scenario), "Secret")}
    asked = asked_for(scenario)
    # Of those that the chart makes nobody is asked for any.
    assert not made & asked.keys()
    assert [] == wiring.secrets_are_there(render(scenario), asked)


def asked_for(scenario: str) -> dict[str, set[str]]:
    """Return the keys of the secrets that the notes ask for, by name."""
    text = run("helm", "install", RELEASE, str(CHART), "--dry-run=client", *SCENARIOS[scenario]).split("\nNOTES:\n")[1]
    (line,) = re.findall("These secrets must exist: (.*)", text) or [""]
    return {name: set(keys.split(", ")) for name, keys in re.findall(r"(\S+) \(([^)]+)\)", line)}


def test_a_secret_that_nobody_makes_is_found() -> None:
    objects = render()
    router(objects)["volumes"][1]["secret"]["secretName"] = "penstock-clutser"
    assert "penstock-clutser" in " ".join(wiring.secrets_are_there(objects, asked_for("defaults")))


def router(objects: list[Object]) -> Any:
    return one(objects, "Deployment", "-router")["spec"]["template"]["spec"]


def cluster(objects: list[Object]) -> Any:
    return one(objects, "RayService")["spec"]["rayClusterConfig"]


def worker(objects: list[Object], pool: str = "") -> Any:
    groups = cluster(objects)["workerGroupSpecs"]
    return next(each for each in groups if pool in ("", each["groupName"]))["template"]["spec"]


def volume_of(pod: Any, name: str) -> Any:
    return next(each for each in pod["volumes"] if each["name"] == name)


def claim_template(objects: list[Object]) -> Any:
    return volume_of(worker(objects, "each"), "models")["ephemeral"]["volumeClaimTemplate"]


def fetching(objects: list[Object], pool: str = "shared") -> Any:
    """Return the Job of a pool."""
    return next(each for each in of_kind(objects, "Job") if each["metadata"]["labels"]["penstock.io/pool"] == pool)


def fetcher(objects: list[Object]) -> Any:
    return fetching(objects)["spec"]["template"]["spec"]["containers"][0]


def route_to(route: Object) -> Any:
    return route["spec"]["rules"][0]["backendRefs"][0]


def path_of(ingress: Object) -> Any:
    return ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]


def hub_home(container: Any) -> Any:
    return next(each for each in container["env"] if each["name"] == "HF_HOME")


def retoml(objects: list[Object], pattern: str, to: str) -> None:
    data = one(objects, "ConfigMap", "-settings")["data"]
    data["settings.toml"], count = re.subn(pattern, to, data["settings.toml"])
    assert count


def reserve(objects: list[Object], change: Callable[[dict[str, Any]], Any]) -> None:
    service = one(objects, "RayService")
    config = serve_config(service)
    change(config)
    service["spec"]["serveConfigV2"] = yaml.safe_dump(config)


def drop(objects: list[Object], kind: str, end: str) -> None:
    objects.remove(one(objects, kind, end))


Plant = Callable[[list[Object]], Any]
MISTAKES: list[tuple[str, str, Plant]] = [
    ("names_fit", "defaults", lambda o: one(o, "Service", "-headless")["metadata"].update(name="my.release-headless")),
    ("names_fit", "defaults", lambda o: one(o, "StatefulSet")["metadata"].update(name="x" * 53)),
    ("names_fit", "defaults", lambda o: one(o, "ConfigMap", "-settings")["metadata"].update(name="a-My_Name")),
    ("names_fit", "defaults", lambda o: one(o, "RayService")["metadata"].update(name="release-")),
    ("names_fit", "everything", lambda o: one(o, "Ingress")["metadata"]["labels"].update(team=1)),
    ("names_fit", "defaults", lambda o: one(o, "Service", "-headless")["metadata"]["labels"].update({"a b": "x"})),
    ("names_fit", "defaults", lambda o: one(o, "RayService")["metadata"]["annotations"].update(note=True)),
    ("names_fit", "defaults", lambda o: router(o)["volumes"][0].update(name="Settings")),
    ("names_fit", "defaults", lambda o: router(o)["containers"][0]["ports"][0].update(name="a-very-long-name")),
    ("texts_are_texts", "defaults", lambda o: router(o)["containers"][0]["args"].append({"--name=a": "b"})),
    ("texts_are_texts", "defaults", lambda o: worker(o)["containers"][0]["env"].append({"name": "A", "value": 1})),
    ("texts_are_texts", "defaults", lambda o: router(o).update(nodeSelector={"gpu": True})),
    ("selectors_find_pods", "defaults", lambda o: one(o, "Service", "-headless")["spec"]["selector"].update(x="y")),
    (
        "selectors_find_pods",
        "defaults",
        lambda o: router(o)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].update(x="y"),
    ),
    ("services_reach_ports", "defaults", lambda o: router(o)["containers"][0]["ports"][0].update(name="http")),
    (
        "services_reach_ports",
        "defaults",
        lambda o: router(o)["containers"][0]["readinessProbe"]["httpGet"].update(port="health"),
    ),
    (
        "services_reach_ports",
        "everything",
        lambda o: one(o, "PodMonitor", "-worker")["spec"]["podMetricsEndpoints"][0].update(port="prom"),
    ),
    (
        "services_reach_ports",
        "everything",
        lambda o: one(o, "ServiceMonitor", "-router")["spec"]["endpoints"][0].update(port="prom"),
    ),
    (
        "addresses_are_services",
        "defaults",
        lambda o: one(o, "Service", "-redis")["spec"]["ports"][0].update(port=6380),
    ),
    ("addresses_are_services", "everything", lambda o: drop(o, "Service", "-redis-gcs")),
    ("volumes_are_there", "defaults", lambda o: router(o)["volumes"].pop()),
    ("volumes_are_there", "defaults", lambda o: router(o)["volumes"][0]["configMap"].update(name="other")),
    ("volumes_are_there", "defaults", lambda o: router(o)["containers"][0]["volumeMounts"][0].update(subPath="s.toml")),
    (
        "targets_exist",
        "everything",
        lambda o: one(o, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"].update(name="rooter"),
    ),
    ("targets_exist", "everything", lambda o: drop(o, "Role", "-ray")),
    ("targets_exist", "everything", lambda o: drop(o, "Service", "-console")),
    (
        "scaled_deployments_fix_no_replicas",
        "everything",
        lambda o: one(o, "Deployment", "-router")["spec"].update(replicas=2),
    ),
    ("service_accounts_exist", "defaults", lambda o: drop(o, "ServiceAccount", "-ray")),
    ("graces_add_up", "defaults", lambda o: router(o).update(terminationGracePeriodSeconds=60)),
    ("graces_add_up", "defaults", lambda o: router(o)["containers"][0].pop("lifecycle")),
    ("graces_add_up", "defaults", lambda o: worker(o).update(terminationGracePeriodSeconds=60)),
    ("graces_add_up", "defaults", lambda o: one(o, "RayService")["spec"].pop("rayClusterDeletionDelaySeconds")),
    (
        "graces_add_up",
        "defaults",
        lambda o: reserve(o, lambda c: c["applications"][0]["deployments"][0].update(graceful_shutdown_timeout_s=20)),
    ),
    (
        "graces_add_up",
        "defaults",
        # Ray's own 30 s.
        lambda o: worker(o)["containers"][0]["env"].remove(
            next(e for e in worker(o)["containers"][0]["env"] if e["name"].startswith("RAY_GRACEFUL"))
        ),
    ),
    ("operators_write_back_nothing", "defaults", lambda o: cluster(o)["workerGroupSpecs"][0].pop("scaleStrategy")),
    (
        "operators_write_back_nothing",
        "gpu-tp",
        lambda o: worker(o)["containers"][0]["resources"]["limits"].update({"nvidia.com/gpu": 4}),
    ),
    (
        "operators_write_back_nothing",
        "defaults",
        lambda o: cluster(o)["autoscalerOptions"]["resources"]["limits"].update(cpu="0.5"),
    ),
    ("operators_write_back_nothing", "defaults", lambda o: worker(o)["containers"].append({"name": "side"})),
    ("operators_write_back_nothing", "defaults", lambda o: worker(o).update(tolerations=[])),
    (
        "operators_write_back_nothing",
        "defaults",
        lambda o: worker(o)["containers"][0]["env"].append({"name": "HOME", "value": "/"}),
    ),
    (
        "operators_write_back_nothing",
        "bent",
        # One half without quotes, cut.
        lambda o: worker(o)["initContainers"][0]["resources"]["requests"].update(cpu="0"),
    ),
    (
        "operators_write_back_nothing",
        "defaults",
        lambda o: worker(o)["volumes"].append({"name": "x", "emptyDir": {"sizeLimit": "1024Mi"}}),
    ),
    (
        "secrets_belong_to_no_revision",
        "everything",
        lambda o: one(o, "Secret", "-first-key")["metadata"]["annotations"].pop("helm.sh/hook"),
    ),
    (
        "secrets_belong_to_no_revision",
        "everything",
        lambda o: one(o, "Secret", "-keys")["metadata"]["annotations"].update(
            {"helm.sh/hook-delete-policy": "hook-failed"}
        ),
    ),
    (
        "node_drains_end",
        "gpu-tp",
        lambda o: one(o, "PodDisruptionBudget", "-small")["spec"].update(minAvailable=2),
    ),
    (
        "node_drains_end",
        "defaults",
        lambda o: one(o, "PodDisruptionBudget", "-router")["spec"].update(maxUnavailable=0),
    ),
    ("node_drains_end", "gpu-pp", lambda o: worker(o)["containers"][0].pop("readinessProbe")),
    (
        "spreads_count_only_nodes_that_pods_may_use",
        "defaults",
        lambda o: router(o)["topologySpreadConstraints"][0].pop("nodeTaintsPolicy"),
    ),
    (
        "accelerators_agree",
        "gpu-tp",
        lambda o: worker(o)["containers"][0]["resources"]["limits"].update({"nvidia.com/gpu": 2}),
    ),
    ("accelerators_agree", "gpu-tp", lambda o: cluster(o)["workerGroupSpecs"][0]["resources"].update(GPU="8")),
    (
        "accelerators_agree",
        "gpu-pp",
        lambda o: reserve(o, lambda c: c["applications"][0]["deployments"][0]["placement_group_bundles"].pop()),
    ),
    ("accelerators_agree", "gpu-pp", lambda o: cluster(o)["workerGroupSpecs"][0].update(maxReplicas=3)),
    ("arguments_parse", "defaults", lambda o: router(o)["containers"][0]["args"].append("--verbose")),
    ("arguments_parse", "sim", lambda o: one(o, "Pod")["spec"]["containers"][0]["args"].append("--tokens=8")),
    ("arguments_parse", "defaults", lambda o: router(o)["containers"][0].update(command=["python", "-m", "rooter"])),
    (
        "environment_is_known",
        "defaults",
        lambda o: router(o)["containers"][0]["env"].append({"name": "PENSTOCK_ROUTER__PROT", "value": "1"}),
    ),
    ("environment_is_known", "defaults", lambda o: router(o)["containers"][0]["env"].reverse()),
    ("settings_load", "defaults", lambda o: retoml(o, "drain_s = 300", "drian_s = 300")),
    ("settings_load", "defaults", lambda o: retoml(o, "keys_file = .*", "")),
    ("settings_load", "defaults", lambda o: router(o)["containers"][0]["env"].pop()),
    (
        "settings_load",
        "defaults",
        lambda o: worker(o)["containers"][0]["env"].remove(
            next(e for e in worker(o)["containers"][0]["env"] if e["name"] == "PENSTOCK_REPLICA__HOST")
        ),
    ),
    ("settings_load", "everything", lambda o: retoml(o, 'mode = "active"', 'mode = "off"')),
    ("settings_load", "everything", lambda o: retoml(o, "llm-head-svc", "llm-head")),
    ("settings_load", "defaults", lambda o: router(o)["containers"][0]["volumeMounts"].pop(-2)),
    (
        "settings_load",
        "defaults",
        lambda o: reserve(o, lambda c: c["applications"][0]["args"]["settings"]["cluster"].update(state_dir="/var/x")),
    ),
    (
        "settings_load",
        "everything",
        lambda o: reserve(o, lambda c: c["applications"][0]["args"]["settings"].pop("registry")),
    ),
    (
        "settings_load",
        "everything",
        lambda o: reserve(o, lambda c: c["applications"][0]["args"]["settings"]["pools"]["demo"].pop("autoscale")),
    ),
    ("settings_load", "everything", lambda o: retoml(o, "/etc/penstock/ray-token/", "/etc/penstock/token/")),
    ("settings_load", "everything", lambda o: cluster(o)["workerGroupSpecs"][0].update(maxReplicas=3)),
    ("ports_are_those_bound", "defaults", lambda o: retoml(o, "port = 50051", "port = 50052")),
    (
        "ports_are_those_bound",
        "defaults",
        lambda o: reserve(o, lambda c: c["applications"][0]["args"]["settings"]["replica"].update(port=9500)),
    ),
    (
        "ports_are_those_bound",
        "defaults",
        lambda o: one(o, "ConfigMap", "-redis")["data"].update({"valkey.conf": "port 6380"}),
    ),
    (
        "ports_are_those_bound",
        "sim",
        lambda o: one(o, "Deployment", "-console")["spec"]["template"]["spec"]["containers"][0]["ports"][0].update(
            containerPort=80
        ),
    ),
    (
        "serve_config_is_ours",
        "defaults",
        lambda o: reserve(o, lambda c: c["applications"][0]["deployments"][0].update(name="engine")),
    ),
    ("serve_config_is_ours", "defaults", lambda o: reserve(o, lambda c: c.update(proxy_location="Disabled"))),
    ("serve_config_is_ours", "gpu-tp", lambda o: reserve(o, lambda c: c["applications"].pop())),
    ("pods_are_restricted", "defaults", lambda o: router(o)["securityContext"].update(runAsUser=0)),
    (
        "pods_are_restricted",
        "defaults",
        lambda o: worker(o)["containers"][0]["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    (
        "pods_are_restricted",
        "defaults",
        lambda o: router(o)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    ("images_are_pinned", "defaults", lambda o: router(o)["containers"][0].update(image="redis:latest")),
    (
        "tokens_are_mounted_only_where_used",
        "defaults",
        lambda o: router(o).update(automountServiceAccountToken=True),
    ),
    ("edges_are_allowed", "defaults", lambda o: one(o, "NetworkPolicy", "-redis")["spec"]["ingress"][0]["from"].pop()),
    ("edges_are_allowed", "defaults", lambda o: one(o, "NetworkPolicy", "-router")["spec"]["egress"].pop(0)),
    ("edges_are_allowed", "everything", lambda o: drop(o, "NetworkPolicy", "-autoscaler")),
    ("edges_are_allowed", "everything", lambda o: drop(o, "NetworkPolicy", "-console")),
    ("edges_are_allowed", "everything", lambda o: one(o, "NetworkPolicy", "-console")["spec"].pop("ingress")),
    ("edges_are_allowed", "sim", lambda o: one(o, "NetworkPolicy", "-console")["spec"]["egress"].pop()),
    ("edges_are_allowed", "everything", lambda o: retoml(o, "monitoring:4317", "monitoring:4318")),
    ("edges_are_allowed", "redis-url", lambda o: one(o, "NetworkPolicy", "-ray-worker")["spec"]["egress"].pop()),
    ("edges_are_allowed", "defaults", lambda o: drop(o, "NetworkPolicy", "-deny")),
    ("edges_are_allowed", "weights", lambda o: drop(o, "NetworkPolicy", "-weights")),
    ("edges_are_allowed", "weights", lambda o: one(o, "NetworkPolicy", "-ray-worker")["spec"]["egress"].pop()),
    (
        "operators_write_back_nothing",
        "weights",
        lambda o: claim_template(o).pop("metadata"),
    ),
    (
        "operators_write_back_nothing",
        "weights",
        lambda o: claim_template(o)["spec"]["resources"]["requests"].update(storage="1024Gi"),
    ),
    ("weights_come_to_where_they_are_read", "weights", lambda o: o.remove(fetching(o))),
    ("weights_come_to_where_they_are_read", "weights", lambda o: fetcher(o)["args"].pop(0)),
    ("weights_come_to_where_they_are_read", "weights", lambda o: fetcher(o)["env"].remove(hub_home(fetcher(o)))),
    ("weights_come_to_where_they_are_read", "weights", lambda o: fetcher(o)["volumeMounts"][0].update(readOnly=True)),
    ("weights_come_to_where_they_are_read", "weights", lambda o: worker(o, "shared").pop("initContainers")),
    (
        "weights_come_to_where_they_are_read",
        "weights",
        lambda o: hub_home(worker(o, "shared")["initContainers"][0]).update(value="/models/hub"),
    ),
    (
        "weights_come_to_where_they_are_read",
        "weights",
        lambda o: worker(o, "shared")["initContainers"][0].update(command=["penstock", "weights", "fetch"]),
    ),
    (
        "weights_come_to_where_they_are_read",
        "weights",
        lambda o: worker(o, "each")["initContainers"][0]["volumeMounts"][0].update(readOnly=True),
    ),
    (
        "weights_come_to_where_they_are_read",
        "weights",
        lambda o: one(o, "ConfigMap", "-weights")["data"].update(shared="org/other\n"),
    ),
    (
        "weights_come_to_where_they_are_read",
        "weights",
        lambda o: one(o, "ConfigMap", "-weights")["data"].pop("shared"),
    ),
    (
        "pods_name_no_model",
        "weights",
        lambda o: worker(o, "shared")["initContainers"][0]["args"].append("org/poet@v1"),
    ),
    (
        "claims_can_be_shared",
        "weights",
        lambda o: fetching(o, "near")["spec"]["template"]["spec"].pop("nodeSelector"),
    ),
    ("claims_can_be_shared", "weights", lambda o: drop(o, "PersistentVolumeClaim", "-shared")),
    (
        "claims_can_be_shared",
        "weights",
        lambda o: one(o, "PersistentVolumeClaim", "-shared")["spec"].update(accessModes=["ReadWriteOnce"]),
    ),
    (
        "claims_can_be_shared",
        "weights",
        lambda o: one(o, "PersistentVolumeClaim", "-shared")["metadata"].pop("annotations"),
    ),
    (
        "claims_can_be_shared",
        "weights",
        # Some disks can be on several nodes only if the claim itself says so.
        lambda o: volume_of(worker(o, "disk"), "models")["persistentVolumeClaim"].pop("readOnly"),
    ),
    (
        "starts_have_time_for_weights",
        "weights",
        lambda o: one(o, "RayService")["metadata"]["annotations"].update({"ray.io/initializing-timeout": "45m"}),
    ),
    ("jobs_end", "weights", lambda o: fetching(o)["spec"]["template"]["spec"].update(restartPolicy="OnFailure")),
    ("jobs_end", "weights", lambda o: fetching(o)["spec"]["podFailurePolicy"]["rules"].pop(0)),
    (
        "jobs_end",
        "weights",
        lambda o: fetching(o)["spec"]["template"]["spec"]["containers"].append({"name": "agent"}),
    ),
    ("jobs_end", "weights", lambda o: fetching(o)["metadata"].update(name="penstock-weights-shared")),
    ("jobs_end", "weights", lambda o: fetching(o)["spec"].update(backoffLimit=0)),
    ("ways_lead_to_the_right_port", "ways-in", lambda o: route_to(one(o, "HTTPRoute")).update(port=8001)),
    (
        "ways_lead_to_the_right_port",
        "ways-in",
        lambda o: route_to(one(o, "HTTPRoute")).update(name="penstock-router", port=50051),
    ),
    (
        "ways_lead_to_the_right_port",
        "ways-in",
        lambda o: path_of(one(o, "Ingress", "-http"))["port"].update(name="htp"),
    ),
    ("targets_exist", "ways-in", lambda o: one(o, "BackendTLSPolicy")["spec"]["targetRefs"][1].update(name="router")),
    ("tls_is_spoken_to_those_who_speak_it", "ways-in", lambda o: drop(o, "BackendTLSPolicy", "")),
    (
        "tls_is_spoken_to_those_who_speak_it",
        "ways-in",
        lambda o: one(o, "BackendTLSPolicy")["spec"]["targetRefs"].pop(),
    ),
    (
        "tls_is_spoken_to_those_who_speak_it",
        "ways-in",
        lambda o: one(o, "BackendTLSPolicy")["spec"]["validation"].update(hostname="routers.example.org"),
    ),
    (
        "tls_is_spoken_to_those_who_speak_it",
        "ways-in",
        lambda o: one(o, "Ingress", "-router")["metadata"]["annotations"].update(
            {"nginx.ingress.kubernetes.io/backend-protocol": "GRPC"}
        ),
    ),
    (
        "tls_is_spoken_to_those_who_speak_it",
        "ways-in",
        lambda o: one(o, "Service", "-headless")["spec"]["ports"][0].update(appProtocol="kubernetes.io/h2c"),
    ),
    (
        "one_name_leads_to_one_api",
        "ways-in",
        lambda o: one(o, "HTTPRoute")["spec"].update(hostnames=["grpc.example.org"]),
    ),
    (
        "one_name_leads_to_one_api",
        "ways-in",
        lambda o: one(o, "Ingress", "-http")["spec"]["rules"][0].update(host="grpc.example.org"),
    ),
    ("families_agree", "ways-in", lambda o: one(o, "Service", "-router")["spec"].pop("ipFamilyPolicy")),
    (
        "families_agree",
        "ways-in",
        lambda o: cluster(o)["headGroupSpec"]["rayStartParams"].update({"dashboard-host": "0.0.0.0"}),  # noqa: S104
    ),
    ("families_agree", "ways-in", lambda o: retoml(o, 'host = "::"', 'host = "0.0.0.0"')),
    ("ports_are_those_bound", "ways-in", lambda o: retoml(o, "port = 8001", "port = 8000")),
    (
        "edges_are_allowed",
        "ways-in",
        lambda o: one(o, "NetworkPolicy", "-router")["spec"]["ingress"][0]["from"].pop(0),
    ),
    ("edges_are_allowed", "ways-in", lambda o: one(o, "NetworkPolicy", "-router")["spec"]["ingress"][0]["ports"].pop()),
    (
        "other_edges_are_denied",
        "defaults",
        lambda o: one(o, "NetworkPolicy", "-redis")["spec"]["ingress"][0].pop("from"),
    ),
    ("other_edges_are_denied", "sim", lambda o: one(o, "NetworkPolicy", "-console")["spec"].update(ingress=[{}])),
    (
        "other_edges_are_denied",
        "defaults",
        lambda o: one(o, "NetworkPolicy", "-ray-head")["spec"]["ingress"].append({"ports": [{"port": "dashboard"}]}),
    ),
]


@pytest.mark.parametrize(
    ("rule", "scenario", "plant"), MISTAKES, ids=[f"{number}-{rule}" for number, (rule, _, _) in enumerate(MISTAKES)]
)
def test_the_rule_finds_a_planted_mistake(rule: str, scenario: str, plant: Plant) -> None:
    objects = render(scenario)
    plant(objects)
    assert RULES[rule](objects)


def test_every_rule_has_a_planted_mistake() -> None:
    assert RULES.keys() == {rule for rule, _, _ in MISTAKES}


def test_values_that_the_readme_names_exist() -> None:
    """Back-quoted dotted names in the operators' guide are values of the chart."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    text = (CHART.parent / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)`", text):
        if name.split(".")[0] in values and not name.startswith("settings.") and not name.endswith(".yaml"):
            node = values
            for part in name.split("."):
                assert part in node, name
                node = node[part]


@pytest.mark.slow
def test_ray_takes_the_serve_config() -> None:
    from ray.serve.schema import ServeDeploySchema

    for scenario in ("defaults", "sim", "gpu-tp", "gpu-pp"):
        config = serve_config(one(render(scenario), "RayService"))
        parsed = ServeDeploySchema.model_validate(config)
        assert [app["name"] for app in config["applications"]] == [app.name for app in parsed.applications]
