"""What carries a number of replicas out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.errors import ActuatorError, BootstrapError
from cluster.ray_serve.api import ServeApi
from cluster.ray_serve.config import app_name
from cluster.trust.announcement import replica_name

BAD_STATES = ("DEPLOY_FAILED", "UNHEALTHY")


@dataclass(frozen=True, slots=True)
class Actual:
    """Is what the platform says of a pool."""

    target: int
    """Replicas that it was last told to have."""
    running: int
    trouble: str = ""
    """Why it can't have them; empty while it can."""
    replicas: frozenset[str] | None = None
    """Ids of those that it has, in any state; None where it does not say."""


class Actuator(Protocol):
    """Sets a pool's number of replicas. Level-triggered: the same number again changes nothing."""

    async def look(self, pool: str) -> Actual:
        """Read what is there.

        Raises:
            ActuatorError: it can't be read.
        """
        ...

    async def scale(self, pool: str, replicas: int) -> None:
        """Set the number; returns before it is carried out. Replicas to remove drain first.

        Raises:
            ActuatorError: it was not taken.
        """
        ...


class ServeActuator:
    """Uses Ray Serve's external scaler. Serve chooses who goes: first who still starts, then the newest; and its number
    is ours only until the application's config changes, so it is compared at every tick.
    """

    def __init__(self, serve: ServeApi) -> None:
        self._serve = serve

    async def look(self, pool: str) -> Actual:
        """See `Actuator.look`."""
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
        """See `Actuator.scale`."""
        try:
            await self._serve.scale(pool, replicas)
        except BootstrapError as error:
            raise ActuatorError(pool, str(error)) from error
