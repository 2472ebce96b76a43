"""Assembly of the scripts of responses: the shared part goes in front of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cluster.redis.script import Script, load_scripts

SCRIPTS = ("create", "claim", "renew", "release", "note", "follow", "finish", "cancel", "delete", "look")


@cache
def load_response_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    return load_scripts("cluster.responses.redis", SCRIPTS)
