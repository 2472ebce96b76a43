"""Waits until started processes are ready, and the callback that shows them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.addresses import host_port, listening_host
from cluster.bootstrap.process import ChildProcess
from cluster.errors import BootstrapError
from cluster.ray_serve.inside import INSIDE

Progress = Callable[[str, str], None]
"""Callback with a step's name and a text about its progress; the texts "ready" and "stopped" end the step."""

POLL_S = 0.1
"""Seconds between two looks at files and endpoints that can't notify."""
START_S = 300.0
"""Longest start of a process, seconds. Two cores with other work take a minute for a router. Only one that hangs takes
all of it: an end is noticed at once."""
LINKS_S = 60.0
"""Longest time until routers and replicas that are up are linked."""


@dataclass(frozen=True, slots=True)
class RouterProcess:
    """A running router."""

    process: ChildProcess
    router_id: str
    port: int
    metrics_port: int
    http_port: int


async def start_router(run_dir: Path, index: int, flags: list[str]) -> RouterProcess:
    """Start a router process; return it when its port is open. `index`: number among the routers of its cluster.

    Raises:
        BootstrapError: it did not come up.
    """
    ready_file = run_dir / f"router-{index}.json"
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "router", "--ready-file", str(ready_file), *flags]
    process = await ChildProcess.start(f"router {index}", command, run_dir / f"router-{index}.log")
    try:
        fields = await wait_file(ready_file, process, START_S)
    except BaseException:
        await process.stop(1.0)
        raise
    return RouterProcess(process, fields["router_id"], fields["port"], fields["metrics_port"], fields["http_port"])


async def wait_file(
    path: Path, process: ChildProcess, seconds: float, check: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Wait until a child wrote its ready file; return its content. `check` is called at every look.

    Raises:
        BootstrapError: the child ended, the time ran out, or `check` raised it.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (fields := await asyncio.to_thread(_read_json, path)) is not None:
            return fields
        process.check()
        check()
        await asyncio.sleep(POLL_S)
    raise BootstrapError(process.name, f"not ready within {seconds:.0f} s; end of its log:\n{process.log_tail()}")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return fields


async def wait_linked(
    routers: Sequence[RouterProcess], host: str, wanted: dict[str, int], progress: Progress, check: Callable[[], None]
) -> None:
    """Wait until each router has links to so many replicas of each pool. `check` is called at every look.

    Raises:
        BootstrapError: one has not, after `LINKS_S`.
    """
    # Routers learn of new replicas by a heartbeat; without this wait the first request would wait for it.
    progress("links", "connecting routers and replicas")
    until = time.monotonic() + LINKS_S
    for index, router in enumerate(routers):
        while missing := await asyncio.to_thread(unlinked, router.metrics_port, host, wanted):
            check()
            if time.monotonic() > until:
                pools = ", ".join(missing)
                why = f"not linked to all replicas of {pools} within {LINKS_S:.0f} s"
                worries = router.process.worries()
                told = f"; its log says:\n{worries}\n" if worries else "; "
                raise BootstrapError(f"router {index}", f"{why}{told}log: {router.process.log_file}")
            progress("links", f"connecting routers and replicas of {', '.join(missing)}")
            await asyncio.sleep(POLL_S)
    progress("links", "ready")


def unlinked(metrics_port: int, host: str, wanted: dict[str, int]) -> list[str]:
    """Return the pools of which a router is linked to fewer replicas than wanted, from its metrics; all of them if it
    does not answer.
    """
    try:
        with INSIDE.open(f"http://{host_port(listening_host(host), metrics_port)}/metrics", timeout=5) as reply:
            lines = reply.read().decode().splitlines()
    except OSError:
        return list(wanted)
    return [
        pool
        for pool, count in wanted.items()
        if not any(
            line.startswith(f'penstock_router_links_up{{pool="{pool}"}}') and float(line.split()[-1]) >= count
            for line in lines
        )
    ]
