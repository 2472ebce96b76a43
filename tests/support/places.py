"""A platform in the test's own process: it starts a replica wherever one has ended, as Ray Serve does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from cluster.lifecycle import TaskOwner
from cluster.rollout.book import RolloutBook
from cluster.settings import PoolSettings
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from deployments.revisions import Place, started_as, told_to_retire
from tests.support.stack import Stack

OpenEngine = Callable[[PoolSettings], Engine]


class Places:
    """Places for the replicas of a pool. Each always has one replica, or one that starts."""

    def __init__(self, stack: Stack, pool: str, count: int, open_engine: OpenEngine = build_engine) -> None:
        self.stack = stack
        self.pool = pool
        self.replicas: dict[int, Replica] = {}
        """Replicas that are up, by place."""
        self.most = 0
        """Most replicas that ever had an engine at the same time."""
        self._open_engine = open_engine
        self._engines = 0
        self._started = 0
        self._owner = TaskOwner("places")
        for rank in range(count):
            self._owner.spawn(self._keep(rank), f"place-{rank}")

    @property
    def revisions(self) -> list[int]:
        """Revision of each replica that is up."""
        return [self.replicas[rank].plan.revision for rank in sorted(self.replicas)]

    async def _keep(self, rank: int) -> None:
        while True:
            with contextlib.suppress(_StartFailedError):
                await self._live(rank)
            await asyncio.sleep(0)

    async def _live(self, rank: int) -> None:
        """Start a replica, and stop it when it has to give way."""
        self._started += 1
        settings = self.stack.settings
        place = Place(f"{self.pool}-{self._started}", rank)
        book = RolloutBook(self.pool, self.stack.rollout(self.pool))
        replica: Replica | None = None
        try:
            self._engines += 1
            self.most = max(self.most, self._engines)
            replica = await self._start(book, place)
            self.replicas[rank] = replica
            drain_s = await told_to_retire(book, place.replica_id, settings.queue.heartbeat_s)
            await replica.stop(drain_s)
        finally:
            self.replicas.pop(rank, None)
            if replica is not None:
                await replica.stop(1.0)
            self._engines -= 1
            await book.close()

    async def _start(self, book: RolloutBook, place: Place) -> Replica:
        settings, stack = self.stack.settings, self.stack
        try:
            async with started_as(book, settings.pools[self.pool], place) as (revision, own):
                plan = ReplicaPlan(
                    replica_id=place.replica_id,
                    pool=self.pool,
                    pool_settings=own,
                    queue_settings=settings.queue,
                    settings=settings.replica,
                    telemetry=settings.telemetry,
                    revision=revision.number,
                )
                found = Replica(plan, self._open_engine(own), lambda: stack.queue(self.pool), stack.secret())
                await found.start()
                return found
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise _StartFailedError from error

    async def close(self) -> None:
        """Stop all replicas."""
        await asyncio.gather(*(one.stop(1.0) for one in self.replicas.values()))
        await self._owner.close()


class _StartFailedError(Exception):
    """A start that failed, which the platform tries again."""


@contextlib.asynccontextmanager
async def places(stack: Stack, pool: str, count: int, open_engine: OpenEngine = build_engine) -> AsyncIterator[Places]:
    """Keep replicas at so many places while the block runs."""
    found = Places(stack, pool, count, open_engine)
    try:
        yield found
    finally:
        await found.close()
