"""What the programs in the pods expect of their environment. Their own code is asked wherever it can be."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cluster.autoscaler.autoscaler import scaled_pools
from cluster.cli.main import build_parser as penstock_parser
from cluster.errors import SettingsError
from cluster.ray_serve.config import STOP_MARGIN_S, serve_config
from cluster.rollout.changes import base_of
from cluster.settings import PoolSettings, Settings, access_of, load_settings
from router.__main__ import build_parser as router_parser
from router.server import PARTING_S
from tests.k8s.charts import Object, of_kind, one
from tests.k8s.kuberay.pods import DASHBOARD, GCS, METRICS, service_address
from tests.k8s.view import PodSpec, pods, settings_toml
from tests.k8s.view import serve_config as rendered_serve_config

CLOSING_S = 5.0
"""What a router takes to leave its pools."""
NOT_SETTINGS = frozenset({"PENSTOCK_API_KEY", "PENSTOCK_SETTINGS"})
RAY_PORTS = {"gcs-server": GCS, "dashboard": DASHBOARD, "client": 10001, "metrics": METRICS}
COMMON = ("cpu", "memory", "ephemeral-storage")
SHARED = ("queue", "redis", "registry", "telemetry")
"""Sections of the settings that routers and replicas both read."""
RAY_DRAIN_S = 30.0
"""What Ray gives a node that gets SIGTERM without more said."""
RAY_END_S = 15.0
"""What Ray's processes take to end after that."""


def graces_add_up(objects: list[Object]) -> list[str]:
    """Nobody is killed while it drains, and no old Ray cluster goes while its replicas do."""
    found = []
    settings = settings_toml(objects)
    for pod in pods(objects):
        grace = pod.spec.get("terminationGracePeriodSeconds", 30)
        if pod.component == "router":
            pause = pod.spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            if pause <= 0:
                found.append(f"{pod.owner}: SIGTERM comes before clients hear of it")
            needed = pause + settings["router"]["drain_s"] + PARTING_S + CLOSING_S
            if grace < needed:
                found.append(f"{pod.owner}: grace {grace} s, needed {needed} s")
    service = one(objects, "RayService")
    longest = 0.0
    for app in rendered_serve_config(service)["applications"]:
        drain = app["args"]["settings"]["replica"]["drain_s"]
        given = app["deployments"][0]["graceful_shutdown_timeout_s"]
        longest = max(longest, given)
        if given < drain + STOP_MARGIN_S:
            found.append(f"{app['name']}: Serve gives {given} s, a replica takes {drain + STOP_MARGIN_S} s")
    for pod in pods(objects):
        if pod.component != "ray-worker":
            continue
        grace = pod.spec.get("terminationGracePeriodSeconds", 30)
        of_ray = float(_environ(pod).get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", RAY_DRAIN_S))
        if of_ray < longest:
            found.append(f"{pod.owner}: Ray ends its node after {of_ray} s, Serve gives its replica {longest} s")
        if grace < of_ray + RAY_END_S:
            found.append(f"{pod.owner}: grace {grace} s, Ray takes up to {of_ray + RAY_END_S} s")
    delay = service["spec"].get("rayClusterDeletionDelaySeconds", 60)
    if delay <= max(longest, settings["router"]["drain_s"]):
        found.append(f"rayClusterDeletionDelaySeconds {delay} ends the old cluster before it has drained")
    return found


def accelerators_agree(objects: list[Object]) -> list[str]:
    """Tensor parallel size, GPUs of the pod and of Ray's node, and those of the Serve config are the same."""
    service = one(objects, "RayService")
    groups = {group["groupName"]: group for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]}
    found = []
    for app in rendered_serve_config(service)["applications"]:
        pool = app["args"]["pool"]
        settings, deployment = app["args"]["settings"]["pools"][pool], app["deployments"][0]
        tp, pp = settings["tensor_parallel_size"], settings["pipeline_parallel_size"]
        group = groups[re.sub(r"[._]", "-", pool.lower())]
        resources = group["template"]["spec"]["containers"][0]["resources"]
        pod_gpus = {_accelerators(resources.get(part, {})) for part in ("requests", "limits")}
        node_gpus = int(group["resources"].get("GPU", 0))
        if pod_gpus != {node_gpus}:
            found.append(f"{pool}: the pod has {pod_gpus} GPUs, Ray counts {node_gpus}")
        if node_gpus not in (0, tp):
            found.append(f"{pool}: {node_gpus} GPUs per pod, tensor_parallel_size {tp}")
        if not node_gpus:
            continue
        bundles = deployment.get("placement_group_bundles", [])
        reserved = sum(b.get("GPU", 0) for b in bundles) or deployment["ray_actor_options"].get("num_gpus", 0)
        if reserved != tp * pp:
            found.append(f"{pool}: Serve reserves {reserved} GPUs, a replica has {tp * pp}")
        if group["maxReplicas"] < deployment["num_replicas"] * pp:
            found.append(f"{pool}: {group['maxReplicas']} pods are too few for {deployment['num_replicas']} replicas")
    return found


