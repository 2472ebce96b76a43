"""Use of an existing Ray cluster, which continues to run when the Penstock cluster ends."""

from __future__ import annotations

import asyncio
import logging
import time

from cluster.bootstrap.ready import POLL_S, Progress
from cluster.errors import BootstrapError
from cluster.ray_serve.client import ServeApi
from cluster.ray_serve.config import STOP_MARGIN_S, app_name, serve_config
from cluster.settings import Settings

_LOG = logging.getLogger(__name__)


async def join_ray(serve: ServeApi, settings: Settings) -> int:
    """Check an existing Ray cluster before using it; return its number of GPUs.

    Raises:
        BootstrapError: other applications run there, or it does not answer.
    """
    try:
        there = (await serve.status()).keys()
    except BootstrapError as error:
        address = settings.cluster.ray_address
        hint = "cluster.ray_address must be the dashboard of a running Ray cluster, http://host:port"
        raise BootstrapError("ray serve", f"{address} can't be used: {error.detail}; {hint}") from error
    if foreign := sorted(there - _ours(settings)):
        raise BootstrapError(
            "ray serve",
            f"runs applications of others, which a deployment would end: {', '.join(foreign)}; "
            "give these pools a Ray cluster of their own, or leave cluster.ray_address empty",
        )
    return await serve.gpus()


async def leave_ray(serve: ServeApi, settings: Settings, progress: Progress) -> None:
    """Remove our applications from it: they need the settings and the Redis of this cluster, which ends."""
    progress("replicas", "draining")
    until = time.monotonic() + settings.replica.drain_s + STOP_MARGIN_S
    try:
        await serve.deploy({**serve_config(settings, "", 0), "applications": []})
        while time.monotonic() < until:
            if not _ours(settings) & (await serve.status()).keys():
                break
            await asyncio.sleep(POLL_S)
    except BootstrapError as error:
        # Log the failure and continue, so that the other components are still stopped.
        _LOG.error("ray.applications_left", extra={"error": str(error)})
        return
    progress("replicas", "stopped")


def _ours(settings: Settings) -> set[str]:
    return {app_name(name) for name in settings.pools}
