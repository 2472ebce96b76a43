"""Flags that select a cluster, and the settings that result from flags."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.errors import SettingsError
from cluster.terminal.values import folder, word

if TYPE_CHECKING:
    from cluster.settings import Settings


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the settings file and the state folder."""
    parser.add_argument("--settings", type=word, metavar="FILE", help="TOML file with the settings")
    parser.add_argument(
        "--state-dir",
        type=folder,
        metavar="DIR",
        help="folder of Redis' data, the secret and logs (default ~/.penstock)",
    )


def add_pool_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for single settings, most of them of a pool."""
    parser.add_argument(
        "--engine", choices=("vllm", "sim"), help="engine of the pool; sim imitates one without a model"
    )
    parser.add_argument("--model", type=word, help="local folder, hub id, s3:// URL, or demo")
    parser.add_argument(
        "--pool",
        type=word,
        metavar="NAME",
        help="pool that the flags describe; its name is the model's name in requests (default: the only one)",
    )
    parser.add_argument("--tp", type=int, metavar="N", help="tensor parallel size")
    parser.add_argument("--replicas", type=int, metavar="N", help="number of replicas")
    parser.add_argument("--redis-url", type=word, metavar="URL", help="an existing Redis instead of the embedded one")
    parser.add_argument("--port", type=int, help="gRPC port (default 50051)")
    parser.add_argument("--http-port", type=int, metavar="N", help="port of the HTTP API (default 8000 if it is free)")
    parser.add_argument("--routers", type=int, metavar="N", help="router processes that share the port")
    parser.add_argument(
        "--ray", action="store_true", help="host simulated replicas in Ray Serve too (default: only what needs Ray)"
    )


def settings_from(options: argparse.Namespace) -> Settings:
    """Build the settings tree from file, environment and flags; unset flags change nothing.

    Raises:
        SettingsError: a value is unknown or out of range.
    """
    from cluster.settings import load_settings

    return load_settings(*given_in(options))


def given_in(options: argparse.Namespace) -> tuple[Path | None, dict[str, Any]]:
    """Return the settings file and the settings that flags give.

    Raises:
        SettingsError: it is not clear which pool the flags describe.
    """
    # Imported late: help and completion need no settings.
    from cluster.settings import load_settings

    flags: dict[str, Any] = {
        "cluster": {
            "state_dir": getattr(options, "state_dir", None),
            "ray": "always" if getattr(options, "ray", False) else None,
        },
        "redis": {"url": getattr(options, "redis_url", None)},
        "router": {
            "port": getattr(options, "port", None),
            "processes": getattr(options, "routers", None),
            "http": {"port": getattr(options, "http_port", None)},
        },
    }
    pool = {
        "engine": getattr(options, "engine", None),
        "model": getattr(options, "model", None),
        "tensor_parallel_size": getattr(options, "tp", None),
        "replicas": getattr(options, "replicas", None),
    }
    file = Path(options.settings) if options.settings else None
    # --pool alone makes it the only pool flag: a pool with the defaults or as in the file.
    name = getattr(options, "pool", None)
    if name or any(value is not None for value in pool.values()):
        flags["pools"] = {name or _only_pool(load_settings(file, flags)): pool}
    return file, flags


FLAGS = {
    "cluster.state_dir": "--state-dir",
    "cluster.ray": "--ray",
    "redis.url": "--redis-url",
    "router.port": "--port",
    "router.processes": "--routers",
    "router.http.port": "--http-port",
    "engine": "--engine",
    "model": "--model",
    "tensor_parallel_size": "--tp",
    "replicas": "--replicas",
}
"""Flag that gives a setting; those of a pool without its name."""


def _only_pool(settings: Settings) -> str:
    name, *others = settings.pools
    if others:
        raise SettingsError(f"--pool must say which pool the flags describe: {', '.join(settings.pools)}")
    return name
