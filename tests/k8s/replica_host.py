"""Hosts one replica as a Ray Serve actor would: `python -m tests.k8s.replica_host IMPORT_PATH ARGS_JSON ID SESSION`.

The application is built by the import path of the Serve config from its arguments; its class is constructed with what
the application binds, asked for its health, and its destructor awaited on SIGTERM. Serve itself is made up: importing
Ray takes longer than everything else here.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from cluster.lifecycle import stop_signals

HEALTH_S = 2.0


@dataclass
class Bound:
    """What Serve calls an application: a class and what to construct it with."""

    kind: type
    arguments: tuple[Any, ...]


def make_serve(replica_id: str) -> ModuleType:
    """Build the little of `ray.serve` that `deployments.app` uses."""
    serve = ModuleType("ray.serve")
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id=replica_id), rank=SimpleNamespace(rank=0))

    def deployment(name: str) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(name=name, bind=lambda *arguments: Bound(kind, arguments))

    serve.deployment = deployment
    serve.get_replica_context = lambda: context
    return serve


async def run(import_path: str, arguments: dict[str, Any], name: str, session: str) -> None:
    """Serve until SIGTERM."""
    serve = make_serve(name)
    ray = ModuleType("ray")
    ray.serve = serve
    ray.get_runtime_context = lambda: SimpleNamespace(get_session_name=lambda: session)
    sys.modules.update({"ray": ray, "ray.serve": serve})
    module, function = import_path.split(":")
    bound = getattr(importlib.import_module(module), function)(arguments)
    host = bound.kind.__new__(bound.kind)
    stop = asyncio.Event()
    with stop_signals(stop.set):
        await host.__init__(*bound.arguments)
        while not stop.is_set():
            await host.check_health()
            try:
                await asyncio.wait_for(stop.wait(), HEALTH_S)
            except TimeoutError:
                continue
        await host.__del__()


def main() -> None:
    """Read the arguments and run."""
    import_path, arguments, name, session = sys.argv[1:]
    asyncio.run(run(import_path, json.loads(arguments), name, session))
    # The collector would run the destructor again.
    os._exit(0)


if __name__ == "__main__":
    main()
