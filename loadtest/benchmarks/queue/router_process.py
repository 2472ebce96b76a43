"""A router without clients. It submits and releases as fast as it can, and prints its counts as a JSON line."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.lifecycle import TaskOwner
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.queue import CellQueue
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import Grant, Mail, Settlement
from cluster.queue.heartbeats import POSITIONS, RouterBeat
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.queue import RedisQueue
from loadtest.benchmarks.queue.clients import entry

_BEAT_S = 1.0
_TIMEOUT_S = 10.0
OUTPUT_TOKENS = 100


@dataclass(slots=True)
class Counts:
    """Counts of a router in the measured time."""

    submits: int = 0
    at_once: int = 0
    """Submits that were answered with a grant."""
    grants: int = 0
    releases: int = 0
    cpu_s: float = 0.0
    """CPU time of the process."""


class BareRouter:
    """Stand-in that uses the queue like a router, and does nothing else."""

    def __init__(self, url: str, pool: str, router_id: str, replicas: int, tenants: int, *, cells: int = 1) -> None:
        self.counts = Counts()
        self._router_id = router_id
        self._connected = tuple(f"replica-{i:03d}" for i in range(replicas))
        self._tenants = tenants
        seen = CellsSeen(Layout(cells))
        self._queue = CellQueue(pool, lambda name: RedisQueue(url, name, timeout_s=_TIMEOUT_S), seen)
        self._bell = RedisBell(url, router_id)
        self._waiting: dict[str, asyncio.Future[Grant]] = {}
        self._started: list[tuple[str, str]] = []
        # Numbers of different processes never meet, because they are the entries' names.
        self._numbers = itertools.count(os.getpid() << 24)
        self._owner = TaskOwner("router")

    async def run(self, clients: int, seconds: float) -> Counts:
        """Work with this many clients. Say that it does, read a time (wall clock), and count all events in the seconds
        after it.
        """
        await self._bell.start()
        await self._beat()
        for work, name in ((self._listen(), "bell"), (self._keep_lease(), "lease")):
            self._owner.spawn(work, name)
        for number in range(clients):
            self._owner.spawn(self._client(), f"client-{number}")
        sys.stdout.write("works\n")
        sys.stdout.flush()
        starts_at = float(await asyncio.to_thread(sys.stdin.readline))
        await asyncio.sleep(starts_at - time.time())
        self.counts = counts = Counts()
        cpu_s = time.process_time()
        await asyncio.sleep(starts_at + seconds - time.time())
        self.counts = Counts()
        counts.cpu_s = time.process_time() - cpu_s
        await self._owner.close()
        await self._queue.retire_router(self._router_id)
        await self._bell.close()
        await self._queue.close()
        return counts

    async def _client(self) -> None:
        while True:
            request = entry(next(self._numbers), self._tenants)
            granted = self._waiting[request.request_id] = asyncio.get_running_loop().create_future()
            submitted = await self._queue.submit(self._router_id, request)
            self.counts.submits += 1
            if submitted.grant is not None:
                self.counts.at_once += 1
                self._take(submitted.grant)
            grant = await granted
            self.counts.grants += 1
            mail = await self._queue.release(
                self._router_id, grant.request_id, grant.attempt, Settlement(OUTPUT_TOKENS)
            )
            self.counts.releases += 1
            self._deliver(mail)

    def _deliver(self, mail: Mail) -> None:
        for grant in mail.grants:
            self._take(grant)

    def _take(self, grant: Grant) -> None:
        # Mail repeats until a heartbeat reports the start.
        granted = self._waiting.pop(grant.request_id, None)
        if granted is not None:
            self._started.append((grant.request_id, grant.attempt))
            granted.set_result(grant)

    async def _listen(self) -> None:
        while True:
            await self._bell.wait()
            self._deliver(await self._queue.collect(self._router_id))

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            await self._beat()

    async def _beat(self) -> None:
        started, self._started = self._started, []
        asked = tuple(itertools.islice(self._waiting, POSITIONS))
        beat = RouterBeat(self._router_id, self._connected, tuple(started), positions_of=asked)
        reply = await self._queue.heartbeat_router(beat)
        self._deliver(reply.mail)


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    kinds: dict[str, Callable[[str], object]] = {
        **dict.fromkeys(("url", "pool", "router-id"), str),
        **dict.fromkeys(("replicas", "tenants", "clients", "cells"), int),
        "seconds": float,
    }
    for name, kind in kinds.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()

    async def run() -> Counts:
        names = options.url, options.pool, options.router_id
        router = BareRouter(*names, options.replicas, options.tenants, cells=options.cells)
        return await router.run(options.clients, options.seconds)

    counts = uvloop.run(run())
    sys.stdout.write(json.dumps({name: getattr(counts, name) for name in Counts.__slots__}) + "\n")


if __name__ == "__main__":
    main()
