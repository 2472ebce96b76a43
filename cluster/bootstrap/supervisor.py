"""Supervisor: starts Ray with its applications, routers, and the autoscaler again when they have ended.

Ray without a store of its own does not survive the end of its head: replicas end with it, and Ray does not start them
again. Routers and Redis do not need Ray. They keep waiting requests, up to their bounds, and requests that ran continue
when replicas are back.

The end of a router affects only its own clients. Other routers continue to serve, and the new one listens at the same
port. Its requests continue from Redis and the replicas.

No serving process needs the autoscaler: without it the numbers of replicas stay as they are. An autoscaler that does
not start is therefore tried again for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from cluster.errors import BootstrapError
from cluster.lifecycle import side_by_side

_LOG = logging.getLogger(__name__)
LOOK_S = 1.0


class BackOff:
    """Wait that doubles with each end of the process and starts anew after a calm time.

    Args:
        first_s: seconds of the wait after the first end.
        longest_s: longest wait in seconds.
        calm_s: seconds without an end after which the next one counts as the first.
    """

    def __init__(self, first_s: float = 1.0, longest_s: float = 60.0, calm_s: float = 300.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._calm_s = calm_s
        self._wait_s = first_s
        self._ended_at: float | None = None

    def wait_s(self, now: float) -> float:
        """Note an end at `now`, in monotonic seconds; return the seconds to wait."""
        if self._ended_at is None or now - self._ended_at > self._calm_s:
            self._wait_s = self._first_s
        else:
            self._wait_s = min(self._longest_s, self._wait_s * 2)
        self._ended_at = now
        return self._wait_s


class Supervised(Protocol):
    """A cluster whose Ray, routers and autoscaler can be replaced."""

    def check_kept(self) -> None:
        """Raise BootstrapError if a process has ended that is not replaced."""
        ...

    async def look(self) -> None:
        """Remember Ray's descendants, so that all of them can be ended after Ray."""
        ...

    def ray_ended(self) -> bool:
        """Return whether the Ray that this cluster started has ended."""
        ...

    async def restart_ray(self) -> None:
        """End what is left of Ray, then start Ray and the applications again; return when replicas run. A pool whose
        replicas do not start is logged: another restart would end those of all others. The autoscaler is stopped,
        because Ray's dashboard gets another address.

        Raises:
            BootstrapError: Ray did not come up, or did not take the applications.
        """
        ...

    def routers_missing(self) -> bool:
        """Return whether any router has ended."""
        ...

    async def restart_routers(self) -> None:
        """Start ended routers again, at their ports; return when they run.

        Raises:
            BootstrapError: a router did not come up; it is still missing.
            OSError: its files can't be written.
        """
        ...

    def autoscaler_missing(self) -> bool:
        """Return whether no autoscaler runs although the settings ask for one."""
        ...

    async def restart_autoscaler(self) -> None:
        """Start the autoscaler again; return when it runs.

        Raises:
            BootstrapError: it did not come up, and none of it is left; or another process ended meanwhile.
            OSError: its files can't be written.
        """
        ...


async def supervise(
    cluster: Supervised,
    back_off: BackOff,
    look_s: float = LOOK_S,
    autoscaler_back_off: BackOff | None = None,
    router_back_off: BackOff | None = None,
) -> None:
    """Replace Ray, routers and the autoscaler whenever they end; never return.

    Args:
        cluster: the cluster to supervise.
        back_off: waits before starts of Ray.
        look_s: seconds between looks.
        autoscaler_back_off: waits between starts of the autoscaler; default: a new one.
        router_back_off: waits between starts of routers; default: a new one.

    Raises:
        BootstrapError: a process has ended that is not replaced.
    """
    # Routers are kept in a separate loop. Ray takes a minute or more to come back, and without routers no client could
    # call in that time, though replicas serve for a while without Ray's head.
    await side_by_side(
        look_at_kept(cluster, look_s),
        keep_routers(cluster, router_back_off or BackOff(), look_s),
        _keep_ray(cluster, back_off, autoscaler_back_off or BackOff(), look_s),
    )


async def look_at_kept(cluster: Supervised, look_s: float) -> None:
    """Check processes that are not replaced, also while the other loops wait."""
    while True:
        cluster.check_kept()
        await asyncio.sleep(look_s)


async def keep_routers(cluster: Supervised, back_off: BackOff, look_s: float) -> None:
    """Start routers again that have ended."""
    while True:
        if cluster.routers_missing():
            wait_s = back_off.wait_s(time.monotonic())
            await restart("router", cluster.restart_routers, cluster, wait_s)
            await asyncio.sleep(wait_s)
        else:
            await asyncio.sleep(look_s)


async def _keep_ray(cluster: Supervised, back_off: BackOff, autoscaler_back_off: BackOff, look_s: float) -> None:
    """Keep Ray up, and the autoscaler, which needs Ray's address."""
    autoscaler_due = 0.0
    while True:
        if cluster.ray_ended():
            wait_s = back_off.wait_s(time.monotonic())
            _LOG.error("ray.ended", extra={"again_in_s": wait_s})
            await asyncio.sleep(wait_s)
            try:
                await cluster.restart_ray()
                _LOG.warning("ray.restarted")
            except BootstrapError as error:
                cluster.check_kept()
                _LOG.error("ray.restart_failed", extra={"error": str(error)})
        else:
            await cluster.look()
            if cluster.autoscaler_missing() and time.monotonic() >= autoscaler_due:
                # No sleep for the back-off here: Ray may end meanwhile, and has to be restarted first.
                wait_s = autoscaler_back_off.wait_s(time.monotonic())
                await restart("autoscaler", cluster.restart_autoscaler, cluster, wait_s)
                autoscaler_due = time.monotonic() + wait_s
            await asyncio.sleep(look_s)


async def restart(what: str, start: Callable[[], Awaitable[None]], cluster: Supervised, again_in_s: float) -> None:
    """Start something again and log the outcome. Raises BootstrapError if a process has ended that is not replaced."""
    try:
        await start()
        _LOG.warning("%s.restarted", what)
    except (BootstrapError, OSError) as error:
        cluster.check_kept()
        _LOG.error("%s.start_failed", what, extra={"error": str(error), "again_in_s": again_in_s})
