"""The chart's values.schema.json, made from values.yaml: types from the defaults, descriptions from the comments."""

from __future__ import annotations

import re
from typing import Any

import yaml

from cluster.settings import Settings
from cluster.settings.auth import IssuerSettings
from cluster.settings.pools import PoolSettings
from cluster.settings.tree import AutoscalerSettings
from k8s.render.settings_schema import schema_of

COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
POSITIVE: dict[str, Any] = {"type": "integer", "minimum": 1}
HOSTS: dict[str, Any] = {"type": "array", "items": {"type": "string", "pattern": "^[^\\s@/,]+:[0-9]+$"}}
PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
DIGEST: dict[str, Any] = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
QUANTITY: dict[str, Any] = {"type": ["string", "integer"], "pattern": "^[0-9]+(\\.[0-9]+)?(m|[kKMGTPE]i?)?$"}
MEMORY: dict[str, Any] = {"type": ["string", "integer"], "pattern": "^([0-9]+(\\.[0-9]+)?(k|[MGT]|[KMGT]i)?)?$"}
DURATION: dict[str, Any] = {"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?(h|m|s|ms))+$"}
FREE: dict[str, Any] = {"type": "object"}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
"""Labels, annotations and the like. An API server refuses numbers and flags in them: YAML needs quotes, --set
--set-string."""
PULL_SECRET: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}]
}
_POOL = schema_of(PoolSettings)
_SETTINGS = schema_of(
    Settings,
    without=[
        *("pools", "auth", "autoscaler", "redis.url"),
        *(f"cluster.{name}" for name in ("secret_file", "state_dir", "log_format", "ray_address")),
        *(f"replica.{name}" for name in ("host", "drain_s", "port", "metrics_port", "tls")),
        *(f"router.{name}" for name in ("host", "port", "metrics_port", "processes", "drain_s", "tls")),
        "router.http.port",
    ],
)
SELECTED_BY = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/part-of",
    "penstock.io/pool",
)
NODE_PORT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 65535}
TRAFFIC: dict[str, Any] = {"enum": ["", "Cluster", "Local"]}
CIDRS: dict[str, Any] = {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]+$"}}
FAMILIES: dict[str, dict[str, Any]] = {
    "ipFamilyPolicy": {"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]},
    "ipFamilies": {"type": "array", "items": {"enum": ["IPv4", "IPv6"]}, "maxItems": 2, "uniqueItems": True},
}
SERVICE: dict[str, dict[str, Any]] = {
    "type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "port": PORT,
    "nodePort": NODE_PORT,
    "healthCheckNodePort": NODE_PORT,
    "loadBalancerSourceRanges": CIDRS,
    "externalTrafficPolicy": TRAFFIC,
    "internalTrafficPolicy": TRAFFIC,
    "sessionAffinity": {"enum": ["", "None", "ClientIP"]},
    "sessionAffinitySeconds": {"type": "integer", "minimum": 0, "maximum": 86400},
    "externalIPs": {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+$"}},
    "trafficDistribution": {"enum": ["", "PreferClose", "PreferSameZone", "PreferSameNode"]},
    "labels": TEXTS | {"properties": dict.fromkeys(SELECTED_BY, False)},
    **FAMILIES,
}
"""Fields of a Service."""
SERVICES = ("router.service", "router.http.service", "console.service")
SPREAD: dict[str, Any] = {"enum": ["DoNotSchedule", "ScheduleAnyway"]}
NAMED: dict[str, Any] = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
LISTS: dict[str, dict[str, Any]] = {
    "env": NAMED | {"properties": {name: {"type": "string"} for name in ("name", "value")}},
    "volumes": NAMED,
    "volumeMounts": {
        "type": "object",
        "required": ["name", "mountPath"],
        "properties": {name: {"type": "string"} for name in ("name", "mountPath")},
    },
    "initContainers": NAMED,
    "containers": NAMED,
    "resourceClaims": NAMED,
    **{name: {"type": "object"} for name in ("envFrom", "tolerations", "topologySpreadConstraints", "hostAliases")},
}
"""Items of the lists that pods have, by the list's name."""

LIMITS: dict[str, dict[str, Any]] = {
    # Pods would get these instead of the labels that policies, budgets and Services select by.
    "commonLabels": TEXTS | {"properties": dict.fromkeys(SELECTED_BY, False)},
    "pods.labels": TEXTS | {"properties": dict.fromkeys(SELECTED_BY, False)},
    "ray.labels": TEXTS | {"properties": dict.fromkeys(SELECTED_BY, False)},
    **{
        f"{section}.labels": TEXTS | {"properties": dict.fromkeys(SELECTED_BY, False)}
        for section in ("gateway", "router.ingress", "router.http.ingress", "console.ingress")
    },
    "monitoring.labels": TEXTS | {"properties": dict.fromkeys(SELECTED_BY, False)},
    "monitoring.dashboards.labels": TEXTS | {"properties": dict.fromkeys(SELECTED_BY, False)},
    "pods.securityContext": {"type": ["object", "null"]},
    "pods.containerSecurityContext": {"type": ["object", "null"]},
    "ray.autoscaler.containerSecurityContext": {"type": ["object", "null"]},
    "nameOverride": {"type": "string", "maxLength": 40, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"},
    "fullnameOverride": {"type": "string", "maxLength": 40, "pattern": "^([a-z]([-a-z0-9]*[a-z0-9])?)?$"},
    "images.*.digest": DIGEST,
    "images.*.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "pools.*.settings": _POOL,
    "pools.*.device": {"enum": ["cpu", "gpu"]},
    "pools.*.image.digest": DIGEST,
    "pools.*.image.pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
    "pools.*.workers.order": {"type": "integer", "minimum": 0, "maximum": 999_999},
    "pools.*.workers.min": COUNT,
    "pools.*.workers.max": POSITIVE,
    "pools.*.workers.sharedMemory": QUANTITY,
    "pools.*.weights.volume": {"enum": ["", "emptyDir", "existingClaim", "newClaim", "ephemeral", "image"]},
    "pools.*.weights.accessMode": {
        "enum": ["", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce", "ReadWriteOncePod"],
    },
    "pools.*.weights.size": QUANTITY | {"pattern": f"^$|{QUANTITY['pattern']}"},
    "pools.*.weights.image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "pools.*.weights.download.also": {
        "type": "array",
        "items": {"type": "string", "pattern": "^[\\w][\\w.-]*(/[\\w.-]+)?(@[\\w-][\\w.-]*(/[\\w-][\\w.-]*)*)?$"},
    },
    **{
        f"pools.*.weights.download.{name}": {"type": "array", "items": {"type": "string", "minLength": 1}}
        for name in ("include", "exclude")
    },
    "pools.*.weights.download.parallel": {"type": "integer", "minimum": 1, "maximum": 64},
    "pools.*.weights.download.giveUpAfterSeconds": POSITIVE,
    "pools.*.weights.download.waitSeconds": POSITIVE,
    "pools.*.weights.objectStore.endpoint": {"type": "string", "pattern": "^(https?://[^\\s/@]+/?)?$"},
    "ray.dashboardHost": {"enum": ["0.0.0.0", "::"]},  # noqa: S104 - Ray's word
    "networkPolicy.apiServer.cidrs": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "router.replicas": POSITIVE,
    "router.drainSeconds": COUNT,
    "router.preStopSeconds": POSITIVE,
    "router.hpa.min": POSITIVE,
    "router.hpa.max": POSITIVE,
    "router.hpa.cpuPercent": {"type": "integer", "minimum": 1, "maximum": 100},
    "router.hpa.openCallsPerPod": COUNT,
    "router.pdb.maxUnavailable": {"type": ["integer", "string"], "minimum": 1, "pattern": "^[1-9][0-9]{0,2}%$"},
    "router.spreadOverNodes": SPREAD,
    **{f"{service}.{name}": limit for service in SERVICES for name, limit in SERVICE.items()},
    **{f"services.{name}": limit for name, limit in FAMILIES.items()},
    "router.http.port": PORT,
    "gateway.http.timeout": {"type": "string", "pattern": "^(([0-9]{1,5}(h|m|s|ms)){1,4})?$"},
    "gateway.backendTls.caCertificateRefs": {
        "type": "array",
        "maxItems": 8,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {name: {"type": "string"} for name in ("group", "kind", "name")},
            "additionalProperties": False,
        },
    },
    "autoscaler.replicas": POSITIVE,
    "autoscaler.metricsPort": PORT,
    "console.replicas": POSITIVE,
    "replica.drainSeconds": COUNT,
    "replica.port": PORT,
    "replica.metricsPort": PORT,
    "ray.version": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"},
    "ray.clusterDeletionDelaySeconds": COUNT,
    "ray.upgradeStrategy": {"enum": ["NewCluster", "NewClusterWithIncrementalUpgrade", "None"]},
    "ray.initializingTimeout": DURATION,
    "ray.autoscaler.idleTimeoutSeconds": COUNT,
    "ray.modelCache.sizeLimit": QUANTITY,
    "ray.gcsFaultTolerance.address": {"type": "string", "pattern": "^(\\S+:[0-9]+)?$"},
    "redis.storage": QUANTITY,
    "gcsRedis.storage": QUANTITY,
    "redis.maxMemory": MEMORY,
    "gcsRedis.maxMemory": MEMORY,
    "externalRedis.mode": {"enum": ["url", "sentinel", "cluster"]},
    "externalRedis.url": {"type": "string", "pattern": "^(rediss?://[^@]+)?$"},
    "externalRedis.sentinel.database": COUNT,
    "externalRedis.sentinel.hosts": HOSTS,
    "externalRedis.cluster.hosts": HOSTS,
    "externalRedis.ports": {"type": "array", "items": PORT, "minItems": 1},
    "networkPolicy.dnsPorts": {"type": "array", "items": PORT, "minItems": 1},
    "networkPolicy.modelSourcePorts": {"type": "array", "items": PORT, "minItems": 1},
    "networkPolicy.issuerPorts": {"type": "array", "items": PORT, "minItems": 1},
    "imagePullSecrets": {"type": "array", "items": PULL_SECRET},
    "pools.*.workers.accelerator": {"type": "string", "pattern": "^([a-z0-9.-]+/[A-Za-z0-9._-]+)?$"},
    "networkPolicy.apiServer.ports": {"type": "array", "items": PORT, "minItems": 1},
    "monitoring.interval": DURATION,
    "gateway.streamIdleTimeout": {"type": "string", "pattern": f"{DURATION['pattern']}|^$"},
    "certificates.duration": DURATION,
    "certificates.renewBefore": DURATION,
    # The chart has values of its own for these, or sets them itself. A second place would be ignored without a message.
    "settings": _SETTINGS,
    "auth.jwt": {"type": "object", "additionalProperties": schema_of(IssuerSettings)},
    "auth.serviceAccounts.settings": schema_of(
        IssuerSettings, without=("issuer", "audiences", "jwks_url", "jwks_file", "ca_file", "token_file")
    ),
    "autoscaler.settings": schema_of(AutoscalerSettings, without=("host", "port", "token_file")),
}
FREE_MAPS = frozenset({
    "auth.jwt", "auth.serviceAccounts.settings",
    "commonLabels", "settings", "pools.*.settings", "autoscaler.settings",
    "monitoring.labels", "monitoring.dashboards.labels", "ray.labels", "gateway.labels",
    "router.ingress.labels", "router.http.ingress.labels", "console.ingress.labels",
})  # fmt: skip
FREE_NAMES = frozenset({"resources", "affinity", "dnsConfig", "pod"})
NAMED_MAPS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("nodeSelector", "podAnnotations", "annotations"), TEXTS),
    "digests": {"type": "object", "additionalProperties": DIGEST},
}
"""Maps with any keys, by their name."""
_KEY = re.compile(r"^( *)([A-Za-z0-9_.-]+):(?: |$)")


