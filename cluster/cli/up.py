"""`penstock up` and `penstock down`."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cluster.addresses import host_port
from cluster.bootstrap.local import LocalCluster
from cluster.cli.console import screen
from cluster.cli.options import settings_from
from cluster.cli.progress import StepDisplay
from cluster.cli.target import KEY_VARIABLE
from cluster.errors import BootstrapError
from cluster.lifecycle import stop_signals
from cluster.settings import Settings

PID_FILE = "up.pid"
DOWN_TIMEOUT_S = 180.0


def run_up(options: argparse.Namespace) -> int:
    """Start a cluster and stay until Ctrl-C or SIGTERM, then stop it in order."""
    settings = settings_from(options)
    pid_file = claim_state_dir(settings)
    try:
        return asyncio.run(_up(settings, screen()))
    finally:
        pid_file.unlink(missing_ok=True)


async def _up(settings: Settings, console: Console) -> int:
    stop = asyncio.Event()
    with stop_signals(stop.set), StepDisplay(console) as display:
        cluster = LocalCluster(settings, display)
        starting = asyncio.create_task(cluster.start(), name="up.start")
        stopping = asyncio.create_task(stop.wait(), name="up.stop")
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                console.print("stopping before the cluster was up")
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return 130
            await starting
            _show(cluster, console)
            watching = asyncio.create_task(cluster.watch(), name="up.watch")
            await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
            watching.cancel()
            failed = (await asyncio.gather(watching, return_exceptions=True))[0]
            # Also what nobody expected: it ended the cluster, which must not look as if somebody had asked for it.
            # A cancelled watch is no `Exception`.
            if isinstance(failed, Exception):
                raise failed
            return 0
        finally:
            stopping.cancel()
            await cluster.stop()


def _show(cluster: LocalCluster, console: Console) -> None:
    pools, target = ", ".join(cluster.settings.pools), cluster.target
    console.print(
        f"\nserving [bold]{escape(pools)}[/] on [bold]{escape(target)}[/]; Ctrl-C stops",
        highlight=False,
        soft_wrap=True,
    )
    console.print(escape(f"try: {_try(cluster.settings, target)}"), highlight=False, soft_wrap=True)
    # Without `router.metrics_port` they are any free ones, and nobody else says which.
    ports = ", ".join(host_port(cluster.settings.router.host, each.metrics_port) for each in cluster.routers)
    console.print(escape(f"routers' metrics: {ports}"), highlight=False, soft_wrap=True)


def _try(settings: Settings, target: str) -> str:
    first = next(iter(settings.pools))
    model = f" --model {first}" if len(settings.pools) > 1 else ""
    key = f"{KEY_VARIABLE}=<API key> " if settings.auth.keys_file else ""
    # Some shells take brackets for a pattern.
    return f'{key}penstock generate --target {shlex.quote(target)}{model} "What is Penstock?"'


def claim_state_dir(settings: Settings) -> Path:
    """Write our pid into the state folder; one cluster per folder.

    Raises:
        BootstrapError: another cluster runs there.
    """
    folder = settings.cluster.state_dir.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    pid_file = folder / PID_FILE
    if (pid := live_pid(pid_file)) is not None:
        raise BootstrapError("cluster", f"process {pid} already runs one in {folder}; `penstock down` stops it")
    pid_file.write_text(str(os.getpid()), encoding="utf-8")
    return pid_file


def live_pid(pid_file: Path) -> int | None:
    """Return the process that the file names if it still is a Penstock cluster."""
    try:
        pid = int(pid_file.read_text(encoding="utf-8"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if b"penstock" in words or b"cluster.cli" in words else None


def run_down(options: argparse.Namespace) -> int:
    """Ask a running `penstock up` to stop and wait until it has."""
    console = screen()
    folder = Path(options.state_dir or "~/.penstock").expanduser()
    pid_file = folder / PID_FILE
    pid = live_pid(pid_file)
    if pid is None:
        console.print(f"no cluster runs in {escape(str(folder))}", highlight=False, soft_wrap=True)
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    with console.status(f"waiting for process {pid} to drain and stop"):
        while live_pid(pid_file) is not None:
            if time.monotonic() > deadline:
                raise BootstrapError("cluster", f"process {pid} still runs after {DOWN_TIMEOUT_S:.0f} s")
            time.sleep(0.1)
    console.print("stopped")
    return 0
