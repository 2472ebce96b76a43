"""Assembly of the scripts of the registry: the shared part goes in front of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cluster.redis.script import Script, load_scripts

SCRIPTS = ("look", "apply", "restore", "history")


@cache
def load_registry_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    return load_scripts("cluster.registry.redis", SCRIPTS)
