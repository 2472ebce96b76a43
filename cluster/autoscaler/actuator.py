"""The platform that runs replicas: reads and sets their number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from cluster.errors import ActuatorError, BootstrapError
from cluster.lifecycle import TaskOwner, timeout_awake
from cluster.queue.heartbeats import PoolView
from cluster.ray_serve.client import ServeApi
from cluster.ray_serve.config import app_name
from cluster.trust.announcement import replica_name

Result = TypeVar("Result")

BAD_STATES = ("DEPLOY_FAILED", "UNHEALTHY")


@dataclass(frozen=True, slots=True)
class Actual:
    """State of a pool according to the platform."""

    target: int
    """Replicas that it was last told to have."""
    running: int
    trouble: str = ""
    """Reason why it can't have them; empty if it can."""
    replicas: frozenset[str] | None = None
    """Ids of the replicas that it has, in any state; None if it does not list them."""

    def own(self, view: PoolView) -> PoolView:
        """Return the view without replicas of other clusters. While one cluster replaces another both have replicas in
        the pool, but the number is sent to one cluster only.
        """
        if self.replicas is None:
            return view
        own = tuple(record for record in view.replicas if record.replica_id in self.replicas)
        # Replicas run, but none of the platform's ids matches an announced one: then these ids can't be compared.
        return view if self.running and not own else replace(view, replicas=own)


class Actuator(Protocol):
    """Control of pools' numbers of replicas. Level-triggered: the same number again changes nothing."""

    async def look(self, pool: str) -> Actual:
        """Read the state of a pool.

        Raises:
            ActuatorError: it can't be read.
        """
        ...

    async def scale(self, pool: str, replicas: int) -> None:
        """Set the number of replicas. Return before the change is done. Replicas to remove drain first.

        Raises:
            ActuatorError: the platform did not accept the number.
        """
        ...


class ServeActuator:
    """Ray Serve's external scaler. Serve chooses the replicas to remove: first those that still start, then the newest.
    A change of the application's config replaces the number, so it is compared at every tick.
    """

    def __init__(self, serve: ServeApi) -> None:
        self._serve = serve

    async def look(self, pool: str) -> Actual:
        try:
            apps = await self._serve.status()
        except BootstrapError as error:
            raise ActuatorError(pool, str(error)) from error
        app = apps.get(app_name(pool))
        if app is None:
            raise ActuatorError(pool, f"Ray Serve has no application {app_name(pool)!r}")
        trouble = f"{app.status}: {app.message}"[:500] if app.status in BAD_STATES else ""
        names = None if app.replicas is None else frozenset(replica_name(pool, one) for one in app.replicas)
        return Actual(app.target, app.running, trouble, names)

    async def scale(self, pool: str, replicas: int) -> None:
        try:
            await self._serve.scale(pool, replicas)
        except BootstrapError as error:
            raise ActuatorError(pool, str(error)) from error


class PatientActuator:
    """Actuator of one pool whose answers are waited for only so long.

    What is on its way can't be called back. A number may take effect after its caller has given up. A look holds a
    thread of the process until Ray answers or the client's own timeout, so the next one waits for the same answer:
    otherwise the looks of one pool would take all threads in a while, and those of other pools would wait for one.
    """

    def __init__(self, pool: str, actuator: Actuator, patience_s: float) -> None:
        self._pool = pool
        self._actuator = actuator
        self._patience_s = patience_s
        self._owner = TaskOwner(f"actuator {pool}")
        self._sent: asyncio.Task[ActuatorError | None] | None = None
        self._looking: asyncio.Task[Actual | ActuatorError] | None = None

    async def look(self) -> Actual:
        """Read the state of the pool.

        Raises:
            ActuatorError: it can't be read, or not in time.
        """
        if self._looking is None or self._looking.done():
            self._looking = self._owner.spawn(self._look(), "look")
        found = await self._in_time(asyncio.shield(self._looking))
        if isinstance(found, ActuatorError):
            raise found
        return found

    async def _look(self) -> Actual | ActuatorError:
        """Return the error instead of raising it, as in `_scale`."""
        try:
            return await self._actuator.look(self._pool)
        except ActuatorError as error:
            return error

    async def scale(self, replicas: int) -> None:
        """Set the number of replicas, after any number before it.

        Raises:
            ActuatorError: the platform did not accept the number, or did not answer in time.
        """
        if (refused := await self._in_time(self._send(replicas))) is not None:
            raise refused

    async def _send(self, replicas: int) -> ActuatorError | None:
        await self.settled()
        # A look that has begun does not see this number.
        self._looking = None
        self._sent = self._owner.spawn(self._scale(replicas), "scale")
        return await asyncio.shield(self._sent)

    async def _scale(self, replicas: int) -> ActuatorError | None:
        """Return the error instead of raising it: the caller may no longer wait."""
        try:
            await self._actuator.scale(self._pool, replicas)
        except ActuatorError as error:
            return error
        return None

    async def settled(self) -> None:
        """Wait until no number is on its way."""
        while self._sent is not None and not self._sent.done():
            await asyncio.wait([self._sent])

    async def close(self) -> None:
        """Wait for no number any more."""
        await self._owner.close()

    async def _in_time(self, call: Awaitable[Result]) -> Result:
        try:
            async with timeout_awake(self._patience_s):
                return await call
        except TimeoutError:
            raise ActuatorError(self._pool, f"no answer within {self._patience_s:.1f} s") from None