def _accelerators(amounts: dict[str, Any]) -> int:
    return sum(int(value) for name, value in amounts.items() if name not in COMMON and not name.startswith("hugepages"))


def arguments_parse(objects: list[Object]) -> list[str]:
    """The real parsers take the arguments."""
    found = []
    for pod in pods(objects):
        for container in pod.containers():
            command = container.get("command", [])
            if command[:1] not in (["python"], ["penstock"]):
                continue
            parser, rest = _parser(command)
            if parser is None:
                found.append(f"{pod.owner}: nobody knows {command}")
            elif error := _parse(parser, [*rest, *container.get("args", [])]):
                found.append(f"{pod.owner}: {error}")
    return found


def _parser(command: list[str]) -> tuple[argparse.ArgumentParser | None, list[str]]:
    if command[:3] == ["python", "-m", "router"]:
        return router_parser(), command[3:]
    if command[0] == "penstock":
        return penstock_parser(whole=True), command[1:]
    return None, []


def _parse(parser: argparse.ArgumentParser, arguments: list[str]) -> str:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parser.parse_args(arguments)
    except SystemExit:
        return errors.getvalue().strip().splitlines()[-1]
    return ""


def environment_is_known(objects: list[Object]) -> list[str]:
    """Variables name settings, and what they are made of is defined before them."""
    found = []
    for pod in pods(objects):
        for container in pod.containers():
            seen: set[str] = set()
            for each in container.get("env", []):
                name = each["name"]
                if name.startswith("PENSTOCK_") and name not in NOT_SETTINGS and not _is_setting(name):
                    found.append(f"{pod.owner}: {name} is no setting")
                for used in re.findall(r"\$\(([A-Z_]+)\)", each.get("value", "")):
                    if used not in seen:
                        found.append(f"{pod.owner}: {name} uses {used}, which is not defined before it")
                if name in seen:
                    found.append(f"{pod.owner}: {name} is given twice")
                seen.add(name)
    return found


def _is_setting(name: str) -> bool:
    node: Any = Settings
    for part in name.removeprefix("PENSTOCK_").lower().split("__"):
        if not (isinstance(node, type) and issubclass(node, BaseModel)) or part not in node.model_fields:
            return False
        node = node.model_fields[part].annotation
        arguments = getattr(node, "__args__", ())
        node = next((each for each in arguments if isinstance(each, type) and issubclass(each, BaseModel)), node)
    return True


