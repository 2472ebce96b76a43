"""What KubeRay makes of a RayService: pods of head and workers with everything that the operator adds to them.

Alpha features behind gates are left out, as are options that the chart does not set. Sources are those of KubeRay 1.7,
in controllers/ray/common/pod.go unless another file is named.
"""

from __future__ import annotations

import copy
import json
from math import ceil
from typing import Any

from tests.k8s.charts import Object
from tests.k8s.kuberay.writes import cluster_name
from tests.k8s.view import PodSpec

GCS, DASHBOARD, AGENT, METRICS, SERVE = 6379, 8265, 52365, 8080, 8000
"""Ports (controllers/ray/utils/constant.go)."""
HEALTH = "/api/healthz"
"""Health of a node, its raylet included (utils/constant.go, RayNodeHealthPath); since Ray 2.53."""
WAIT = "wait-gcs-ready"
AUTOSCALER = "autoscaler"
VALUED = ("log-color", "include-dashboard", "include-log-monitor")
"""Options of `ray start` that take true and false as values (convertParamMap)."""
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": 1e-3}
AMOUNT = {"cpu": "200m", "memory": "256Mi"}
"""Resources of the container that waits (DefaultWorkerPodTemplate)."""


def made(service: Object) -> list[PodSpec]:
    """Return one pod of each kind."""
    cluster = service["spec"]["rayClusterConfig"]
    return [head(service), *(worker(service, group) for group in cluster["workerGroupSpecs"])]


def head(service: Object) -> PodSpec:
    """Return the head's pod.

    Sources: DefaultHeadPodTemplate (autoscaler beside it, no monitor inside), configureGCSFaultTolerance,
    configureTokenAuth, BuildPod.
    """
    cluster = service["spec"]["rayClusterConfig"]
    group = copy.deepcopy(cluster["headGroupSpec"])
    template, options = group["template"], _options(group)
    ray = template["spec"]["containers"][0]
    options.setdefault("dashboard-host", "0.0.0.0")  # noqa: S104 - KubeRay's default
    scaling = bool(cluster.get("enableInTreeAutoscaling"))
    if scaling:
        options["no-monitor"] = "true"
        template["spec"]["containers"].append(_autoscaler(cluster, ray))
        if cluster.get("autoscalerOptions", {}).get("version") == "v2":
            _add(ray, "RAY_enable_autoscaler_v2", "true")
            template["spec"]["restartPolicy"] = "Never"
    notes = template["metadata"].setdefault("annotations", {})
    _fault_tolerance(cluster, ray, notes)
    _token(cluster, ray)
    return _pod(service, group, "headgroup", options)


