"""Names and labels that must meet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.k8s.charts import Object, of_kind
from tests.k8s.kuberay.pods import AGENT
from tests.k8s.view import PodSpec, pods, selected

SCALABLE = ("Deployment", "StatefulSet")


def selectors_find_pods(objects: list[Object]) -> list[str]:
    """Every selector finds pods, and a workload's finds its own and no other's."""
    found = []
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        labels = _selector(each)
        if labels is None:
            continue
        hits = selected(objects, labels)
        if not hits:
            found.append(f"{name}: {labels} finds no pod")
        if each["kind"] in SCALABLE and [name] != [pod.owner for pod in hits]:
            found.append(f"{name}: {labels} finds {[pod.owner for pod in hits]}")
    for pod in pods(objects):
        for spread in pod.spec.get("topologySpreadConstraints", []):
            if not spread["labelSelector"]["matchLabels"].items() <= pod.labels.items():
                found.append(f"{pod.owner}: spreads over other pods")
    return found


def _selector(each: Object) -> dict[str, str] | None:
    spec = each.get("spec", {})
    match each["kind"]:
        case "Service":
            return spec.get("selector")
        case "Deployment" | "StatefulSet" | "PodDisruptionBudget" | "PodMonitor":
            return spec["selector"]["matchLabels"]
        case "NetworkPolicy":
            return spec["podSelector"].get("matchLabels", {})
    return None


def services_reach_ports(objects: list[Object]) -> list[str]:
    """A Service's target ports, and a monitor's, are ports of the pods behind it."""
    found = []
    for service in of_kind(objects, "Service"):
        for pod in selected(objects, service["spec"]["selector"]):
            known = pod.ports()
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in (*known, *known.values()):
                    found.append(f"Service/{service['metadata']['name']}: {pod.owner} has no port {port['targetPort']}")
    for monitor in of_kind(objects, "PodMonitor"):
        for pod in selected(objects, monitor["spec"]["selector"]["matchLabels"]):
            wanted = {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]}
            found += [f"PodMonitor: {pod.owner} has no port {name}" for name in sorted(wanted - pod.ports().keys())]
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = {end["port"] for end in monitor["spec"]["endpoints"]}
        services = [
            each
            for each in of_kind(objects, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        ]
        offered = {port["name"] for each in services for port in each["spec"]["ports"]}
        found += [f"ServiceMonitor/{monitor['metadata']['name']}: no Service has {name}" for name in wanted - offered]
    for pod in pods(objects):
        for container in pod.containers():
            for port in _probe_ports(container):
                if port not in (*pod.ports(), *pod.ports().values(), *_undeclared(pod)):
                    found.append(f"{pod.owner}: a probe asks port {port}, which it has not")
    return found


def _undeclared(pod: PodSpec) -> tuple[int, ...]:
    """Return ports that Ray opens beside those that the pod declares."""
    return (AGENT,) if pod.component == "ray-worker" else ()


def _probe_ports(container: dict[str, Any]) -> Iterator[Any]:
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        for action in ("httpGet", "tcpSocket", "grpc"):
            if action in (probe := container.get(kind, {})):
                yield probe[action]["port"]


def addresses_are_services(objects: list[Object]) -> list[str]:
    """Whoever names one of our Services with a port names one that exists, with that port."""
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    (ray,) = of_kind(objects, "RayService")
    full = ray["metadata"]["name"]
    texts = [(pod.owner, text) for pod in pods(objects) for text in _texts(pod)]
    gcs = ray["spec"]["rayClusterConfig"].get("gcsFaultToleranceOptions")
    if gcs:
        texts.append(("RayService", gcs["redisAddress"]))
    found = []
    for owner, text in texts:
        for name, port in re.findall(rf"\b({full}-[a-z-]+):([0-9]+)\b", text):
            known = [p["port"] for p in services[name]["spec"]["ports"]] if name in services else None
            if known is None or int(port) not in known:
                found.append(f"{owner}: {name}:{port} is no Service (ports {known})")
    return found


def _texts(pod: PodSpec) -> Iterator[str]:
    for container in pod.containers():
        yield from (str(each.get("value", "")) for each in container.get("env", []))
        yield from container.get("args", [])


def volumes_are_there(objects: list[Object]) -> list[str]:
    """Every mount has its volume, every volume is mounted, and ConfigMaps exist with their keys."""
    found = []
    maps = {each["metadata"]["name"]: each.get("data", {}) for each in of_kind(objects, "ConfigMap")}
    claims = {
        f"StatefulSet/{each['metadata']['name']}": {c["metadata"]["name"] for c in each["spec"]["volumeClaimTemplates"]}
        for each in of_kind(objects, "StatefulSet")
    }
    for pod in pods(objects):
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
        mounts = [mount for container in pod.containers() for mount in container.get("volumeMounts", [])]
        there = volumes.keys() | claims.get(pod.owner, set())
        if there != {mount["name"] for mount in mounts}:
            found.append(f"{pod.owner}: volumes {sorted(there)}, mounted {sorted({m['name'] for m in mounts})}")
        for volume in volumes.values():
            if (source := volume.get("configMap")) is None:
                continue
            if (data := maps.get(source["name"])) is None:
                found.append(f"{pod.owner}: there is no ConfigMap {source['name']}")
                continue
            wanted = {m["subPath"] for m in mounts if m["name"] == volume["name"] and "subPath" in m}
            found += [f"{pod.owner}: ConfigMap {source['name']} has no {key}" for key in sorted(wanted - data.keys())]
    return found


def targets_exist(objects: list[Object]) -> list[str]:
    """What points at an object by kind and name points at one of these."""
    known = {(each["kind"], each["metadata"]["name"]) for each in objects}
    found = []
    for each in objects:
        for kind, name in _targets(each):
            if (kind, name) not in known:
                found.append(f"{each['kind']}/{each['metadata']['name']}: there is no {kind}/{name}")
    return found


def _targets(each: Object) -> Iterator[tuple[str, str]]:
    match each["kind"]:
        case "HorizontalPodAutoscaler":
            yield each["spec"]["scaleTargetRef"]["kind"], each["spec"]["scaleTargetRef"]["name"]
        case "GRPCRoute" | "HTTPRoute":
            yield from (("Service", ref["name"]) for rule in each["spec"]["rules"] for ref in rule["backendRefs"])
        case "Ingress":
            paths = (path for rule in each["spec"]["rules"] for path in rule["http"]["paths"])
            yield from (("Service", path["backend"]["service"]["name"]) for path in paths)
        case "BackendTrafficPolicy" | "BackendTLSPolicy":
            yield from ((ref["kind"], ref["name"]) for ref in each["spec"]["targetRefs"])
        case "RoleBinding":
            yield each["roleRef"]["kind"], each["roleRef"]["name"]
            yield from ((subject["kind"], subject["name"]) for subject in each["subjects"])
        case "StatefulSet":
            yield "Service", each["spec"]["serviceName"]
        case "Certificate" if each["spec"]["issuerRef"]["kind"] == "Issuer":
            yield "Issuer", each["spec"]["issuerRef"]["name"]


def scaled_deployments_fix_no_replicas(objects: list[Object]) -> list[str]:
    """A number of replicas beside an autoscaler would undo its work at every upgrade."""
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in of_kind(objects, "HorizontalPodAutoscaler")}
    return [
        f"Deployment/{each['metadata']['name']} fixes replicas, and is scaled"
        for each in of_kind(objects, "Deployment")
        if each["metadata"]["name"] in scaled and "replicas" in each["spec"]
    ]


def service_accounts_exist(objects: list[Object]) -> list[str]:
    """Every pod that names a service account names one of these."""
    known = {each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount")}
    return [
        f"{pod.owner}: there is no ServiceAccount {name}"
        for pod in pods(objects)
        if (name := pod.spec.get("serviceAccountName")) is not None and name not in known
    ]


def secrets_are_there(objects: list[Object], contract: dict[str, set[str]]) -> list[str]:
    """Every secret that is used is made here, or is one that the operator was asked for, with that key.

    Args:
        objects: all objects.
        contract: keys of the secrets that must exist beforehand, by name.
    """
    known = {each["metadata"]["name"]: set(each["data"]) for each in of_kind(objects, "Secret")}
    for certificate in of_kind(objects, "Certificate"):
        known[certificate["spec"]["secretName"]] = {"tls.crt", "tls.key", "ca.crt"}
    found = []
    for user, name, key in _uses(objects):
        keys = known.get(name, contract.get(name))
        if keys is None or (key is not None and key not in keys):
            found.append(f"{user}: secret {name} with {key} is neither made nor asked for")
    return found


def _uses(objects: list[Object]) -> Iterator[tuple[str, str, str | None]]:
    for pod in pods(objects):
        for container in pod.containers():
            for each in container.get("env", []):
                if (ref := each.get("valueFrom", {}).get("secretKeyRef")) and not ref.get("optional"):
                    yield pod.owner, ref["name"], ref["key"]
        for volume in pod.spec.get("volumes", []):
            if source := volume.get("secret"):
                for key in [item["key"] for item in source.get("items", [])] or [None]:
                    yield pod.owner, source["secretName"], key
    for service in of_kind(objects, "RayService"):
        cluster = service["spec"]["rayClusterConfig"]
        yield "RayService", cluster["authOptions"]["secretName"], "auth_token"
        if gcs := cluster.get("gcsFaultToleranceOptions"):
            ref = gcs["redisPassword"]["valueFrom"]["secretKeyRef"]
            yield "RayService", ref["name"], ref["key"]