def values_schema(text: str) -> dict[str, Any]:
    """Build the schema of a commented values.yaml."""
    comments = comments_of(text)
    schema = _describe(yaml.safe_load(text), (), comments)
    pools = schema["properties"]["pools"]
    pool = pools.pop("properties")["demo"]
    name = {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"}
    # A pool of the defaults can be removed with null. A list of alternatives would hide what is wrong in a pool.
    pool["type"] = ["object", "null"]
    pools |= {"propertyNames": name, "additionalProperties": pool, "minProperties": 1}
    fields = schema["properties"]["pods"]["properties"]
    _same_pods(schema, {name: field for name, field in fields.items() if name != "fixedUser"})
    _same_pods(pool, schema["properties"]["router"]["properties"]["pod"]["properties"])
    pool["required"] = ["settings", "device", "workers"]
    pool["properties"]["workers"]["required"] = ["min", "max", "resources"]
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the Penstock chart", **schema}


def _same_pods(schema: dict[str, Any], fields: dict[str, Any]) -> None:
    """Give every `pod` the fields of `pods`."""
    for name, inner in schema.get("properties", {}).items():
        if name == "pod":
            inner |= {"properties": fields, "additionalProperties": False}
        elif isinstance(inner, dict):
            _same_pods(inner, fields)


def comments_of(text: str) -> dict[tuple[str, ...], str]:
    """Return the comment lines above each key, by the key's path."""
    comments: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    held: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            held.append(line.strip().lstrip("# "))
        elif match := _KEY.match(line):
            indent = len(match.group(1))
            path = [(depth, key) for depth, key in path if depth < indent] + [(indent, match.group(2))]
            if held:
                comments[tuple(key for _, key in path)] = " ".join(held)
            held = []
        else:
            held = []
    return comments


def pattern_of(path: tuple[str, ...]) -> str:
    """Return a path in which user-chosen names are replaced by *."""
    parts = ["*" if i == 1 and path[0] in ("pools", "images") else part for i, part in enumerate(path)]
    return ".".join(parts)


def _describe(value: Any, path: tuple[str, ...], comments: dict[tuple[str, ...], str]) -> dict[str, Any]:
    pattern = pattern_of(path)
    found: dict[str, Any] = {}
    if path in comments:
        found["description"] = comments[path]
    if pattern in LIMITS:
        return found | LIMITS[pattern]
    if path[-1:] and path[-1] in NAMED_MAPS:
        return found | NAMED_MAPS[path[-1]]
    if isinstance(value, dict):
        found["type"] = "object"
        if (pattern not in FREE_MAPS and path[-1:] and path[-1] not in FREE_NAMES) or not path:
            found["properties"] = {key: _describe(item, (*path, key), comments) for key, item in value.items()}
            found["additionalProperties"] = False
            # What is null in the values is not there.
            found["required"] = [key for key, item in value.items() if _is_needed((*path, key), item)]
            if not path:
                # Helm gives every chart one.
                found["properties"]["global"] = FREE
        return found
    if isinstance(value, list) and path[-1] in LISTS:
        return found | {"type": "array", "items": LISTS[path[-1]]}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return found | {"type": kinds[type(value)]}


def _is_needed(path: tuple[str, ...], value: Any) -> bool:
    """Say whether templates can't do without a value. Without an empty one they do, and settings have defaults."""
    inside_pool = path[0] == "pools" and len(path) > 1
    return bool(value) and not inside_pool and pattern_of(path) not in FREE_MAPS and path[-1] not in FREE_NAMES