def settings_load(objects: list[Object]) -> list[str]:
    """The real settings take what routers and replicas are given, and let somebody call."""
    found = []
    tree = settings_toml(objects)
    of_routers = None
    for pod in pods(objects):
        if pod.component not in ("router", "autoscaler"):
            continue
        try:
            settings = load_settings(flags=tree, environ=_environ(pod))
            access_of(settings)
            if not settings.redis.url:
                found.append(f"{pod.owner}: does not know where Redis is")
            found += _cannot_write(pod, settings)
            if pod.component == "router":
                of_routers = settings
            if pod.component == "autoscaler":
                found += _of_autoscaler(objects, pod, settings)
        except SettingsError as error:
            found.append(f"{pod.owner}: {error}")
    service = one(objects, "RayService")
    workers = {pod.labels["penstock.io/pool"]: pod for pod in pods(objects) if pod.component == "ray-worker"}
    for app in rendered_serve_config(service)["applications"]:
        slug = re.sub(r"[._]", "-", app["args"]["pool"].lower())
        try:
            settings = load_settings(flags=app["args"]["settings"], environ=_environ(workers[slug]))
        except SettingsError as error:
            found.append(f"{app['name']}: {error}")
            continue
        if not settings.redis.url or settings.cluster.secret_file is None or settings.replica.host != "10.0.0.1":
            found.append(f"{app['name']}: a replica lacks its Redis, secret or address")
        found += _cannot_write(workers[slug], settings)
        if app["args"]["pool"] not in settings.pools:
            found.append(f"{app['name']}: has no settings for its pool")
        elif of_routers:
            found += [f"{app['name']}: {text}" for text in _unlike(of_routers, settings, app["args"]["pool"])]
    return found


def _unlike(of_routers: Settings, of_replicas: Settings, pool: str) -> Iterator[str]:
    """Say in what replicas differ from routers where both read the settings."""
    yield from (
        f"routers have other settings of {name}"
        for name in SHARED
        if getattr(of_replicas, name) != getattr(of_routers, name)
    )
    own, other = of_replicas.pools[pool], of_routers.pools[pool]
    if base_of(own) != base_of(other):
        yield "routers' roll-outs are of other settings"
    if _read_by_replicas(own) != _read_by_replicas(other):
        yield "routers have other settings of the pool"


def _read_by_replicas(pool: PoolSettings) -> dict[str, Any]:
    """Return the settings of a pool that its replicas read: not how many there are, but whether they may stand by."""
    return {
        **pool.model_dump(exclude={"replicas", "autoscale", "budget_per_hour"}),
        "standby": pool.autoscale.standby > 0,
    }


def _cannot_write(pod: PodSpec, settings: Settings) -> Iterator[str]:
    """Its root is read-only, so the state folder is on a volume. Replicas keep copies of adapters there."""
    folder = Path(str(settings.cluster.state_dir).replace("~", _environ(pod).get("HOME", "~"), 1))
    mounts = pod.spec["containers"][0].get("volumeMounts", [])
    if not any(folder.is_relative_to(mount["mountPath"]) and not mount.get("readOnly") for mount in mounts):
        yield f"{pod.owner}: can't write to its state folder {folder}"


def _of_autoscaler(objects: list[Object], pod: PodSpec, settings: Settings) -> Iterator[str]:
    if not scaled_pools(settings.pools):
        yield f"{pod.owner}: no pool asks for it, so it would end"
    # The operator names the head's Service.
    head = f"http://{service_address(one(objects, 'RayService'))}:{DASHBOARD}"
    if settings.cluster.ray_address != head:
        yield f"{pod.owner}: looks for Ray at {settings.cluster.ray_address}, which is at {head}"
    mounts = [mount["mountPath"] for mount in pod.spec["containers"][0]["volumeMounts"]]
    if str(settings.autoscaler.token_file and settings.autoscaler.token_file.parent) not in mounts:
        yield f"{pod.owner}: has no token of Ray at {settings.autoscaler.token_file}"
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    # Without Ray's autoscaler nobody starts more.
    number = "maxReplicas" if cluster["enableInTreeAutoscaling"] else "replicas"
    groups = {group["groupName"]: group[number] for group in cluster["workerGroupSpecs"]}
    for name in scaled_pools(settings.pools):
        pool = settings.pools[name]
        most, pods_of = groups[re.sub(r"[._]", "-", name.lower())], pool.pipeline_parallel_size
        if most < (pool.autoscale.max_replicas or 0) * pods_of:
            yield f"{pod.owner}: may ask for {pool.autoscale.max_replicas} replicas of {name}, pods end at {most}"


def _environ(pod: PodSpec) -> dict[str, str]:
    environ = {}
    for each in pod.spec["containers"][0].get("env", []):
        source = each.get("valueFrom", {})
        fake = "10.0.0.1" if "fieldRef" in source else "redis://from-a-secret"
        environ[each["name"]] = re.sub(r"\$\([A-Z_]+\)", "x", each.get("value", "")) or fake
    return environ


