"""Starts Ray with its applications, routers, and the autoscaler again when they have ended.

Ray without a store of its own does not survive its head: replicas end with it, and nothing of Ray's starts them again.
Routers and Redis need none of it. They keep what waits, up to its bounds, and what ran goes on when replicas are back.

A router that ended is missed by its clients alone: the others serve on, and those of a single one find it again at the
same port. What it had goes on from Redis and the replicas.

Nothing that serves needs the autoscaler: without it numbers of replicas stay as they are. So one that does not start
again costs the cluster nothing but that; it is tried again and again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from cluster.bootstrap.back_off import BackOff
from cluster.errors import BootstrapError
from cluster.lifecycle import side_by_side

_LOG = logging.getLogger(__name__)
LOOK_S = 1.0


class Supervised(Protocol):
    """Is a cluster whose Ray, routers and autoscaler can be replaced."""

    def check_kept(self) -> None:
        """Raise BootstrapError when a process has ended that nobody replaces."""
        ...

    async def look(self) -> None:
        """Remember what belongs to Ray, so that nothing of it is left when it has ended."""
        ...

    def ray_ended(self) -> bool:
        """Say whether the Ray that this cluster started has ended."""
        ...

    async def restart_ray(self) -> None:
        """Start Ray and the applications again, without anything of the old ones left; returns when replicas run. The
        autoscaler is stopped, because Ray's dashboard gets another address.

        Raises:
            BootstrapError: they did not come up.
        """
        ...

    def routers_missing(self) -> bool:
        """Say whether any router has ended."""
        ...

    async def restart_routers(self) -> None:
        """Start those that ended again, at their ports; returns when they run.

        Raises:
            BootstrapError: one did not come up; it is still missing.
            OSError: its files can't be written.
        """
        ...

    def autoscaler_missing(self) -> bool:
        """Say whether none runs although the settings ask for one."""
        ...

    async def restart_autoscaler(self) -> None:
        """Start the autoscaler again; returns when it runs.

        Raises:
            BootstrapError: it did not come up, nothing of it is left; or another process ended meanwhile.
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
    """Replace Ray, routers and the autoscaler as often as they end; returns never.

    Args:
        cluster: whose they are.
        back_off: waits before starts of Ray.
        look_s: seconds between looks.
        autoscaler_back_off: waits between starts of the autoscaler; default: one of its own.
        router_back_off: the same for routers.

    Raises:
        BootstrapError: a process has ended that nobody replaces.
    """
    # Routers by themselves: Ray takes a minute to come back, or several, and what they serve goes on without its head
    # for a while. Nobody could call before its end.
    await side_by_side(
        _look_at_kept(cluster, look_s),
        _keep_routers(cluster, router_back_off or BackOff(), look_s),
        _keep_ray(cluster, back_off, autoscaler_back_off or BackOff(), look_s),
    )


async def _look_at_kept(cluster: Supervised, look_s: float) -> None:
    """Notice such an end also where the others wait."""
    while True:
        cluster.check_kept()
        await asyncio.sleep(look_s)


async def _keep_routers(cluster: Supervised, back_off: BackOff, look_s: float) -> None:
    while True:
        if cluster.routers_missing():
            wait_s = back_off.wait_s(time.monotonic())
            await _restart("router", cluster.restart_routers, cluster, wait_s)
            await asyncio.sleep(wait_s)
        else:
            await asyncio.sleep(look_s)


async def _keep_ray(cluster: Supervised, back_off: BackOff, autoscaler_back_off: BackOff, look_s: float) -> None:
    """Keep Ray, and what needs its address: the autoscaler."""
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
                # Waited for between looks, not here: Ray may end meanwhile, and comes first.
                wait_s = autoscaler_back_off.wait_s(time.monotonic())
                await _restart("autoscaler", cluster.restart_autoscaler, cluster, wait_s)
                autoscaler_due = time.monotonic() + wait_s
            await asyncio.sleep(look_s)


async def _restart(what: str, start: Callable[[], Awaitable[None]], cluster: Supervised, again_in_s: float) -> None:
    try:
        await start()
        _LOG.warning("%s.restarted", what)
    except (BootstrapError, OSError) as error:
        cluster.check_kept()
        _LOG.error("%s.start_failed", what, extra={"error": str(error), "again_in_s": again_in_s})
