"""Copies of requests for a model that is tried. Nobody waits for them, and their output is dropped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cluster.errors import PenstockError
from cluster.lifecycle import TaskOwner
from router.call_origin import CallOrigin, enter_call
from router.generation.generation import Generation
from router.identity import Caller
from router.identity.revocations import outliving
from router.metrics import RouterMetrics
from router.routing import Route, Way

SHADOW_TENANT = "shadow"
"""Tenant that the ledger, records and limits have for copies. Its content is never shown to anybody."""
SHADOW_WAIT_S = 60.0
"""Longest wait of a copy in line, seconds."""
MOST_SHADOWS = 32
"""Most copies of a router that wait or run."""
_TOO_MANY = "TOO_MANY_SHADOWS"


class Shadows:
    """Copies that a router has sent."""

    def __init__(self, metrics: RouterMetrics, closed: Callable[[Generation], None], most: int = MOST_SHADOWS) -> None:
        """`closed` is told every generation at its end; `most` is the largest number of copies in flight."""
        self._metrics = metrics
        self._closed = closed
        self._most = most
        self._owner = TaskOwner("shadows")
        self._draining = False

    def __len__(self) -> int:
        return len(self._owner)

    def send(self, alias: str, route: Route, attempt: Callable[[Route, Caller, Way], Awaitable[Generation]]) -> None:
        """Send a copy. With too many in flight, count it and do nothing."""
        if self._draining:
            return
        if len(self._owner) >= self._most:
            self._metrics.alias_shadow_failed(alias, route, _TOO_MANY)
            return
        self._owner.spawn(self._run(alias, route, attempt), "copy")

    async def close(self) -> None:
        """Cancel all copies, and send no more."""
        self._draining = True
        await self._owner.close()

    async def _run(
        self, alias: str, route: Route, attempt: Callable[[Route, Caller, Way], Awaitable[Generation]]
    ) -> None:
        enter_call(CallOrigin("shadow"))
        try:
            generation = await attempt(route, Caller(SHADOW_TENANT), Way(alias))
        except PenstockError as error:
            self._metrics.alias_shadow_failed(alias, route, error.reason)
            return
        self._metrics.alias_request(alias, route)
        try:
            # A copy carries its caller's prompt, so it ends when the caller's key is revoked.
            with outliving(generation.cancel):
                async for _event in generation.unhurried():
                    pass
        except PenstockError as error:
            self._metrics.alias_shadow_failed(alias, route, error.reason)
        finally:
            generation.close()
            self._closed(generation)
