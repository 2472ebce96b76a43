"""Two routers and two simulated replicas in this process, on a Redis that the caller runs."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.settings import load_settings
from cluster.trust.secret import ClusterSecret
from deployments.engines.factory import build_engine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from router.build import build_router
from router.dispatch.pool import Pool
from router.server import Router
from router.stores import redis_factory

POOL = "demo"
ROUTERS = 2
REPLICAS = 2
_OURS = ("cluster.", "deployments.", "router.")
_LINK_S = 20.0


class Stand:
    """Small cluster that can count what it holds."""

    def __init__(self, folder: Path, redis_url: str, sections: Mapping[str, Any]) -> None:
        """`sections` are settings that replace those of the testbed."""
        flags = {
            "cluster": {"state_dir": str(folder)},
            "router": {"port": 0, **sections.get("router", {})},
            "queue": dict(sections.get("queue", {})),
            "pools": {POOL: {"engine": "sim", "sim": dict(sections.get("sim", {}))}},
        }
        self._settings = load_settings(flags=flags, environ={})
        self._url = redis_url
        self._secret = ClusterSecret(secrets.token_bytes(32))
        self.routers: list[Router] = []
        self.replicas: list[Replica] = []

    async def start(self) -> None:
        """Start replicas, then routers. When it returns, every router reaches every replica."""
        settings, url = self._settings, self._url
        limits = limits_from(settings.queue)
        for number in range(REPLICAS):
            plan = ReplicaPlan(f"r{number}", POOL, settings.pools[POOL], settings.queue, settings.replica)
            engine = build_engine(plan.pool_settings)
            self.replicas.append(Replica(plan, engine, lambda: RedisQueue(url, POOL, limits), self._secret))
            await self.replicas[-1].start()
        factory = redis_factory(settings, url)
        for _ in range(ROUTERS):
            self.routers.append(build_router(settings, self._secret, factory))
            await self.routers[-1].start()
        async with asyncio.timeout(_LINK_S):
            for pool in self.pools:
                await pool.replicas.first_seen.wait()
                for link in pool.replicas._links.values():
                    await link.wait_up(_LINK_S)

    async def stop(self) -> None:
        """Stop routers, then replicas."""
        await asyncio.gather(*(router.stop(drain_s=1.0) for router in self.routers))
        await asyncio.gather(*(replica.stop(drain_s=1.0) for replica in self.replicas))

    @property
    def targets(self) -> list[str]:
        """host:port of each router."""
        return [f"127.0.0.1:{router.port}" for router in self.routers]

    @property
    def pools(self) -> list[Pool]:
        """The pool as each router serves it."""
        return [router.pools[POOL] for router in self.routers]

    def held(self) -> dict[str, int]:
        """Count the requests' state in routers and replicas."""
        tables = [replica.table for replica in self.replicas]
        return {
            "open calls": sum(router._inference.open_calls for router in self.routers),
            "choices": sum(pool.active for pool in self.pools),
            "unreported ends": sum(len(pool.releases) for pool in self.pools),
            "link sinks": sum(link.busy for pool in self.pools for link in pool.replicas._links.values()),
            "slots": sum(table.sequences for table in tables),
            "outstanding prefill tokens": sum(table.prefill_tokens for table in tables),
            "attempts": sum(len(table._attempts) for table in tables),
        }

    def census(self) -> dict[str, Any]:
        """Count everything: requests' state, tasks, objects of our own classes, and memory."""
        gc.collect()
        kinds = Counter(
            f"{type(each).__module__}.{type(each).__qualname__}"
            for each in gc.get_objects()
            if str(type(each).__module__).startswith(_OURS)
        )
        return {
            "held": self.held(),
            "tasks": len(asyncio.all_tasks()),
            "objects": dict(kinds),
            "rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        }
