"""Runs the launcher of a cluster without Ray, whose routers, Redis and pool `demo` are processes of their own.

python -m tests.chaos.launcher_process --settings-json FILE --ready-file FILE [--kind cleanup|registry]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cluster.bootstrap.supervisor import LOOK_S, BackOff
from cluster.bootstrap.without_ray import RaylessCluster
from cluster.lifecycle import side_by_side, stop_signals
from cluster.registry import launcher as launchers
from cluster.registry.launcher import PoolLauncher
from cluster.registry.pools import PoolState
from cluster.settings import PoolSettings
from cluster.settings.load import parse_settings
from cluster.telemetry import configure_logging


class Launched(RaylessCluster):
    """Replicas of the registry's pools, and nothing else of a cluster."""

    async def start(self) -> None:
        """Read the registry."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        await self._open_pools()
        self._up = True

    async def watch(self) -> None:
        """Follow the registry, and keep replicas up; runs until it is cancelled."""
        await side_by_side(self._keep_replicas(BackOff(), LOOK_S), *self._following())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings-json", type=Path, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--kind", choices=("whole", "cleanup", "registry"), default="whole")
    options = parser.parse_args()
    settings = parse_settings(options.settings_json.read_text(encoding="utf-8"))
    configure_logging(settings.cluster.log_level, settings.cluster.log_format)
    _switch_off(options.kind)
    asyncio.run(_run(Launched(settings, lambda *_: None), options.ready_file))


def _switch_off(protection: str) -> None:
    """Take a launcher's protection away, for a control run."""

    async def only_tell(launcher: PoolLauncher, removed: Iterable[str]) -> None:
        for name in removed:
            launcher._tell(name, PoolState.GONE)

    def only_declared(declared: Mapping[str, PoolSettings], *_: Any) -> dict[str, PoolSettings]:
        return dict(declared)

    if protection == "cleanup":
        PoolLauncher._end_again = only_tell  # type: ignore[method-assign]
    elif protection == "registry":
        launchers.in_force = only_declared  # type: ignore[assignment]


async def _run(cluster: Launched, ready_file: Path) -> None:
    stop = asyncio.Event()
    with stop_signals(stop.set):
        await cluster.start()
        watching = asyncio.create_task(cluster.watch())
        partial = ready_file.with_suffix(".partial")
        partial.write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")
        partial.replace(ready_file)
        await asyncio.wait([watching, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await cluster.stop()


if __name__ == "__main__":
    main()
