"""The Serve applications of a cluster's pools: deployed, waited for, ended."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster.errors import BootstrapError
from cluster.plural import counted
from cluster.ray_serve.client import ServeApi
from cluster.ray_serve.config import STOP_MARGIN_S, app_name, serve_config
from cluster.ray_serve.start_report import FOLDER, Failure, failures, forget, stages
from cluster.settings import PoolSettings, Settings

_LOG = logging.getLogger(__name__)

POLL_S = 0.3
ENGINE_TIMEOUT_S = 900.0


class ServePools:
    """Applications of one Ray."""

    def __init__(
        self,
        serve: ServeApi,
        settings_file: Path,
        gpus: int,
        progress: Callable[[str, str], None],
        check: Callable[[], None],
        log: str = "",
        *,
        follows: bool = False,
    ) -> None:
        """Prepare the applications.

        Args:
            serve: Serve's API.
            settings_file: file that replicas read; reports of their starts are beside it.
            gpus: number of GPUs of the Ray cluster.
            progress: shows a step's name and how far it is.
            check: raises BootstrapError where something ended that a start needs.
            log: path of Ray's log, for errors.
            follows: whether replicas learn from the registry what changes while they run.
        """
        self._serve = serve
        self._settings_file = settings_file
        self._reports = settings_file.parent / FOLDER
        self._gpus = gpus
        self._progress = progress
        self._check = check
        self._log = f"; log: {log}" if log else ""
        self._follows = follows

    async def deploy(self, settings: Settings) -> None:
        """Deploy all pools anew.

        Raises:
            BootstrapError: Serve refused it.
        """
        for name, pool in settings.pools.items():
            self._progress(f"pool {name}", f"starting {pool.engine.value} engines: {pool.model}")
        shutil.rmtree(self._reports, ignore_errors=True)
        await self._serve.deploy(self._config(settings))

    def _config(self, settings: Settings) -> dict[str, Any]:
        return serve_config(settings, str(self._settings_file), self._gpus, follows=self._follows)

    async def redeploy(self, settings: Settings) -> None:
        """Deploy the pools while others run: these keep the number of replicas that their autoscaler gave them, which
        may be none.

        Raises:
            BootstrapError: Serve refused it, or does not answer.
        """
        there = await self._serve.status()
        config = self._config(settings)
        for app, pool in zip(config["applications"], settings.pools.values(), strict=True):
            if pool.autoscale.mode == "active" and (found := there.get(app["name"])) is not None:
                # Serve changes nothing where it reads the same config again. Else its config has no number below 1.
                same = found.deployed > 0 and found.digest == app["args"]["digest"]
                app["deployments"][0]["num_replicas"] = found.deployed if same else max(1, found.target)
        await self._serve.deploy(config)

    def forget_starts(self, name: str) -> None:
        """Forget reports of a pool's earlier starts: they say nothing of the next ones."""
        forget(self._reports, name)

    async def come_up(self, pools: Mapping[str, PoolSettings]) -> None:
        """Wait until the replicas of pools run. One that does not start is logged, and takes no other one down.

        Raises:
            BootstrapError: something ended that a start needs.
        """
        starts = (self.ready(name, pool) for name, pool in pools.items())
        for found in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(found, BootstrapError):
                _LOG.error("pool.start_failed", extra={"error": str(found)})
            elif isinstance(found, BaseException):
                raise found
        self._check()

    async def ready(self, name: str, pool: PoolSettings) -> None:
        """Wait until the replicas of a pool run: as many as its settings ask for, or its autoscaler.

        Raises:
            BootstrapError: they do not start.
        """
        began = time.monotonic()
        while time.monotonic() - began < ENGINE_TIMEOUT_S:
            self._check()
            app = (await self._serve.status()).get(app_name(name))
            failed = list(failures(self._reports, name))
            if final := next((each for each in failed if each.final), None):
                raise self._not_started(name, final.text)
            if app is not None:
                wanted = app.target if pool.autoscale.mode == "active" else pool.replicas
                if app.status == "RUNNING" and app.target != wanted:
                    # An autoscaler set another one before. Serve keeps that where its config has not changed.
                    await self._serve.scale(name, wanted)
                elif app.status == "RUNNING" and app.running >= wanted:
                    self._progress(f"pool {name}", "ready")
                    return
                if app.status == "DEPLOY_FAILED":
                    raise self._not_started(name, failed[0].text if failed else app.message[-2_000:])
                self._progress(f"pool {name}", self._stage(name, app.running, wanted, failed))
            await asyncio.sleep(POLL_S)
        raise self._not_started(name, failed[0].text if failed else f"no replica within {ENGINE_TIMEOUT_S:.0f} s")

    def _stage(self, name: str, running: int, wanted: int, failed: list[Failure]) -> str:
        parts = [f"{running} of {counted(wanted, 'replica runs', 'replicas run')}"]
        parts += stages(self._reports, name)
        if failed:
            parts.append(f"{counted(len(failed), 'start', 'starts')} failed: {failed[-1].text.splitlines()[0]}")
        return "; ".join(parts)

    def _not_started(self, name: str, cause: str) -> BootstrapError:
        return BootstrapError(f"pool {name}", f"{cause}{self._log}")

    async def has(self, name: str) -> bool:
        """Return whether a pool is deployed, or ends.

        Raises:
            BootstrapError: Serve does not answer.
        """
        return app_name(name) in await self._serve.status()

    async def gone(self, name: str, drain_s: float) -> None:
        """Wait until a pool that is no longer deployed has no replicas, at most for their drain and what Serve adds.

        Raises:
            BootstrapError: Serve does not answer.
        """
        until = time.monotonic() + drain_s + STOP_MARGIN_S
        while time.monotonic() < until:
            if app_name(name) not in await self._serve.status():
                return
            await asyncio.sleep(POLL_S)


async def numbers(serve: ServeApi | None, pools: Mapping[str, PoolSettings]) -> dict[str, int]:
    """Return how many replicas pools have by now: as many as their settings ask for, or as an autoscaler set before.
    Without Ray the settings alone say it.

    Raises:
        BootstrapError: Serve does not answer.
    """
    there = await serve.status() if serve is not None else {}
    found = {}
    for name, pool in pools.items():
        app = there.get(app_name(name)) if pool.autoscale.mode == "active" else None
        found[name] = pool.replicas if app is None else app.target
    return found