def worker(service: Object, group: dict[str, Any]) -> PodSpec:
    """Return a worker's pod.

    Sources: DefaultWorkerPodTemplate (a container that waits for the GCS, with the worker's variables and mounts),
    configureGCSFaultTolerance, configureTokenAuth, BuildPod.
    """
    cluster = service["spec"]["rayClusterConfig"]
    group = copy.deepcopy(group)
    template, options = group["template"], _options(group)
    ray = template["spec"]["containers"][0]
    waits = _waiting(service, ray)
    template["spec"].setdefault("initContainers", []).append(waits)
    options.setdefault("address", f"{head_address(service)}:{GCS}")
    if "gcsFaultToleranceOptions" in cluster:
        _add(ray, "RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    scaling = cluster.get("enableInTreeAutoscaling")
    if scaling and cluster.get("autoscalerOptions", {}).get("version") == "v2":
        template["spec"]["restartPolicy"] = "Never"
    for container in (ray, waits):
        _token(cluster, container)
    return _pod(service, group, group["groupName"], options)


def head_address(service: Object, domain: str = "cluster.local") -> str:
    """Return the name by which workers reach their head: a Service of the cluster, not of the RayService.

    Source: controllers/ray/utils/util.go, GenerateFQDNServiceName and GenerateHeadServiceName.
    """
    namespace = service["metadata"].get("namespace", "penstock")
    return f"{cluster_name(service)}-head-svc.{namespace}.svc.{domain}"


def service_address(service: Object) -> str:
    """Return the name of the Service that leads to the head of the active cluster, as others than workers use it.

    Source: controllers/ray/utils/util.go, GenerateHeadServiceName, of a RayService.
    """
    return f"{service['metadata']['name']}-head-svc"


def _pod(service: Object, group: dict[str, Any], name: str, options: dict[str, str]) -> PodSpec:
    """Source: BuildPod."""
    template, kind = group["template"], "worker" if "groupName" in group else "head"
    spec, metadata = template["spec"], template["metadata"]
    ray = spec["containers"][0]
    labels = {**metadata.get("labels", {}), **group.get("labels", {})}
    metadata["labels"] = _labels(service, kind, name, labels) | {
        "ray.io/serve": "true" if kind == "worker" else "false"
    }
    if all(port.get("name") != "metrics" for port in ray.setdefault("ports", [])):
        ray["ports"].append({"name": "metrics", "containerPort": METRICS})
    memory = {"medium": "Memory", "sizeLimit": ray["resources"].get("limits", {}).get("memory")}
    _empty_dir(spec, ray, "shared-mem", "/dev/shm", memory)  # noqa: S108 - of pods
    for container in spec["containers"]:
        if container["name"] == AUTOSCALER:
            for each in (ray, container):
                _empty_dir(spec, each, "ray-logs", "/tmp/ray", {})  # noqa: S108 - of pods
    command = start_command(kind, options, ray["resources"])
    before = " ".join(f" {word} " for word in (*ray.get("command", []), *ray.get("args", [])))
    start = f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {command}"
    ray |= {"command": ["/bin/bash", "-c", "--"], "args": [f"{before} && {start}" if before else start]}
    for container in spec.get("initContainers", []):
        container["env"] = [*container.get("env", []), *_where(service)]
    _variables(service, ray, kind, command)
    _probes(ray, kind, int(options.get("dashboard-agent-listen-port", AGENT)))
    return PodSpec(f"RayService/{service['metadata']['name']}/{name}", metadata, spec)


def _options(group: dict[str, Any]) -> dict[str, str]:
    """Return options of `ray start`. Sources: updateRayStartParamsResources, updateRayStartParamsLabels,
    setMissingRayStartParams.
    """
    options = dict(group.get("rayStartParams", {}))
    own = {}
    for name, amount in group.get("resources", {}).items():
        known = {"cpu": "num-cpus", "gpu": "num-gpus", "memory": "memory"}.get(name.lower())
        if known:
            options[known] = str(ceil(quantity(amount)))
        else:
            own[name] = quantity(amount)
    if own:
        options["resources"] = f"'{json.dumps(own, separators=(',', ':'))}'"
    if labels := group.get("labels"):
        options["labels"] = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    options.setdefault("metrics-export-port", str(METRICS))
    options.setdefault("dashboard-agent-listen-port", str(AGENT))
    return options | {"block": "true"}


def start_command(kind: str, options: dict[str, str], resources: dict[str, Any]) -> str:
    """Return the command that starts Ray. Sources: generateRayStartCommand, convertParamMap."""
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    options = dict(options)
    if cpu := limits.get("cpu") or requests.get("cpu"):
        options.setdefault("num-cpus", str(ceil(quantity(cpu))))
    if memory := limits.get("memory"):
        options.setdefault("memory", str(ceil(quantity(memory))))
    for name in sorted(limits):
        if name.endswith("gpu") or name.startswith("nvidia.com/mig-"):
            options.setdefault("num-gpus", str(ceil(quantity(limits[name]))))
    flags = []
    for name, value in sorted(options.items()):
        if value.lower() in ("true", "false") and name not in VALUED:
            flags += [f" --{name} "] * (value.lower() == "true")
        else:
            flags.append(f" --{name}={value} ")
    return f"ray start {'--head ' * (kind == 'head')}{''.join(flags)}"


def _labels(service: Object, kind: str, group: str, own: dict[str, str]) -> dict[str, str]:
    """Source: labelPod. Of those below, a pod template may replace some, not the first three."""
    cluster = cluster_name(service)
    fixed = {"ray.io/cluster": cluster, "ray.io/node-type": kind, "ray.io/group": group}
    others = {
        "ray.io/is-ray-node": "yes",
        "ray.io/identifier": f"{cluster}-{kind}"[:63],
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    return others | own | fixed


def _autoscaler(cluster: dict[str, Any], ray: dict[str, Any]) -> dict[str, Any]:
    """Sources: BuildAutoscalerContainer, mergeAutoscalerOverrides."""
    start = "ray kuberay-autoscaler --cluster-name $(RAY_CLUSTER_NAME) --cluster-namespace $(RAY_CLUSTER_NAMESPACE)"
    options = cluster.get("autoscalerOptions", {})
    container: dict[str, Any] = {
        "name": AUTOSCALER,
        "image": options.get("image", ray["image"]),
        "imagePullPolicy": options.get("imagePullPolicy", "IfNotPresent"),
        "env": [
            _field("RAY_CLUSTER_NAME", "metadata.labels['ray.io/cluster']"),
            _field("RAY_CLUSTER_NAMESPACE", "metadata.namespace"),
            _field("RAY_HEAD_POD_NAME", "metadata.name"),
            {"name": "KUBERAY_CRD_VER", "value": "v1"},
            {"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": start},
        ],
        "command": ["/bin/bash", "-c", "--"],
        "args": [start],
        "resources": {part: {"cpu": "500m", "memory": "512Mi"} for part in ("limits", "requests")},
    }
    _token(cluster, container)
    container |= {
        name: options[name] for name in ("resources", "securityContext", "command", "args") if name in options
    }
    container["env"] += options.get("env", [])
    container |= {name: list(options[name]) for name in ("envFrom", "volumeMounts") if name in options}
    return container


def _waiting(service: Object, ray: dict[str, Any]) -> dict[str, Any]:
    """Source: DefaultWorkerPodTemplate. The container that waits has the variables and mounts of the worker's own."""
    address = f"{head_address(service)}:{GCS}"
    look = f"until ray health-check --address {address}; do sleep 5; done"
    container = {"name": WAIT, "image": ray["image"], "command": ["/bin/bash", "-c", "--"], "args": [look]}
    copied = ("imagePullPolicy", "securityContext", "env", "volumeMounts")
    container |= {name: copy.deepcopy(ray[name]) for name in copied if name in ray}
    return container | {"resources": {"limits": dict(AMOUNT), "requests": dict(AMOUNT)}}


def _fault_tolerance(cluster: dict[str, Any], ray: dict[str, Any], notes: dict[str, str]) -> None:
    """Source: configureGCSFaultTolerance, of the head."""
    options = cluster.get("gcsFaultToleranceOptions")
    notes["ray.io/ft-enabled"] = "true" if options else "false"
    if not options:
        return
    notes["ray.io/external-storage-namespace"] = "uid-of-the-cluster"
    _add(ray, "RAY_external_storage_namespace", "uid-of-the-cluster")
    _add(ray, "RAY_REDIS_ADDRESS", options["redisAddress"])
    if password := options.get("redisPassword"):
        ray["env"].append({"name": "REDIS_PASSWORD", **password})


def _token(cluster: dict[str, Any], container: dict[str, Any]) -> None:
    """Source: SetContainerTokenAuthEnvVars."""
    options = cluster.get("authOptions") or {}
    if options.get("mode") == "token":
        _add(container, "RAY_AUTH_MODE", "token")
        reference = {"secretKeyRef": {"name": options["secretName"], "key": "auth_token"}}
        container["env"].append({"name": "RAY_AUTH_TOKEN", "valueFrom": reference})


def _where(service: Object) -> list[dict[str, str]]:
    """Source: setInitContainerEnvVars, and setContainerEnvVars for workers."""
    address = head_address(service)
    return [{"name": "FQ_RAY_IP", "value": address}, {"name": "RAY_IP", "value": address.partition(".")[0]}]


def _variables(service: Object, ray: dict[str, Any], kind: str, command: str) -> None:
    """Source: setContainerEnvVars."""
    address = head_address(service) if kind == "worker" else "127.0.0.1"
    ray.setdefault("env", []).extend(_where(service) if kind == "worker" else [])
    ray["env"] += [
        _field("RAY_CLUSTER_NAME", "metadata.labels['ray.io/cluster']"),
        _field("RAY_CLUSTER_NAMESPACE", "metadata.namespace"),
        _field("RAY_CLOUD_INSTANCE_ID", "metadata.name"),
        _field("RAY_NODE_TYPE_NAME", "metadata.labels['ray.io/group']"),
        {"name": "KUBERAY_GEN_RAY_START_CMD", "value": command},
    ]
    given = {each["name"] for each in ray["env"]}
    for name, value in (
        ("RAY_PORT", str(GCS)),
        ("RAY_timeout_ms_task_wait_for_death_info", "0"),
        ("RAY_gcs_server_request_timeout_seconds", "5"),
        ("RAY_SERVE_KV_TIMEOUT_S", "5"),
        ("RAY_ADDRESS", f"{address}:{GCS}"),
        ("RAY_USAGE_STATS_KUBERAY_IN_USE", "1"),
        ("RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE", "1"),
    ):
        if name not in given:
            _add(ray, name, value)
    if kind == "head":
        _add(ray, "RAY_USAGE_STATS_EXTRA_TAGS", "kuberay_version=v1.7.0;kuberay_crd=RayService")


def _probes(ray: dict[str, Any], kind: str, agent: int) -> None:
    """Source: initLivenessAndReadinessProbe. A pod's own probes stay."""
    check: dict[str, Any] = {"httpGet": {"path": HEALTH, "port": agent}}
    timing = {"timeoutSeconds": 5 if kind == "head" else 2, "periodSeconds": 5, "successThreshold": 1}
    ray.setdefault("livenessProbe", {**check, **timing, "initialDelaySeconds": 30, "failureThreshold": 120})
    failures = 10
    if kind == "worker":
        serve = next((port["containerPort"] for port in ray["ports"] if port.get("name") == "serve"), SERVE)
        words = " && ".join(
            f"wget --tries 1 -T {seconds} -q -O- http://localhost:{port}/{path} | grep success"
            for seconds, port, path in ((2, agent, "api/local_raylet_healthz"), (10, serve, "-/healthz"))
        )
        check, failures = {"exec": {"command": ["bash", "-c", words]}}, 1
    ray.setdefault("readinessProbe", {**check, **timing, "initialDelaySeconds": 10, "failureThreshold": failures})


def _empty_dir(spec: dict[str, Any], container: dict[str, Any], name: str, path: str, source: dict[str, Any]) -> None:
    """Source: addEmptyDir. A path that is mounted already stays."""
    if any(mount["mountPath"] == path for mount in container.setdefault("volumeMounts", [])):
        return
    volumes = spec.setdefault("volumes", [])
    if all(volume["name"] != name for volume in volumes):
        volumes.append({"name": name, "emptyDir": {key: value for key, value in source.items() if value}})
    container["volumeMounts"].append({"name": name, "mountPath": path})


def _add(container: dict[str, Any], name: str, value: str) -> None:
    variables = container.setdefault("env", [])
    if all(each["name"] != name for each in variables):
        variables.append({"name": name, "value": value})


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def quantity(text: str | float) -> float:
    """Read a quantity of Kubernetes."""
    text = str(text)
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * UNITS.get(unit, 1)
