"""Replicas of a stack that are started again when they give way."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from deployments.engines.factory import build_engine
from loadtest.benchmarks.rollouts.places import OpenEngine, Places
from tests.support.stack import Stack


@contextlib.asynccontextmanager
async def places(stack: Stack, pool: str, count: int, open_engine: OpenEngine = build_engine) -> AsyncIterator[Places]:
    """Keep replicas at so many places while the block runs."""
    found = Places(
        *(stack.settings, pool, count, stack.queue, lambda: stack.rollout(pool)),
        secret=stack.secret,
        open_engine=open_engine,
    )
    try:
        yield found
    finally:
        await found.close()
