"""The autoscaler process: one `PoolScaler` per pool, ticks, metrics and health.

It follows the pools of the registry.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from cluster.announced.contract import AnnouncedStore
from cluster.announced.stores import AnnouncedStores, PoolLoads
from cluster.autoscaler.actuator import Actuator
from cluster.autoscaler.cell_standbys import CellStandbys
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.scaler import PoolScaler
from cluster.autoscaler.server import ObservedServer
from cluster.autoscaler.store import ControlStore
from cluster.control.settings import ControlMode
from cluster.errors import QueueUnavailableError, SettingsError
from cluster.lifecycle import TaskOwner
from cluster.queue.contract import Queue
from cluster.registry.aliases import AliasTable
from cluster.registry.contract import Entry, RegistryStore, Watcher
from cluster.registry.pools import KIND, in_force
from cluster.registry.view import RegistryView
from cluster.rollout.book import RolloutBook
from cluster.rollout.contract import RolloutStore
from cluster.settings import PoolSettings, Settings
from cluster.telemetry.otlp import resource_of
from cluster.telemetry.otlp_metrics import MetricPush, open_push
from cluster.trust.secret import ClusterSecret

_LOG = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause before a change that could not be brought into force is tried again."""


@dataclass(frozen=True, slots=True)
class AutoscalerStores:
    """Factories of connections; each takes the pool's name."""

    queue: Callable[[str], Queue]
    control: Callable[[str], ControlStore]
    rollout: Callable[[str], RolloutStore] | None = None
    """None where no pool can have a roll-out."""
    announced: Callable[[str], AnnouncedStore] | None = None
    """By the name of a pool or an alias; None where nobody announces load."""
    registry: Callable[[], RegistryStore] | None = None
    """Factory without arguments; None where pools are those of the settings and stay as they are."""


@dataclass(frozen=True, slots=True)
class _Connections:
    """Connections of one pool's scaler."""

    queue: Queue
    store: ControlStore
    rollouts: RolloutBook | None

    async def close(self) -> None:
        await self.queue.close()
        await self.store.close()
        if self.rollouts is not None:
            await self.rollouts.close()


