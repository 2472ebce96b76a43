"""The declarative Ray Serve config of a cluster. Pure data: writing it needs no Ray."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cluster.ray_serve.gpus import built_for_cpu
from cluster.settings import EngineKind, PoolSettings, Settings
from cluster.settings.rollout import Way, settings_that_change

DEPLOYMENT = "replica"
"""Name of the one deployment of each application."""

HEALTH_PERIOD_S = 2.0
ONE_AT_A_TIME = 0.0009
"""Part of a pool's replicas that Serve replaces at the same time when their settings change. Serve takes one at least,
and a pool has 1,024 at most."""
STOP_MARGIN_S = 20.0
"""Seconds that Serve gives a replica beyond its drain time, so that the engine can end."""


def actor_options(pool: PoolSettings, gpus: int) -> dict[str, Any]:
    """Return the resources that a replica's actor reserves: its GPUs, or a CPU per rank and one for the front end.
    Ranks on several machines are separate actors, which take the GPUs of `placement`.
    """
    if pool.engine is EngineKind.SIM or pool.pipeline_parallel_size > 1:
        return {"num_cpus": 1}
    size = pool.tensor_parallel_size
    # A build for GPUs waits for them where a cluster grows.
    if gpus >= size or not built_for_cpu():
        return {"num_cpus": 1, "num_gpus": size}
    return {"num_cpus": size + 1}


def placement(pool: PoolSettings) -> dict[str, Any]:
    """Return the placement group of a replica on several machines. vLLM needs a bundle per GPU, and the first one must
    have room for the replica's actor.
    """
    if pool.engine is EngineKind.SIM or pool.pipeline_parallel_size == 1:
        return {}
    bundles: list[dict[str, float]] = [{"CPU": 1, "GPU": 1} for _ in range(pool.ranks)]
    return {"placement_group_bundles": bundles, "placement_group_strategy": "PACK"}


def serve_config(settings: Settings, settings_file: str, gpus: int, *, follows: bool = False) -> dict[str, Any]:
    """Return the declarative config of all pools: one application each, so that each can be updated on its own.
    `follows`: replicas learn from the registry what changes while they run.
    """
    return {
        # Tokens and health checks use our own ports.
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": app_name(name),
                "route_prefix": None,
                "import_path": "deployments.app:build",
                "args": {
                    "pool": name,
                    "settings_file": settings_file,
                    "digest": replica_digest(settings, name, follows=follows),
                },
                # Our own controller sets the number of replicas through the scale endpoint.
                "external_scaler_enabled": True,
                "deployments": [
                    {
                        "name": DEPLOYMENT,
                        "num_replicas": pool.replicas,
                        "ray_actor_options": actor_options(pool, gpus),
                        **placement(pool),
                        "rolling_update_percentage": ONE_AT_A_TIME,
                        # Our requests bypass Serve, so it has none to wait for; the replica drains in __del__.
                        "graceful_shutdown_wait_loop_s": 0.1,
                        "graceful_shutdown_timeout_s": settings.replica.drain_s + STOP_MARGIN_S,
                        "health_check_period_s": HEALTH_PERIOD_S,
                        "health_check_timeout_s": 30.0,
                        "max_ongoing_requests": 1_000_000,
                    }
                ],
            }
            for name, pool in settings.pools.items()
        ],
    }


def replica_digest(settings: Settings, pool: str, *, follows: bool = False) -> str:
    """Return the SHA-256, in hex, of the settings that the pool's replicas read.

    Serve replaces replicas when their arguments change. The file's name alone stays the same. On an existing Ray
    cluster replicas of a killed Penstock cluster may still run when it is started again; they have the old file's
    content and Redis, so they must be replaced.
    """
    tree = settings.model_dump(mode="json", include={"cluster", "redis", "queue", "replica"})
    # What replicas do not read, or follow while they run, must not replace them.
    unread = {*settings_that_change(Way.ENTRY), "budget_per_hour"} - (set() if follows else {"control"})
    tree["pool"] = settings.pools[pool].model_dump(mode="json", exclude=unread)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def app_name(pool: str) -> str:
    """Return the name of a pool's Serve application."""
    return f"penstock-{pool}"
