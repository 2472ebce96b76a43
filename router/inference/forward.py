"""Calls on aliases: to the target, to the fallback where that refuses, and copies to a model that is tried."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from cluster.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    NoReplicaError,
    NotInTimeError,
    PenstockError,
    QueueFullError,
)
from router.admission.budgets import warning_of
from router.dispatch.pool import Pool
from router.generation.generation import Generation
from router.generation.wait import EarlierRefusals
from router.identity import Caller, require_model
from router.inference.shadows import Shadows
from router.metrics import RouterMetrics
from router.routing import Aliases, Route, Way
from router.validation.violations import shown

MODEL_HEADER, ADAPTER_HEADER = "penstock-model", "penstock-lora-adapter"
"""Metadata of the answer to a request of an alias."""
REFUSES = (NoReplicaError, QueueFullError, NotInTimeError)
"""Refusals of a pool before any output, after which another pool may serve the request."""

Opened = TypeVar("Opened")
Attempt = Callable[[Route, Caller, Way], Awaitable[Opened]]
"""Function that opens a request in a pool."""


@dataclass(frozen=True, slots=True)
class Forwarded(Generic[Opened]):
    """A request that a pool has let in."""

    opened: Opened
    route: Route
    refusal: EarlierRefusals | None = None
    """What the target said, where the fallback serves the request."""

    def told(self, generation: Generation) -> None:
        """Tell a generation why it runs in this pool."""
        if self.refusal is not None and generation.refused is None:
            generation.refused = self.refusal


class Forwarding:
    """Way of a router's calls on aliases."""

    def __init__(
        self, aliases: Aliases, pools: Mapping[str, Pool], metrics: RouterMetrics, shadows: Shadows | None = None
    ) -> None:
        """Without `shadows` no copies are sent."""
        self.aliases = aliases
        self._pools = pools
        self._metrics = metrics
        self._shadows = shadows

    def is_alias(self, name: str) -> bool:
        """Return whether a name is one of an alias."""
        return self.aliases.get(name) is not None

    async def forward(
        self,
        alias: str,
        route: Route | None,
        caller: Caller,
        request_id: str,
        attempt: Attempt[Opened],
        *,
        begun: bool = False,
    ) -> Forwarded[Opened]:
        """Open a request of an alias.

        Args:
            alias: name that its caller used.
            route: where it goes first; None for nowhere.
            caller: its caller, who need not have the right to use the pool by its own name.
            request_id: id that it gets at its target.
            attempt: opens it in a pool.
            begun: whether it has begun there, so that no other pool may serve it.

        Raises:
            PermissionDeniedError: the caller may not use the alias.
            ModelNotFoundError: no target of the alias is served.
            PenstockError: the target's, also where the fallback refuses the request too.
        """
        require_model(caller, alias)
        if route is None:
            raise ModelNotFoundError(alias, self.aliases.allowed(caller))
        through = replace(caller, models=None)
        spare = self.aliases.fallback(alias, route) if not begun else None
        if spare is None:
            return Forwarded(await attempt(route, through, Way(alias, request_id)), route)
        ready = self._pools[spare.pool].replicas.ready() > 0
        began_at = time.monotonic()
        try:
            opened = await attempt(route, through, Way(alias, request_id, ready_only=ready, goes_on=True))
            return Forwarded(opened, route)
        except REFUSES as error:
            try:
                opened = await attempt(spare, through, Way(alias))
            except PenstockError as second:
                # The one that says what the caller can do: that of the model it asked for.
                raise error from second
            return Forwarded(opened, spare, EarlierRefusals(began_at, time.monotonic(), 1, error.reason, str(error)))

    def served(self, alias: str, route: Route) -> None:
        """Count a request that was let in."""
        self._metrics.alias_request(alias, route)

    async def close(self) -> None:
        """End all copies."""
        if self._shadows is not None:
            await self._shadows.close()

    def copy(self, alias: str, request_id: str, attempt: Attempt[Generation]) -> None:
        """Send a copy of a request where the alias asks for it. It goes its own way: nobody waits for it."""
        route = self.aliases.shadow(alias, request_id)
        if route is not None and self._shadows is not None:
            self._shadows.send(alias, route, attempt)


def answer_metadata(generation: Generation) -> tuple[tuple[str, str], ...]:
    """Return metadata for a generation's client: for that of an alias the model that serves it, and the adapter where
    there is one; and the budget that is nearly used.
    """
    return (*_served_by(generation), *warning_of(generation.choices))


def _served_by(generation: Generation) -> tuple[tuple[str, str], ...]:
    adapter = generation.adapter
    if not generation.alias:
        return ()
    # Metadata is ASCII; the receipt has every name.
    tellable = adapter and adapter.isascii() and adapter.isprintable()
    return ((MODEL_HEADER, generation.pool), *(((ADAPTER_HEADER, adapter),) if tellable else ()))


def adapter_of(alias: str, asked: str, route: Route, *, field: str = "lora_adapter") -> str:
    """Return the adapter that a request of an alias gets. `field`: path of the one that it asks for.

    Raises:
        InvalidRequestError: the request names another one than the alias.
    """
    if route.adapter and asked not in ("", route.adapter):
        problem = f"must be empty for the alias {shown(alias)}, which chooses the adapter, got {shown(asked)}"
        raise InvalidRequestError.of(field, problem)
    return route.adapter or asked
