"""Network policies: every edge that the configuration makes is allowed, and none else into the parts behind routers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.k8s.charts import Object, of_kind, one
from tests.k8s.view import PodSpec, pods, selected, settings_toml

DNS_PORT = 53
NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Edge:
    """One connection. An end is a kind of pod, the name of another namespace, or "" for any address outside."""

    source: PodSpec | str
    target: PodSpec | str
    port: int

    def __str__(self) -> str:
        ends = [end.owner if isinstance(end, PodSpec) else f"namespace {end!r}" for end in (self.source, self.target)]
        return f"{ends[0]} -> {ends[1]}:{self.port}"


def edges_are_allowed(objects: list[Object]) -> list[str]:
    """Whatever the configuration makes somebody connect to is allowed at both ends."""
    return [f"{edge} is denied" for edge in edges(objects) if not allowed(objects, edge)]


def other_edges_are_denied(objects: list[Object]) -> list[str]:
    """A stranger reaches nothing but the routers' public port."""
    if not of_kind(objects, "NetworkPolicy"):
        return []
    found = []
    for pod in pods(objects):
        for name, port in pod.ports().items():
            public = pod.component == "router" and name in ("grpc", "http")
            if not public and allowed(objects, Edge("", pod, port)):
                found.append(f"anybody reaches {pod.owner}:{port}")
            if pod.component.startswith("redis") and allowed(objects, Edge("apps", pod, port)):
                found.append(f"other namespaces reach {pod.owner}:{port}")
    return found


def edges(objects: list[Object]) -> Iterator[Edge]:
    """Derive the connections from addresses in pods, from Ray's shape, from monitors and the operator's work."""
    by = {pod.component: [each for each in pods(objects) if each.component == pod.component] for pod in pods(objects)}
    heads, workers, routers = by["ray-head"], by["ray-worker"], by["router"]
    collector = settings_toml(objects).get("telemetry", {}).get("otlp_endpoint", "")
    for pod in pods(objects):
        yield Edge(pod, "kube-system", DNS_PORT)
        if collector and pod.component in ("router", "ray-worker", "autoscaler"):
            yield Edge(pod, "monitoring", int(collector.rpartition(":")[2]))
        yield from _named(objects, pod)
        if any(each.get("command", [])[-2:] == ["weights", "fetch"] for each in pod.containers()):
            yield Edge(pod, "", 443)
    for worker in workers:
        yield from (Edge(router, worker, worker.ports()["replica"]) for router in routers)
        # Any port: Ray picks them.
        yield from (Edge(a, b, 34_567) for a in (*heads, *workers) for b in (*heads, *workers))
    for autoscaler in by.get("autoscaler", []):
        yield from (Edge(autoscaler, head, head.ports()["dashboard"]) for head in heads)
    # The Ingress controller of the scenarios.
    for each in of_kind(objects, "Ingress"):
        backend = each["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        for service in of_kind(objects, "Service"):
            if service["metadata"]["name"] == backend["name"]:
                behind = selected(objects, service["spec"]["selector"])
                yield from (Edge("ingress-nginx", pod, pod.ports()[backend["port"]["name"]]) for pod in behind)
    policy = of_kind(objects, "NetworkPolicy", "-ray-head")
    yield from (Edge("kuberay-operator", head, head.ports()["dashboard"]) for head in heads if policy)
    yield from (Edge("apps", router, router.ports()["grpc"]) for router in routers if not _closed(objects))
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    if cluster["enableInTreeAutoscaling"]:
        yield from (Edge(head, "", 443) for head in heads)
    if "kubernetes" in settings_toml(objects).get("auth", {}).get("jwt", {}):
        yield from (Edge(router, "", 443) for router in routers)
    if gcs := cluster.get("gcsFaultToleranceOptions"):
        yield from (edge for head in heads for edge in _to_address(objects, head, gcs["redisAddress"]))
    yield from _scrapes(objects)


def _closed(objects: list[Object]) -> bool:
    """Say whether routers name their clients."""
    policies = of_kind(objects, "NetworkPolicy", "-router")
    return bool(policies) and "from" in policies[0]["spec"]["ingress"][0]


def _named(objects: list[Object], pod: PodSpec) -> Iterator[Edge]:
    for container in pod.containers():
        texts = [str(each.get("value", "")) for each in container.get("env", [])] + container.get("args", [])
        for text in texts:
            if "://" in text or text.startswith("--target="):
                yield from _to_address(objects, pod, text)


def _to_address(objects: list[Object], source: PodSpec, text: str) -> Iterator[Edge]:
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    for host, number in re.findall(r"([a-z0-9][a-z0-9.-]*):(\d+)", text):
        if host not in services:
            yield Edge(source, "", int(number))
            continue
        (target,) = [p for p in services[host]["spec"]["ports"] if p["port"] == int(number)] or [None]
        for pod in selected(objects, services[host]["spec"]["selector"]) if target else []:
            yield Edge(source, pod, pod.ports().get(target["targetPort"], 0))


def _scrapes(objects: list[Object]) -> Iterator[Edge]:
    for monitor in of_kind(objects, "PodMonitor"):
        for pod in selected(objects, monitor["spec"]["selector"]["matchLabels"]):
            for end in monitor["spec"]["podMetricsEndpoints"]:
                yield Edge("monitoring", pod, pod.ports()[end["port"]])
    for monitor in of_kind(objects, "ServiceMonitor"):
        for pod in selected(objects, monitor["spec"]["selector"]["matchLabels"]):
            for end in monitor["spec"]["endpoints"]:
                yield Edge("monitoring", pod, pod.ports()[end["port"]])


def allowed(objects: list[Object], edge: Edge) -> bool:
    """Say what an enforcing network plugin would."""
    return _passes(objects, edge.source, edge, "Egress") and _passes(objects, edge.target, edge, "Ingress")


def _passes(objects: list[Object], end: PodSpec | str, edge: Edge, direction: str) -> bool:
    if isinstance(end, str):
        return True
    policies = [
        each["spec"]
        for each in of_kind(objects, "NetworkPolicy")
        if direction in each["spec"]["policyTypes"]
        and each["spec"]["podSelector"].get("matchLabels", {}).items() <= end.labels.items()
    ]
    rules = [rule for policy in policies for rule in policy.get(direction.lower()) or []]
    return not policies or any(_rule_allows(rule, edge, direction) for rule in rules)


def _rule_allows(rule: dict[str, Any], edge: Edge, direction: str) -> bool:
    other = edge.target if direction == "Egress" else edge.source
    peers = rule.get("to" if direction == "Egress" else "from")
    if "ports" in rule and not any(_same_port(port["port"], edge) for port in rule["ports"]):
        return False
    return not peers or any(_is_peer(peer, other) for peer in peers)


def _same_port(port: int | str, edge: Edge) -> bool:
    if isinstance(port, str):
        # Named ports are those of the target.
        return isinstance(edge.target, PodSpec) and edge.target.ports().get(port) == edge.port
    return port == edge.port


def _is_peer(peer: dict[str, Any], end: PodSpec | str) -> bool:
    if isinstance(end, PodSpec):
        labels = peer.get("podSelector", {}).get("matchLabels", {})
        return "podSelector" in peer and "namespaceSelector" not in peer and labels.items() <= end.labels.items()
    if end:
        return peer.get("namespaceSelector", {}).get("matchLabels", {}).get(NAMESPACE) == end
    return "ipBlock" in peer