class Autoscaler:
    """Owner of the pools' scalers and their connections."""

    def __init__(self, settings: Settings, secret: ClusterSecret, stores: AutoscalerStores, actuator: Actuator) -> None:
        self.holder = f"autoscaler-{secrets.token_hex(4)}"
        self._settings = settings
        self._secret = secret
        self._stores = stores
        self._actuator = actuator
        self._owner = TaskOwner(self.holder)
        self._looked_at = time.monotonic()
        self._server: ObservedServer | None = None
        self._push: MetricPush | None = None
        self._view = (
            RegistryView(stores.registry(), Watcher(self.holder, "autoscaler")) if stores.registry is not None else None
        )
        self._pools: Mapping[str, PoolSettings] = settings.pools
        """Pools that run, as far as they are known."""
        self._aliases = AliasTable(settings.aliases, settings.registry, lambda: self._pools, self._view)
        self._announced = AnnouncedStores(stores.announced) if stores.announced is not None else None
        self._changed = asyncio.Event()
        self._connections: dict[str, _Connections] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self.scalers: Mapping[str, PoolScaler] = {}
        """Scalers by pool. The mapping is replaced and never changed: the HTTP endpoints' threads go through it."""
        for name in scaled_pools(settings.pools):
            self._open(name, settings.pools[name])

    def _open(self, name: str, pool: PoolSettings) -> None:
        stores, host = self._stores, self._settings.autoscaler
        rollouts = RolloutBook(name, stores.rollout(name)) if stores.rollout is not None else None
        own = self._connections[name] = _Connections(stores.queue(name), stores.control(name), rollouts)
        scaler = PoolScaler(
            name,
            self.holder,
            pool,
            host,
            queue=own.queue,
            store=own.store,
            actuator=self._actuator,
            secret=self._secret,
            rollouts=rollouts,
            cells=CellStandbys(name, stores.control),
            announced=PoolLoads(name, self._announced, self._aliases) if self._announced is not None else None,
        )
        self.scalers = {**self.scalers, name: scaler}

    @property
    def port(self) -> int:
        """Port of metrics and health after `start`, 0 before."""
        return self._server.port if self._server is not None else 0

    async def start(self) -> None:
        """Serve metrics and health, and begin to lead, or to wait for the lead of, each pool.

        Raises:
            SettingsError: the address of the HTTP endpoints can't be used.
        """
        host = self._settings.autoscaler
        metrics = AutoscalerMetrics(lambda: self.scalers)
        try:
            self._server = ObservedServer(host.host, host.port, metrics.registry, self.healthy, self.ready)
        except OSError as error:
            why = error.strerror or error
            raise SettingsError(f"autoscaler.port: {host.port} on {host.host} can't be used: {why}") from error
        resource = resource_of("autoscaler", self.holder)
        self._push = open_push(self._settings.telemetry.push(resource), metrics.registry)
        if self._view is None:
            for scaler in self.scalers.values():
                self._begin(scaler)
        else:
            self._view.listen(KIND, self._hear)
            self._owner.spawn(self._view.watch(), "registry")
            self._owner.spawn(self._follow(self._view), "follow")
        _LOG.info("autoscaler.ready", extra={"autoscaler": self.holder, "pools": sorted(self.scalers)})

    def _begin(self, scaler: PoolScaler) -> None:
        self._work[scaler.name] = self._owner.spawn(self._look_after(scaler), scaler.name)

    def _hear(self, _: Entry) -> None:
        assert self._view is not None  # noqa: S101 - it calls this
        # The launcher sets a pool's number only after this autoscaler has settled.
        self._view.hold()
        self._changed.set()

    async def _follow(self, view: RegistryView) -> NoReturn:
        # Only now: the settings that this process was started with may be older than the entries.
        await view.known.wait()
        self._changed.set()
        failing = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._settle(view)
            except Exception:  # noqa: BLE001 - if the loop ended here, no later change would come into force
                if not failing:
                    _LOG.exception("autoscaler.settle_failed")
                failing = True
                self._changed.set()
                await asyncio.sleep(RETRY_S)
                continue
            failing = False
            if not self._changed.is_set():
                view.release()

    async def _settle(self, view: RegistryView) -> None:
        """Look after the pools that the registry has now, with their settings of now. At the return no number that was
        decided under earlier settings can still arrive at a pool whose number is no longer decided here.
        """
        entries = view.entries(KIND)
        self._pools = in_force(self._settings.pools, entries, self._settings.registry, self._pools)
        wanted = scaled_pools(self._pools)
        for name in wanted:
            if (scaler := self.scalers.get(name)) is not None:
                scaler.change(self._pools[name])
            else:
                self._open(name, self._pools[name])
            if name not in self._work:
                self._begin(self.scalers[name])
        for name, scaler in self.scalers.items():
            if name not in wanted:
                await self._leave(scaler)
            elif scaler.mode is not ControlMode.ACTIVE:
                await scaler.settled()
        if self._announced is not None:
            await self._announced.keep({*wanted, *self._aliases.names()})

    async def _leave(self, scaler: PoolScaler) -> None:
        """Look after a pool no more. A try that failed can be made again."""
        name = scaler.name
        if (work := self._work.pop(name, None)) is not None:
            work.cancel()
            await asyncio.wait([work])
        await scaler.settled()
        await self._resign(scaler)
        await scaler.close()
        await self._connections[name].close()
        del self._connections[name]
        self.scalers = {each: other for each, other in self.scalers.items() if each != name}
        _LOG.warning("autoscaler.left", extra={"pool": name})

    async def _resign(self, scaler: PoolScaler) -> None:
        try:
            await scaler.resign()
        except QueueUnavailableError:
            _LOG.warning("autoscaler.lease_left_to_expire", extra={"pool": scaler.name})

    def healthy(self) -> bool:
        """Return whether the loops run: the last turn was less than a minute and three ticks ago."""
        return time.monotonic() - self._looked_at < 60.0 + 3 * self._settings.autoscaler.tick_s

    def ready(self) -> bool:
        """Return whether the leader of every pool is known here."""
        return all(scaler.leader is not None for scaler in self.scalers.values())

    async def _look_after(self, scaler: PoolScaler) -> None:
        host = self._settings.autoscaler
        step_s = min(host.lease_s / 3, host.tick_s)
        due = time.monotonic()
        while True:
            self._looked_at = time.monotonic()
            try:
                if not await scaler.lead():
                    due = time.monotonic()
                elif time.monotonic() >= due:
                    # Counted from the last due time, so that ticks keep their distance.
                    due = max(due + host.tick_s, time.monotonic())
                    await scaler.tick()
            except QueueUnavailableError as error:
                _LOG.warning("autoscaler.store_away", extra={"pool": scaler.name, "error": str(error)})
            except Exception:  # noqa: BLE001 - a bug in one pool's decision must not end the others'
                scaler.tally.failures += 1
                _LOG.exception("autoscaler.tick_failed", extra={"pool": scaler.name})
            await asyncio.sleep(step_s)

    async def stop(self) -> None:
        """Give the leases back, so that another autoscaler may lead at once, and close connections."""
        await self._owner.close()
        for scaler in self.scalers.values():
            await self._resign(scaler)
            await scaler.close()
        for own in self._connections.values():
            await own.close()
        if self._announced is not None:
            await self._announced.close()
        if self._view is not None:
            await self._view.close()
        if self._push is not None:
            await asyncio.to_thread(self._push.close)
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
        _LOG.info("autoscaler.stopped", extra={"autoscaler": self.holder})


def scaled_pools(pools: Mapping[str, PoolSettings]) -> list[str]:
    """Return the names of the pools whose settings ask for an autoscaler."""
    return [name for name, pool in pools.items() if ControlMode(pool.autoscale.mode) is not ControlMode.OFF]
