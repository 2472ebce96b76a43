"""Assembly of the job scripts: the shared part goes in front of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cluster.redis.script import Script, load_scripts

SCRIPTS = (
    "create",
    "append",
    "seal",
    "keep",
    "begin",
    "look",
    "claim",
    "renew",
    "release",
    "store",
    "fail",
    "cancel",
    "delete",
    "discard",
    "expire",
    "check",
    "unname",
    "recount",
)


@cache
def load_job_scripts() -> Mapping[str, Script]:
    """Return all scripts by name."""
    return load_scripts("cluster.jobs.redis", SCRIPTS)
