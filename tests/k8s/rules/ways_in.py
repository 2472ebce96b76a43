"""Ways in: Services, Ingresses, and routes of gateways, over TLS where routers speak it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.k8s.charts import Object, of_kind, one
from tests.k8s.view import settings_toml

NGINX = "nginx.ingress.kubernetes.io/backend-protocol"
ROUTES = ("GRPCRoute", "HTTPRoute")
PROTOCOLS = {("grpc", False): "GRPC", ("grpc", True): "GRPCS", ("http", False): "HTTP", ("http", True): "HTTPS"}


def ways_lead_to_the_right_port(objects: list[Object]) -> list[str]:
    """A route or Ingress leads to a port that its Service has, of the API that it is for."""
    found = []
    for owner, service, port, api in _ways(objects):
        known = {each["name"]: each["port"] for each in service["spec"]["ports"]} if service else {}
        if port not in (*known, *known.values()):
            found.append(f"{owner}: its Service has no port {port}, but {known}")
        elif api and known.get(api) != known.get(port, port):
            found.append(f"{owner}: port {port} is not that of the {api} API")
    return found


def tls_is_spoken_to_those_who_speak_it(objects: list[Object]) -> list[str]:
    """Whoever stands before routers with TLS speaks TLS to them, and knows whose certificate to expect."""
    tls = "tls" in settings_toml(objects)["router"]
    found = [*_ingresses_and_tls(objects, tls), *_routes_and_tls(objects, tls)]
    for service in of_kind(objects, "Service"):
        for port in service["spec"]["ports"]:
            if tls and port["name"] in ("grpc", "http") and "appProtocol" in port:
                found.append(f"Service/{service['metadata']['name']}: {port['appProtocol']} is no TLS")
    return found


def _ingresses_and_tls(objects: list[Object], tls: bool) -> Iterator[str]:
    for each in of_kind(objects, "Ingress"):
        service, port = _backend(objects, each)
        if service is None or (port, tls) not in PROTOCOLS:
            continue
        given = each["metadata"].get("annotations", {}).get(NGINX)
        if given != PROTOCOLS[port, tls]:
            yield f"Ingress/{each['metadata']['name']}: {given} to {PROTOCOLS[port, tls]}"


def _routes_and_tls(objects: list[Object], tls: bool) -> Iterator[str]:
    policies = of_kind(objects, "BackendTLSPolicy")
    covered = {ref["name"] for policy in policies for ref in policy["spec"]["targetRefs"]}
    routes = [route for kind in ROUTES for route in of_kind(objects, kind)]
    for route in routes:
        for name in [ref["name"] for rule in route["spec"]["rules"] for ref in rule["backendRefs"]]:
            if tls != (name in covered):
                yield f"{route['kind']}/{route['metadata']['name']}: {name} has TLS: {tls}"
    names = {name for each in of_kind(objects, "Certificate", "-router") for name in each["spec"].get("dnsNames", [])}
    for policy in policies:
        expected = policy["spec"]["validation"]["hostname"]
        if names and expected not in names:
            yield f"{policy['metadata']['name']}: {expected} is in no certificate"


def one_name_leads_to_one_api(objects: list[Object]) -> list[str]:
    """Gateways refuse two kinds of routes for one name, and an Ingress has one backend for a path."""
    found = []
    seen: dict[tuple[str, str], str] = {}
    for kind in ROUTES:
        for route in of_kind(objects, kind):
            for parent in route["spec"]["parentRefs"]:
                for host in route["spec"].get("hostnames", ["*"]):
                    if (other := seen.setdefault((str(parent), host), kind)) != kind:
                        found.append(f"{host} is of a {other} and of a {kind}")
    hosts: dict[tuple[str, str], str] = {}
    for each in of_kind(objects, "Ingress"):
        for rule in each["spec"]["rules"]:
            key = (each["spec"].get("ingressClassName", ""), rule["host"])
            if (owner := hosts.setdefault(key, each["metadata"]["name"])) != each["metadata"]["name"]:
                found.append(f"{rule['host']} is of {owner} and of {each['metadata']['name']}")
    return found


def families_agree(objects: list[Object]) -> list[str]:
    """A Service asks for no more families than its policy allows, and in a cluster with IPv6 Ray listens there."""
    found = []
    families = set()
    having = [each for each in of_kind(objects, "Service") if "ipFamilies" in each["spec"]]
    if having and len(having) != len(of_kind(objects, "Service")):
        found.append(f"Services without families: {len(of_kind(objects, 'Service')) - len(having)}")
    for each in of_kind(objects, "Service"):
        own = each["spec"].get("ipFamilies", [])
        families |= set(own)
        if len(own) > 1 and each["spec"].get("ipFamilyPolicy", "SingleStack") == "SingleStack":
            found.append(f"Service/{each['metadata']['name']}: {own} with one stack")
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    host = cluster["headGroupSpec"]["rayStartParams"]["dashboard-host"]
    if f"host: '{host}'" not in (config := one(objects, "RayService")["spec"]["serveConfigV2"]) and (
        f"host: {host}" not in config and f'host: "{host}"' not in config
    ):
        found.append(f"Serve's proxies don't listen on {host}, as Ray's head does")
    router = settings_toml(objects)["router"]
    if families and router["host"] != "::":
        found.append(f"routers listen on {router['host']}, and Services have {sorted(families)}")
    return found


def _ways(objects: list[Object]) -> Iterator[tuple[str, Object | None, Any, str]]:
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    for kind, api in zip(ROUTES, ("grpc", "http"), strict=True):
        for route in of_kind(objects, kind):
            for rule in route["spec"]["rules"]:
                for ref in rule["backendRefs"]:
                    yield f"{kind}/{route['metadata']['name']}", services.get(ref["name"]), ref["port"], api
    for each in of_kind(objects, "Ingress"):
        service, port = _backend(objects, each)
        protocol = each["metadata"].get("annotations", {}).get(NGINX, "")
        api = "grpc" if protocol.startswith("GRPC") else "http" if port != "page" else ""
        yield f"Ingress/{each['metadata']['name']}", service, port, api


def _backend(objects: list[Object], ingress: Object) -> tuple[Object | None, str]:
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    found = [each for each in of_kind(objects, "Service") if each["metadata"]["name"] == backend["name"]]
    return (found[0] if found else None), backend["port"]["name"]
