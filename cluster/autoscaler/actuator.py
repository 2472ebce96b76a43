"""The platform that runs replicas: reads and sets their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.errors import ActuatorError, BootstrapError
from cluster.ray_serve.client import ServeApi
from cluster.ray_serve.config import app_name
from cluster.trust.announcement import replica_name

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
