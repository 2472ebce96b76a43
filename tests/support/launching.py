"""A launcher of pools beside a stack in process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from cluster.registry.launcher import PoolLauncher
from cluster.settings import PoolSettings
from loadtest.benchmarks.rollouts.places import Places
from tests.support.stack import Stack


class Machine:
    """A platform in this process."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.places: dict[str, Places] = {}

    async def fit_pool(self, name: str, settings: PoolSettings) -> None:
        stack = self._stack
        alone = stack.settings.model_copy(update={"pools": {name: settings}})
        if (places := self.places.get(name)) is not None:
            places.change(alone, settings.replicas)
        else:
            opened = stack.queue, (lambda: stack.rollout(name))
            self.places[name] = Places(
                *(alone, name, settings.replicas, *opened), secret=stack.secret, open_registry=stack.registry
            )
        await self.places[name].full.wait()

    async def end_pool(self, name: str) -> None:
        if (places := self.places.pop(name, None)) is not None:
            await places.close()


@contextlib.asynccontextmanager
async def launching(stack: Stack, *, ray: bool = False, gpus: int = 0) -> AsyncIterator[Machine]:
    """Start and end replicas as the registry says, while the block runs. `ray`: say that Ray hosts them, with GPUs."""

    async def forget(_pool: str) -> None:
        pass

    machine = Machine(stack)
    launcher = PoolLauncher(
        stack.settings.pools, stack.registry(), machine, stack.factory().pool, forget, ray=ray, gpus=gpus
    )
    await launcher.begin()
    running = asyncio.create_task(launcher.run())
    try:
        yield machine
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await launcher.close()
        for name in list(machine.places):
            await machine.end_pool(name)
