"""Acts the routers and replicas of a pool of several cells, on one Redis in this process."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from cluster.clock import ManualClock
from cluster.models import Windows
from cluster.queue.cells.layout import Layout
from cluster.queue.cells.names import cell_name
from cluster.queue.cells.queue import CellQueue
from cluster.queue.cells.seen import CellsSeen
from cluster.queue.entries import Grant, Mail, QueueLimits, Submitted, Where
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from tests.cluster.queue.backends import POOL, Scene

ROUTERS = ("A", "B")


class RouterQueues:
    """Queues of all routers behind one face: each call goes to the queue of the router that it names."""

    def __init__(self, scene: CellScene) -> None:
        self._scene = scene

    def __getattr__(self, name: str) -> Any:
        async def call(router: Any, *arguments: Any, **named: Any) -> Any:
            by = router if isinstance(router, str) else router.router_id
            answer = await getattr(self._scene.routers_queues[by], name)(router, *arguments, **named)
            self._scene.note(answer)
            return answer

        return call


class CellScene(Scene):
    """A pool of cells. Replicas are in the cells in turn, unless told otherwise."""

    def __init__(self, cells: int, *, limits: QueueLimits | None = None, max_waiting: int = 0, seed: int = 1) -> None:
        self.cells = cells
        self.store = InProcessRedis(clock := ManualClock())
        self.limits = limits or QueueLimits()
        self.cell_of: dict[str, int] = {}
        self.placed: dict[tuple[str, str], str] = {}
        """Replica of each attempt that was granted."""
        self.grants: list[Grant] = []
        self.layouts = {name: Layout(cells, clock=clock.monotonic) for name in ROUTERS}
        self.routers_queues = {
            name: CellQueue(POOL, self.open_cell, CellsSeen(layout), max_waiting=max_waiting)
            for name, layout in self.layouts.items()
        }
        for number, queue in enumerate(self.routers_queues.values()):
            queue._random = random.Random(seed + number)
        self.own = [self.open_cell(cell_name(POOL, cell)) for cell in range(cells)]
        super().__init__(RouterQueues(self), clock)

    def open_cell(self, name: str) -> RedisQueue:
        """Open a cell by its name."""
        return RedisQueue(self.store, name, self.limits)

    async def open(self, replicas: int, windows: Windows) -> CellScene:
        """Bring replicas and routers up."""
        names = [f"r{number}" for number in range(replicas)]
        self.cell_of = {name: number % self.cells for number, name in enumerate(names)}
        await self.start(dict.fromkeys(names, windows), ROUTERS)
        return self

    async def beat_replica(self, name: str, running: tuple[tuple[str, str], ...] = (), **changes: Any) -> None:
        """Send a replica's heartbeat to its cell, with what runs there of all that is named."""
        here = tuple(pair for pair in running if self.placed.get(pair) == name)
        if "prefilled" in changes:
            changes["prefilled"] = tuple(request_id for request_id, _ in here)
        queue, self.queue = self.queue, self.own[self.cell_of[name]]
        try:
            await super().beat_replica(name, here, **changes)
        finally:
            self.queue = queue

    def note(self, answer: Any) -> None:
        """Note where granted attempts are."""
        grants: Iterable[Grant] = ()
        if isinstance(answer, Mail):
            grants = answer.grants
        elif isinstance(answer, Submitted):
            grants = () if answer.grant is None else (answer.grant,)
        elif hasattr(answer, "mail"):
            grants = answer.mail.grants
        for grant in grants:
            if self.placed.setdefault((grant.request_id, grant.attempt), grant.replica_id) == grant.replica_id:
                self.grants.append(grant)

    async def places(self) -> dict[str, list[int]]:
        """List the cells in which each entry waits or has a slot. News of it for a former owner is no place."""
        found = defaultdict[str, list[int]](list)
        for cell, queue in enumerate(self.own):
            for router in ROUTERS:
                for holding in (await queue.holdings(router)).page:
                    if holding.where is not Where.MAIL:
                        found[holding.request_id].append(cell)
        return dict(found)

    async def waiting(self) -> list[int]:
        """Count the waiting entries of each cell."""
        return [sum((await queue.observe()).waiting) for queue in self.own]

    async def close(self) -> None:
        """Close all queues."""
        for queue in (*self.routers_queues.values(), *self.own):
            await queue.close()
