"""The process that starts and ends replicas follows the pools of the registry.

A pool that is removed ends in this order: every router knows that it takes no new requests, its line and its streams
are over, its replicas go.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Protocol

from cluster.errors import QueueUnavailableError, RegistryConflictError, SetupError
from cluster.lifecycle import TaskOwner
from cluster.queue.contract import Queue
from cluster.queue.heartbeats import RouterBeat
from cluster.registry.contract import Author, Edit, RegistryStore, Watcher
from cluster.registry.pools import (
    KIND,
    LAUNCHER,
    NOTHING_FIXED,
    LauncherReport,
    PoolReport,
    PoolState,
    in_force,
    outdated,
    read_entry,
    same_but_live,
)
from cluster.registry.view import LOOK_S, RegistryView
from cluster.settings import PoolSettings
from cluster.settings.registry import RegistrySettings

_LOG = logging.getLogger(__name__)

RETRY_S = 5.0
"""Pause before a pool's start, or its end, is tried again."""
SETTLE_S = 60.0
"""Longest wait for autoscalers that live and are not done with a change: longer than a call to the platform takes."""


class Platform(Protocol):
    """Starts and ends the replicas of pools."""

    async def fit_pool(self, name: str, settings: PoolSettings) -> None:
        """Start replicas that the pool lacks, and end those beyond its number. Return when that is done.

        Raises:
            SetupError: one did not start. Others may have.
        """
        ...

    async def end_pool(self, name: str) -> None:
        """End all replicas of a pool; return when they are gone.

        Raises:
            SetupError: the end did not work. Another try goes on with it.
        """
        ...


