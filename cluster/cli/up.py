"""`penstock up` and `penstock down`."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import shlex
import signal
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cluster.addresses import bare_host, host_port
from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.state_dir import claimed, holder, is_held
from cluster.cli.console import screen
from cluster.cli.options import settings_from
from cluster.cli.progress import StepDisplay
from cluster.cli.target import KEY_VARIABLE
from cluster.errors import BootstrapError
from cluster.lifecycle import stop_signals
from cluster.settings import Settings
from cluster.telemetry.logs import configure_logging

DOWN_TIMEOUT_S = 180.0


def run_up(options: argparse.Namespace) -> int:
    """Start a cluster and stay until Ctrl-C or SIGTERM, then stop it in order."""
    settings = settings_from(options)
    with claimed(settings.cluster.state_dir.expanduser()):
        # Of what ends and is started again meanwhile.
        configure_logging("warning", "text")
        return asyncio.run(_up(settings, screen()))


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
    # Without settings they are any free ones, and nobody else says which.
    ports = ", ".join(host_port(cluster.settings.router.host, each.metrics_port) for each in cluster.routers)
    console.print(escape(f"routers' metrics: {ports}"), highlight=False, soft_wrap=True)
    if cluster.autoscaler_port:
        port = host_port(cluster.settings.autoscaler.host, cluster.autoscaler_port)
        console.print(escape(f"autoscaler's metrics: {port}"), highlight=False, soft_wrap=True)


def _try(settings: Settings, target: str) -> str:
    first = next(iter(settings.pools))
    model = f" --model {first}" if len(settings.pools) > 1 else ""
    key = f"{KEY_VARIABLE}=<API key> " if settings.auth.keys_file else ""
    tls = ""
    if settings.router.tls is not None:
        tls = " --tls-ca <file>"
        if settings.router.tls.client_ca_file is not None:
            tls += " --tls-cert <file> --tls-key <file>"
    # Some shells take brackets for a pattern.
    return f'{key}penstock generate --target {shlex.quote(_dialled(target))}{tls}{model} "What is Penstock?"'


def _dialled(target: str) -> str:
    """Return where this machine finds what listens there: an address that stands for all is none to call."""
    host, _, port = target.rpartition(":")
    try:
        address = ipaddress.ip_address(bare_host(host))
    except ValueError:
        return target
    if not address.is_unspecified:
        return target
    return host_port("127.0.0.1" if address.version == 4 else "::1", int(port))


def run_down(options: argparse.Namespace) -> int:
    """Ask a running `penstock up` to stop and wait until it has."""
    console = screen()
    folder = Path(options.state_dir) if options.state_dir else settings_from(options).cluster.state_dir
    folder = folder.expanduser()
    if not is_held(folder):
        console.print(f"no cluster runs in {escape(str(folder))}", highlight=False, soft_wrap=True)
        return 0
    pid = holder(folder)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        # It ended by itself in this moment.
        pass
    except PermissionError as error:
        raise BootstrapError("cluster", f"process {pid} is another user's") from error
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    with console.status(f"waiting for process {pid} to drain and stop"):
        while is_held(folder):
            if time.monotonic() > deadline:
                raise BootstrapError("cluster", f"process {pid} still runs after {DOWN_TIMEOUT_S:.0f} s")
            time.sleep(0.1)
    console.print("stopped")
    return 0
