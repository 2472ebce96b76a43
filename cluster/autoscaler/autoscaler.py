"""The autoscaler process: one `PoolScaler` per pool, ticks, metrics and health."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.autoscaler.actuator import Actuator
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.scaler import PoolScaler
from cluster.autoscaler.server import ObservedServer
from cluster.autoscaler.store import ControlStore
from cluster.control.settings import ControlMode
from cluster.errors import QueueUnavailableError, SettingsError
from cluster.lifecycle import TaskOwner
from cluster.queue.contract import Queue
from cluster.rollout.book import RolloutBook
from cluster.rollout.contract import RolloutStore
from cluster.settings import Settings
from cluster.telemetry.otlp_metrics import MetricPush, open_push
from cluster.trust.secret import ClusterSecret

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoscalerStores:
    """Factories of connections; each takes the pool's name."""

    queue: Callable[[str], Queue]
    control: Callable[[str], ControlStore]
    rollout: Callable[[str], RolloutStore] | None = None
    """None where no pool can have a roll-out."""


class Autoscaler:
    """Owner of the pools' scalers and their connections."""

    def __init__(self, settings: Settings, secret: ClusterSecret, stores: AutoscalerStores, actuator: Actuator) -> None:
        self.holder = f"autoscaler-{secrets.token_hex(4)}"
        self._settings = settings
        self._queues = {name: stores.queue(name) for name in scaled_pools(settings)}
        self._stores = {name: stores.control(name) for name in scaled_pools(settings)}
        self._rollouts = (
            {name: RolloutBook(name, stores.rollout(name)) for name in scaled_pools(settings)} if stores.rollout else {}
        )
        self._owner = TaskOwner(self.holder)
        self._looked_at = time.monotonic()
        self._server: ObservedServer | None = None
        self._push: MetricPush | None = None
        self.scalers = {
            name: PoolScaler(
                name,
                self.holder,
                settings.pools[name],
                settings.autoscaler,
                self._queues[name],
                self._stores[name],
                actuator,
                secret,
                rollouts=self._rollouts.get(name),
            )
            for name in scaled_pools(settings)
        }

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
        metrics = AutoscalerMetrics(self.scalers)
        try:
            self._server = ObservedServer(host.host, host.port, metrics.registry, self.healthy, self.ready)
        except OSError as error:
            why = error.strerror or error
            raise SettingsError(f"autoscaler.port: {host.port} on {host.host} can't be used: {why}") from error
        resource = {"service.name": "penstock-autoscaler", "service.instance.id": self.holder}
        self._push = open_push(self._settings.telemetry.push(resource), metrics.registry)
        for scaler in self.scalers.values():
            self._owner.spawn(self._look_after(scaler), scaler.name)
        _LOG.info("autoscaler.ready", extra={"autoscaler": self.holder, "pools": sorted(self.scalers)})

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
            try:
                await scaler.resign()
            except QueueUnavailableError:
                _LOG.warning("autoscaler.lease_left_to_expire", extra={"pool": scaler.name})
        for name in self.scalers:
            await self._queues[name].close()
            await self._stores[name].close()
        for book in self._rollouts.values():
            await book.close()
        if self._push is not None:
            await asyncio.to_thread(self._push.close)
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
        _LOG.info("autoscaler.stopped", extra={"autoscaler": self.holder})


def scaled_pools(settings: Settings) -> list[str]:
    """Return the names of the pools whose settings ask for an autoscaler."""
    return [name for name, pool in settings.pools.items() if ControlMode(pool.autoscale.mode) is not ControlMode.OFF]
