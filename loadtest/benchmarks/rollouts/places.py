"""A platform in this process: it starts a replica wherever one has ended, as Ray Serve does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn

from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from cluster.queue.cells.cell import Cell
from cluster.queue.cells.member import ReplicaCells
from cluster.registry.contract import RegistryStore
from cluster.rollout.book import RolloutBook
from cluster.rollout.contract import RolloutStore
from cluster.settings import PoolSettings, Settings
from cluster.trust.secret import ClusterSecret
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from deployments.revisions import Place, started_as, told_to_retire

OpenEngine = Callable[[PoolSettings], Engine]


class StartFailedError(Exception):
    """A start that failed, which the platform tries again."""


class Places:
    """Places for the replicas of a pool. Each always has one replica, or one that starts."""

    def __init__(
        self,
        settings: Settings,
        pool: str,
        count: int,
        open_cell: Callable[[str], Cell],
        open_store: Callable[[], RolloutStore],
        *,
        secret: Callable[[], ClusterSecret],
        open_engine: OpenEngine = build_engine,
        open_registry: Callable[[], RegistryStore] | None = None,
    ) -> None:
        """Begin to start `count` replicas. Without `open_registry` they follow no registry."""
        self.settings = settings
        self.pool = pool
        self.replicas: dict[int, Replica] = {}
        """Replicas that are up, by place."""
        self.most = 0
        """Most replicas that ever had an engine at the same time."""
        self.full = asyncio.Event()
        """Set while every place of the pool's own number has a replica, and no other place has one."""
        self._open_cell = open_cell
        self._open_store = open_store
        self._secret = secret
        self._open_engine = open_engine
        self._open_registry = open_registry
        self._engines = 0
        self._started = 0
        self._count = count
        self._owner = TaskOwner("places")
        self._kept: dict[int, asyncio.Task[None]] = {}
        self._owner.spawn(self._size(), "size")

    def change(self, settings: Settings, count: int) -> None:
        """Take over settings for replicas that start from now on, and another number of places."""
        self.settings, self._count = settings, count
        self._look()

    @property
    def revisions(self) -> list[int]:
        """Revision of each replica that is up."""
        return [self.replicas[rank].plan.revision for rank in sorted(self.replicas)]

    async def _size(self) -> NoReturn:
        """Keep as many places as the pool's number and a roll-out's surge ask for, as the autoscaler does."""
        book = RolloutBook(self.pool, self._open_store())
        try:
            while True:
                with contextlib.suppress(QueueUnavailableError):
                    found, _ = await book.read()
                    extra = found.extra if found is not None and found.state.active else 0
                    await self._keep(self._count + extra)
                await asyncio.sleep(self.settings.queue.heartbeat_s)
        finally:
            for task in self._kept.values():
                task.cancel()
            await asyncio.gather(*self._kept.values(), return_exceptions=True)
            await book.close()

    async def _keep(self, count: int) -> None:
        for rank in range(count):
            if rank not in self._kept:
                self._kept[rank] = asyncio.create_task(self._live(rank), name=f"place-{rank}")
        for rank in [rank for rank in self._kept if rank >= count]:
            task = self._kept.pop(rank)
            if (replica := self.replicas.get(rank)) is not None:
                await replica.stop()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _live(self, rank: int) -> None:
        while True:
            with contextlib.suppress(StartFailedError):
                await self._one(rank)
            await asyncio.sleep(0)

    async def _one(self, rank: int) -> None:
        """Start a replica, and stop it when it has to give way."""
        self._started += 1
        place = Place(f"{self.pool}-{self._started}", rank)
        book = RolloutBook(self.pool, self._open_store())
        replica: Replica | None = None
        self._engines += 1
        self._look()
        try:
            self.most = max(self.most, self._engines)
            replica = await self._start(book, place)
            self.replicas[rank] = replica
            self._look()
            drain_s = await told_to_retire(book, place.replica_id, self.settings.queue.heartbeat_s)
            await replica.stop(drain_s, self.settings.queue.attach_grace_s)
        finally:
            self.replicas.pop(rank, None)
            try:
                if replica is not None:
                    await replica.stop(1.0)
            finally:
                self._engines -= 1
                self._look()
                await book.close()

    def _look(self) -> None:
        # While a place changes its replica, that of a surge which ends would make up the number.
        if set(self.replicas) == set(range(self._count)) and self._engines == self._count:
            self.full.set()
        else:
            self.full.clear()

    async def _start(self, book: RolloutBook, place: Place) -> Replica:
        settings = self.settings
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
                cells = ReplicaCells(self.pool, self._open_cell, own.cells, settings.queue.lease_s)
                parts = plan, self._open_engine(own), cells.open, self._secret()
                found = Replica(*parts, open_registry=self._open_registry, layout=cells.layout)
                await found.start()
                return found
        except Exception as error:
            raise StartFailedError(str(error)) from error

    async def settled(self) -> None:
        """Wait until the surge of the last roll-out is gone."""
        # The number follows the record with the next look.
        await asyncio.sleep(2 * self.settings.queue.heartbeat_s)
        await self.full.wait()

    async def close(self) -> None:
        """Stop all replicas."""
        await asyncio.gather(*(one.stop(1.0) for one in list(self.replicas.values())))
        await self._owner.close()
