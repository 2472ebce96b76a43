"""Assembly of the scripts of records: the shared part goes in front of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cluster.redis.script import Script, load_scripts

SCRIPTS = ("add", "newest")


@cache
def load_record_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    return load_scripts("cluster.records.redis", SCRIPTS)