def ports_are_those_bound(objects: list[Object]) -> list[str]:
    """Declared ports are those that the programs open with these settings."""
    found = []
    router = settings_toml(objects)["router"]
    config = rendered_serve_config(one(objects, "RayService"))
    replica = config["applications"][0]["args"]["settings"]["replica"]
    bound = {
        "router": {
            "grpc": router["port"],
            "metrics": router["metrics_port"],
            **({"http": router["http"]["port"]} if "http" in router else {}),
        },
        "ray-head": {**RAY_PORTS, "serve": config["http_options"]["port"]},
        "ray-worker": {
            "metrics": RAY_PORTS["metrics"],
            "serve": config["http_options"]["port"],
            "replica": replica["port"],
            "replica-metrics": replica["metrics_port"],
        },
        "console": {"page": _flag(objects, "console", "port")},
        "autoscaler": {"metrics": settings_toml(objects).get("autoscaler", {}).get("port")},
    }
    for pod in pods(objects):
        wanted = bound.get(pod.component)
        if pod.component.startswith("redis"):
            wanted = {"redis": int(_redis_setting(objects, pod, "port"))}
        if wanted is not None and pod.ports() != wanted:
            found.append(f"{pod.owner}: declares {pod.ports()}, binds {wanted}")
    return found


def _flag(objects: list[Object], component: str, name: str) -> int | None:
    """Return the number that the pods of a component are given as a flag."""
    for pod in pods(objects):
        if pod.component == component:
            (value,) = re.findall(rf"--{name}=(\d+)", " ".join(pod.spec["containers"][0]["args"]))
            return int(value)
    return None


def _redis_setting(objects: list[Object], pod: PodSpec, name: str) -> str:
    config = one(objects, "ConfigMap", "/".join(pod.owner.split("/")[1:]))["data"]["valkey.conf"]
    return re.findall(rf"^{name} (.*)$", config, re.MULTILINE)[-1]


def serve_config_is_ours(objects: list[Object]) -> list[str]:
    """The Serve config is what the bootstrap would write for these pools, with what only a cluster of pods needs."""
    service = one(objects, "RayService")
    config = rendered_serve_config(service)
    tree = settings_toml(objects)
    settings = load_settings(flags={key: tree[key] for key in ("pools", "replica")}, environ={})
    on_gpus = {
        group["groupName"]
        for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        if "GPU" in group["resources"]
    }
    found = list(_differences(config, settings, on_gpus))
    # Readiness probes that KubeRay adds ask the proxy of the pod's own node.
    if config["proxy_location"] != "EveryNode":
        found.append("Serve must have a proxy on every node")
    return found


def _differences(config: dict[str, Any], settings: Settings, on_gpus: set[str]) -> Iterator[str]:
    ours = {
        app["name"]: app
        for gpus in (0, 1024)
        for app in serve_config(settings, "", gpus)["applications"]
        if (re.sub(r"[._]", "-", app["args"]["pool"].lower()) in on_gpus) == (gpus > 0)
    }
    if {app["name"] for app in config["applications"]} != ours.keys():
        yield f"applications {[app['name'] for app in config['applications']]}, expected {sorted(ours)}"
        return
    for app in config["applications"]:
        expected = ours[app["name"]]
        (deployment,) = app["deployments"]
        (wanted,) = expected["deployments"]
        deployment["ray_actor_options"].pop("resources", None)
        deployment.pop("placement_group_bundle_label_selector", None)
        for part in ("name", "route_prefix", "import_path", "external_scaler_enabled"):
            if app[part] != expected[part]:
                yield f"{app['name']}: {part} is {app[part]!r}, expected {expected[part]!r}"
        if deployment != wanted:
            yield f"{app['name']}: {deployment}, expected {wanted}"


def metrics_of_autoscalers(objects: list[Object]) -> set[str]:
    """Return the metrics that horizontal autoscalers look at."""
    return {
        metric["pods"]["metric"]["name"]
        for each in of_kind(objects, "HorizontalPodAutoscaler")
        for metric in each["spec"]["metrics"]
        if metric["type"] == "Pods"
    }
