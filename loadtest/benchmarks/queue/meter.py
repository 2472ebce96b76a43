"""CPU time of Redis, per call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import redis.asyncio

_CALM_S = 0.05


@dataclass(slots=True)
class Cost:
    """Cost of some calls for Redis. Filled in when the measured block ends."""

    calls: int
    cpu_us: float = 0.0
    """CPU time of the main thread per call."""
    script_us: float = 0.0
    """Wall time inside the script per call."""


@dataclass(frozen=True, slots=True)
class ServerTraffic:
    """Traffic that a server received."""

    reads: int
    """Reads from sockets that had something: one per pipeline of ordinary size."""
    scripts: int
    """Number of script calls."""


class Meter:
    """Reader of a server's counters."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._asked = 0

    async def cpu_seconds(self) -> float:
        """Return user and system time of the main thread so far."""
        info = await self._client.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    @asynccontextmanager
    async def measure(self, calls: int) -> AsyncIterator[Cost]:
        """Measure a block that makes this many calls of scripts and nothing else."""
        cost = Cost(calls)
        await self._client.config_resetstat()
        before = await self.cpu_seconds()
        yield cost
        cost.cpu_us = 1e6 * (await self.cpu_seconds() - before) / calls
        scripts = (await self._client.info("commandstats"))["cmdstat_evalsha"]
        # Calls that wait together go in one.
        if not 0 < scripts["calls"] <= calls:
            raise RuntimeError(f"{scripts['calls']} script calls were made in a block that says {calls}")
        cost.script_us = scripts["usec"] / calls

    async def traffic(self) -> ServerTraffic:
        """Return the traffic so far. Differences leave out the questions of this meter."""
        stats: dict[str, Any] = await self._client.info("everything")
        self._asked += 1
        scripts = stats.get("cmdstat_evalsha", {"calls": 0})["calls"]
        return ServerTraffic(stats["total_reads_processed"] - self._asked, scripts)

    async def settle(self) -> None:
        """Wait until the server has no rewrite of its file and no lazy deletion under way."""
        while True:
            info = await self._client.info("everything")
            busy = info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"] or info["lazyfree_pending_objects"]
            if not busy:
                return
            await asyncio.sleep(_CALM_S)
