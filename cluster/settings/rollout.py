"""How a pool changes while it runs: the one way of each of its settings, and the settings of roll-outs."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from pydantic import Field

from cluster.settings.section import Section


class Way(enum.StrEnum):
    """Way in which a setting of a running pool changes."""

    ENTRY = "entry"
    """The pool's entry in the registry. Routers, replicas and autoscaler follow it at once."""
    POINT = "operating point"
    """The pool's operating point. They follow it at once, too."""
    ROLLOUT = "roll-out"
    """A roll-out, one replica at a time."""
    NEVER = "never"
    """Not while the pool runs."""


WAYS: Mapping[str, Way] = {
    "model": Way.ROLLOUT,
    "revision": Way.ROLLOUT,
    "engine": Way.NEVER,
    "task": Way.ROLLOUT,
    "replicas": Way.ENTRY,
    "cells": Way.ENTRY,
    "tensor_parallel_size": Way.ROLLOUT,
    "pipeline_parallel_size": Way.NEVER,
    "vllm": Way.ROLLOUT,
    "sim": Way.ROLLOUT,
    "slo": Way.POINT,
    "control": Way.ENTRY,
    "autoscale": Way.ENTRY,
    "rollout": Way.ENTRY,
    "price_per_gpu_hour": Way.POINT,
    "budget_per_hour": Way.POINT,
    "price_per_million_prompt_tokens": Way.ENTRY,
    "price_per_million_cached_tokens": Way.ENTRY,
    "price_per_million_output_tokens": Way.ENTRY,
}
"""Way of each setting of a pool."""
REASONS: Mapping[str, str] = {
    "engine": "the two kinds of engines have no setting in common",
    "pipeline_parallel_size": "Ray reserves the same machines' GPUs for each replica of a pool",
}
"""Why a setting never changes while its pool runs."""


def settings_that_change(way: Way) -> tuple[str, ...]:
    """Return the names of the settings of a pool that change in a way."""
    return tuple(name for name, each in WAYS.items() if each is way)


class RolloutSettings(Section):
    """Change of a pool's model or engine settings while it runs, one replica at a time (`penstock rollout`)."""

    surge: int = Field(default=0, ge=0, le=64)
    """Replicas that the pool may have beyond its number meanwhile. 0 needs no further GPU: each replica ends before its
    successor starts. Above 0 an active autoscaler must look after the pool."""
    judge_s: float = Field(default=30.0, ge=0, le=86_400)
    """Seconds for which a new replica must serve well before the next one changes. Up to five
    times as long where fewer than three of its requests have ended, failed or were late."""
    max_failed: float = Field(default=0.02, ge=0, le=1)
    """Part of a new replica's requests that may fail. Beyond it, and with three or more, the roll-out goes back."""
    max_late: float = Field(default=0.1, ge=0, le=1)
    """Part of a new replica's requests that may miss a latency target of the pool, beyond that of the old replicas.
    Times count from the request's arrival at the replica. Beyond it, and with three or more, the roll-out goes back."""
    attempts: int = Field(default=2, ge=1, le=100)
    """Replicas of the new revision that may fail to start, or die, before the roll-out goes back."""
    drain_s: float = Field(default=600.0, ge=0, le=86_400)
    """Seconds that a replica may take to finish its requests before it gives way. What runs then goes on at a replica
    with the same weights, and fails where there is none."""