class PoolLauncher:
    """Launcher of the pools of the registry."""

    def __init__(
        self,
        declared: Mapping[str, PoolSettings],
        store: RegistryStore,
        platform: Platform,
        open_queue: Callable[[str], Queue],
        forget: Callable[[str], Awaitable[None]],
        *,
        ray: bool = False,
        gpus: int = 0,
        fixed: RegistrySettings = NOTHING_FIXED,
    ) -> None:
        """Prepare a launcher.

        Args:
            declared: pools that the cluster is started with.
            store: the registry.
            platform: starts and ends replicas.
            open_queue: opens the queue of a pool.
            forget: forgets what a pool leaves behind that a later one of its name must not get.
            ray: whether Ray Serve hosts the replicas.
            gpus: number of GPUs that it gives to replicas.
            fixed: names of pools that only the settings may change.
        """
        self._declared = declared
        self._id = f"launcher-{secrets.token_hex(4)}"
        self._view = RegistryView(store, Watcher(self._id, LAUNCHER))
        self._platform = platform
        self._open_queue = open_queue
        self._forget = forget
        self._ray, self._gpus = ray, gpus
        self._fixed = fixed
        self._owner = TaskOwner("launcher")
        self._here: dict[str, PoolSettings] = {}
        """Pools that have replicas, or are to have them."""
        self._work: dict[str, asyncio.Task[None]] = {}
        """What goes on for a pool: its start, or its end."""
        self._reports: dict[str, PoolReport] = {}
        self._turn = asyncio.Lock()
        """Held while pools are compared with what goes on for them, and that is replaced."""

    async def begin(self) -> dict[str, PoolSettings]:
        """Return the pools that the cluster should run. Entries give way to settings that have changed since. `run`
        starts those of the registry alone, and takes the others as started.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        await self._view.refresh()
        if old := outdated(self._declared, self._view.entries(KIND)):
            edits = [Edit(KIND, entry.name, None, entry.version) for entry in old]
            with suppress(RegistryConflictError):
                await self._view.apply(edits, Author("", "start of the cluster"))
            _LOG.warning("pools.settings_changed", extra={"pools": [entry.name for entry in old]})
        wanted = in_force(self._declared, self._view.entries(KIND), self._fixed)
        self._here = {name: settings for name, settings in wanted.items() if name in self._declared}
        return wanted

    async def run(self) -> NoReturn:
        """Follow the registry; runs until it is cancelled."""
        self._reports |= {name: PoolReport(PoolState.SERVING) for name in self._here}
        wanted = in_force(self._declared, self._view.entries(KIND), self._fixed)
        self._tell()
        # An entry that a newer release wrote is no removal, and says of no pool that it is gone.
        removed = [
            name
            for name, entry in self._view.entries(KIND).items()
            if name not in wanted and (known := read_entry(entry)) is not None and known.removed
        ]
        await self._end_again(removed)
        away = False
        while True:
            try:
                await self._view.refresh()
                await self._look()
                away = False
            except QueueUnavailableError as error:
                if not away:
                    _LOG.warning("launcher.store_away", extra={"error": str(error)})
                away = True
            await asyncio.sleep(LOOK_S)

    def platform_lost(self) -> None:
        """Note that all replicas have ended with their platform. `start_again` follows when it is back."""
        for name in self._here:
            self._tell(name, PoolState.STARTING)

    async def start_again(self) -> None:
        """Start the replicas of all pools on a platform that is new."""
        async with self._turn:
            for name, settings in self._here.items():
                self._tell(name, PoolState.STARTING)
                await self._instead(name, partial(self._fit, name, settings))

    async def _end_again(self, removed: Iterable[str]) -> None:
        """End pools that were removed before this start: whoever did it may have died in the middle."""
        async with self._turn:
            for name in removed:
                self._tell(name, PoolState.DRAINING)
                await self._instead(name, partial(self._end, name, self._declared.get(name, PoolSettings())))

    async def _look(self) -> None:
        async with self._turn:
            await self._compare()

    async def _compare(self) -> None:
        wanted = in_force(self._declared, self._view.entries(KIND), self._fixed, self._here)
        for name, settings in list(self._here.items()):
            # A pool that was removed and came again between two looks has other replicas.
            if name not in wanted or not same_but_live(settings, wanted[name]):
                del self._here[name]
                self._tell(name, PoolState.DRAINING)
                await self._instead(name, partial(self._end, name, settings))
        for name, settings in wanted.items():
            # An end is not broken off: the pool starts again after it.
            ends = name in self._reports and self._reports[name].state is PoolState.DRAINING
            if self._here.get(name) != settings and not ends:
                self._here[name] = settings
                self._tell(name, PoolState.STARTING)
                await self._instead(name, partial(self._fit, name, settings))
        # What has not changed is also true of newer entries.
        self._tell()

    async def _instead(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something for a pool in place of what goes on for it. The caller has the turn."""
        if (task := self._work.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        self._work[name] = self._owner.spawn(work(), name)

    async def _fit(self, name: str, settings: PoolSettings) -> None:
        _LOG.warning("pool.fits", extra={"pool": name, "replicas": settings.replicas})
        if settings.autoscale.mode != "active":
            await self._left_alone(name)
        while True:
            try:
                await self._platform.fit_pool(name, settings)
                break
            except (SetupError, OSError) as error:
                _LOG.error("pool.start_failed", extra={"pool": name, "error": str(error)})
                self._tell(name, PoolState.FAILED, str(error))
            await asyncio.sleep(RETRY_S)
        self._tell(name, PoolState.SERVING)

    async def _left_alone(self, name: str) -> None:
        """Wait until no autoscaler sends a number for a pool that it decided under earlier settings."""
        version, until = self._view.version, time.monotonic() + SETTLE_S
        while (left_s := until - time.monotonic()) > 0:
            try:
                if late := await self._view.behind(version, left_s, ("autoscaler",)):
                    _LOG.error("launcher.autoscaler_late", extra={"pool": name, "autoscalers": late})
                return
            except QueueUnavailableError:
                await asyncio.sleep(LOOK_S)

    async def _end(self, name: str, settings: PoolSettings) -> None:
        _LOG.warning("pool.ends", extra={"pool": name})
        await self._drained(name, settings.rollout.drain_s)
        while True:
            try:
                await self._platform.end_pool(name)
                await self._forget(name)
                break
            except (SetupError, OSError, QueueUnavailableError) as error:
                _LOG.error("pool.end_failed", extra={"pool": name, "error": str(error)})
                self._tell(name, PoolState.DRAINING, str(error))
            await asyncio.sleep(RETRY_S)
        _LOG.warning("pool.ended", extra={"pool": name})
        self._tell(name, PoolState.GONE)

    async def _drained(self, name: str, seconds: float) -> None:
        """Wait until nothing waits or runs in a pool that takes no new requests, at most for some seconds."""
        queue, until, empty = self._open_queue(name), time.monotonic() + seconds, 0
        entry = self._view.get(KIND, name)
        version = entry.version if entry is not None else self._view.version
        try:
            # Empty twice: a request that was let in before its router knew may be on its way into the line.
            while empty < 2 and time.monotonic() < until:
                await asyncio.sleep(LOOK_S)
                try:
                    if await self._view.behind(version, 0.0, ("router",)):
                        continue
                    # Leases of dead routers end only while somebody renews one, and no other may serve this pool.
                    await queue.heartbeat_router(RouterBeat(self._id, ()))
                    seen = await queue.observe()
                except QueueUnavailableError:
                    continue
                empty = 0 if seen.running or any(seen.waiting) else empty + 1
        finally:
            with suppress(QueueUnavailableError):
                await queue.retire_router(self._id)
            await queue.close()

    def _tell(self, name: str = "", state: PoolState = PoolState.SERVING, why: str = "") -> None:
        if name:
            self._reports[name] = PoolReport(state, why)
        entries = self._view.entries(KIND)
        pools = {
            each: replace(report, version=entries[each].version if each in entries else 0)
            for each, report in self._reports.items()
        }
        self._view.report(LauncherReport(ray=self._ray, changes=True, gpus=self._gpus, pools=pools).pack())

    async def close(self) -> None:
        """Follow the registry no more. What the platform has stays."""
        await self._owner.close()
        await self._view.close()
