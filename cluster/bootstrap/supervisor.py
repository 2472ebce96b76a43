"""Starts Ray and its applications again when they have ended.

Ray without a store of its own does not survive its head: replicas end with it, and nothing of Ray's starts them again.
Routers and Redis need none of it. They keep what waits, up to its bounds, and what ran goes on when replicas are back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from cluster.bootstrap.back_off import BackOff
from cluster.errors import BootstrapError

_LOG = logging.getLogger(__name__)
LOOK_S = 1.0


class Supervised(Protocol):
    """Is a cluster whose Ray can be replaced."""

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
        """Start Ray and the applications again, without anything of the old ones left; returns when replicas run.

        Raises:
            BootstrapError: they did not come up.
        """
        ...


async def supervise(cluster: Supervised, back_off: BackOff, look_s: float = LOOK_S) -> None:
    """Replace Ray as often as it ends; returns never.

    Raises:
        BootstrapError: a process has ended that nobody replaces.
    """
    while True:
        cluster.check_kept()
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
            await asyncio.sleep(look_s)
