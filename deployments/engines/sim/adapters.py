"""LoRA adapters of the simulated engine: they change the tokens that it makes up."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

from cluster.errors import EngineRequestError
from cluster.settings import SimSettings

_CONFIG = "adapter_config.json"


class SimAdapters:
    """Adapters that are loaded."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self._seeds: dict[str, int] = {"": 0}

    def seed(self, name: str) -> int:
        """Return what an adapter adds to the seed of a sequence.

        Raises:
            EngineRequestError: it is not loaded.
        """
        if name not in self._seeds:
            raise EngineRequestError(f"adapter {name!r} is not loaded")
        return self._seeds[name]

    async def load(self, name: str, folder: Path) -> None:
        """Load an adapter for as long as the settings say.

        Raises:
            EngineRequestError: it has no configuration, or there is no room.
        """
        if name in self._seeds:
            raise EngineRequestError(f"adapter {name!r} is loaded already")
        if len(self._seeds) > self._settings.max_loras:
            raise EngineRequestError(f"sim.max_loras = {self._settings.max_loras} adapters are loaded already")
        await asyncio.sleep(self._settings.adapter_load_s * self._settings.time_scale)
        if not (folder / _CONFIG).is_file():
            raise EngineRequestError(f"the engine can't load the adapter: there is no {_CONFIG}")
        # The same on every replica.
        self._seeds[name] = 1 + zlib.crc32(name.encode())

    def unload(self, name: str) -> None:
        """Forget an adapter."""
        if name:
            self._seeds.pop(name, None)
