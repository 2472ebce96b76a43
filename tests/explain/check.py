"""Run of the plants, and comparison of what `explain` names with what was planted."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.explain.plants import PLANTS, Plant
from tests.explain.scene import running_scene

AT_ONCE = 3
"""Plants that run beside each other. They mostly wait."""
PLANT_S = 60.0


@dataclass(frozen=True)
class Named:
    """What was said of a planted request."""

    name: str
    planted: tuple[str, ...]
    cause: str
    summary: str
    seconds: float
    """How long the plant took."""

    @property
    def right(self) -> bool:
        """Whether the cause is a right one."""
        return self.cause in self.planted


async def run_plants(plants: Sequence[Plant] = PLANTS, told: Callable[[Named], None] | None = None) -> list[Named]:
    """Run plants, a few beside each other; `told` hears each at its end."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(plant: Plant) -> Named:
        async with room:
            named = await name_plant(plant)
        if told is not None:
            told(named)
        return named

    return list(await asyncio.gather(*map(one, plants)))


async def name_plant(plant: Plant) -> Named:
    """Run one plant, and ask for the cause."""
    began_at = time.monotonic()
    cause, summary = "failed", ""
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-explain-") as folder:
            async with asyncio.timeout(PLANT_S), running_scene(Path(folder), plant) as scene:
                explained = await scene.explain(await plant.run(scene))
                cause, summary = explained.cause, explained.summary
    except Exception as error:  # noqa: BLE001 - a plant that fails is not named
        summary = f"{type(error).__name__}: {error}"
    planted = tuple(sorted(each.value for each in plant.causes))
    return Named(plant.name, planted, cause, summary, time.monotonic() - began_at)


def as_json(found: Sequence[Named]) -> dict[str, Any]:
    """Return the outcome as it is written to a file."""
    return {
        "planted": len(found),
        "named": sum(each.right for each in found),
        "requests": [
            {"name": each.name, "planted": list(each.planted), "cause": each.cause, "summary": each.summary}
            for each in found
        ],
    }
