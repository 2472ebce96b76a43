"""Flags that select a cluster, and the settings that result from flags."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cluster.errors import SettingsError
from cluster.settings import Settings, load_settings
from cluster.terminal.values import folder, word


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the settings file and the state folder."""
    parser.add_argument("--settings", type=word, help="TOML file with the settings tree")
    parser.add_argument("--state-dir", type=folder, help="where Redis, the secret and logs live (default ~/.penstock)")


def settings_from(options: argparse.Namespace) -> Settings:
    """Build the settings tree from file, environment and the flags of `penstock up`; unset flags change nothing.

    Raises:
        SettingsError: a value is unknown or out of range.
    """
    flags: dict[str, Any] = {
        "cluster": {"state_dir": getattr(options, "state_dir", None)},
        "redis": {"url": getattr(options, "redis_url", None)},
        "router": {"port": getattr(options, "port", None), "processes": getattr(options, "routers", None)},
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
    return load_settings(file, flags)


def _only_pool(settings: Settings) -> str:
    name, *others = settings.pools
    if others:
        raise SettingsError(f"--pool must say which pool the flags describe: {', '.join(settings.pools)}")
    return name
