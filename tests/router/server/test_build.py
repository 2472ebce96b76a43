"""A router is composed whole, before it starts anything."""

from __future__ import annotations

from pathlib import Path

from router.build import build_router
from tests.support.stack import SECRET, running_stack


async def test_a_router_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, replicas=0) as stack:
        router = build_router(stack.settings, SECRET, stack.factory(), port=0)
        assert ["demo"] == list(router.pools)
        assert (0, 0, 0) == (router.port, router.metrics_port, router.pools["demo"].active)
        await router.stop()
