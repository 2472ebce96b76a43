"""`penstock up`: start a whole cluster on this machine."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import shlex
import sys
import threading
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.markup import escape

from cluster.addresses import bare_host, host_port
from cluster.bootstrap.ahead import with_http
from cluster.bootstrap.console import LocalConsole
from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.state_dir import claimed
from cluster.bootstrap.without_ray import local_cluster
from cluster.cli.options import settings_from
from cluster.errors import BootstrapError, SettingsError
from cluster.lifecycle import stop_signals
from cluster.ready_file import check_ready_file, write_ready_file
from cluster.settings import Settings
from cluster.telemetry.logs import configure_logging
from cluster.terminal.command import KEY_VARIABLE
from cluster.terminal.console import print_problem, screen
from cluster.terminal.progress import StepDisplay


def run_up(options: argparse.Namespace) -> int:
    """Start a cluster, wait for Ctrl-C, SIGTERM or the end of the terminal, then stop it in order."""
    check_ready_file(options.ready_file)
    settings, any_http_port = with_http(settings_from(options))
    if options.console is not None and settings.router.tls is not None:
        raise SettingsError(
            "--console: with router.tls it can't know which authorities to trust: run `penstock console`"
        )
    with claimed(settings.cluster.folder):
        # For warnings about processes that end and are restarted.
        configure_logging("warning", "text")
        return asyncio.run(_up(settings, screen(), options, any_http_port=any_http_port))


async def _up(settings: Settings, console: Console, options: argparse.Namespace, *, any_http_port: bool) -> int:
    stop = asyncio.Event()
    page: LocalConsole | None = None
    if options.until_eof:
        _stop_at_eof(stop)
    with stop_signals(stop.set) as stopped_by, StepDisplay(console) as display:
        cluster = local_cluster(settings, display)
        cluster.any_http_port = any_http_port
        starting = asyncio.create_task(cluster.start(), name="up.start")
        stopping = asyncio.create_task(stop.wait(), name="up.stop")
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                console.print("stopping before the cluster was up")
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return stopped_by.status
            await starting
            page = await _open_page(cluster, options, display)
            _show(cluster, console, page)
            write_ready_file(options.ready_file, _fields(cluster, page))
            watching = asyncio.create_task(cluster.watch(), name="up.watch")
            keeping = [asyncio.create_task(page.keep(), name="up.console")] if page is not None else []
            await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, *keeping):
                task.cancel()
            failed = (await asyncio.gather(watching, *keeping, return_exceptions=True))[0]
            # Raise unexpected errors too: they ended the cluster, which must not look like a stop by the user.
            # CancelledError of a cancelled watch is no `Exception`.
            if isinstance(failed, Exception):
                raise failed
            return 0
        finally:
            stopping.cancel()
            if page is not None:
                await page.stop()
            await cluster.stop()


async def _open_page(cluster: LocalCluster, options: argparse.Namespace, display: StepDisplay) -> LocalConsole | None:
    """Start the console where it is asked for. The cluster serves without it, too."""
    if options.console is None:
        return None
    page = LocalConsole(cluster.run_dir, _dialled(cluster.target), options.console)
    display("console", "starting")
    try:
        await page.start()
    except BootstrapError as error:
        display("console", "stopped")
        print_problem(error)
        return None
    display("console", "ready")
    return page


def _show(cluster: LocalCluster, console: Console, page: LocalConsole | None = None) -> None:
    pools, target = ", ".join(cluster.pools), cluster.target
    console.print(
        f"\nserving [bold]{escape(pools)}[/] on [bold]{escape(target)}[/]; Ctrl-C stops",
        highlight=False,
        soft_wrap=True,
    )
    running = cluster.settings.model_copy(update={"pools": cluster.pools})
    console.print(escape(f"try: {_try(running, target)}"), highlight=False, soft_wrap=True)
    for url in _http(cluster)[:1]:
        console.print(escape(f"OpenAI's SDKs: OPENAI_BASE_URL={url}"), highlight=False, soft_wrap=True)
    if page is not None:
        console.print(escape(f"console: {page.url}"), highlight=False, soft_wrap=True)
    # By default they are any free ports, which are printed only here.
    ports = ", ".join(host_port(cluster.settings.router.host, each.metrics_port) for each in cluster.routers)
    console.print(escape(f"routers' metrics: {ports}"), highlight=False, soft_wrap=True)
    if cluster.dashboard:
        console.print(escape(f"Ray's dashboard: {cluster.dashboard}"), highlight=False, soft_wrap=True)
    if cluster.autoscaler_port:
        port = host_port(cluster.settings.autoscaler.host, cluster.autoscaler_port)
        console.print(escape(f"autoscaler's metrics: {port}"), highlight=False, soft_wrap=True)


def _stop_at_eof(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def read() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(stop.set)

    # A daemon, because a read can't be interrupted.
    threading.Thread(target=read, name="until-eof", daemon=True).start()


def _fields(cluster: LocalCluster, page: LocalConsole | None) -> dict[str, Any]:
    """Return what a program that started this command needs."""
    return {
        "target": _dialled(cluster.target),
        "http": next(iter(_http(cluster)), ""),
        "pools": list(cluster.pools),
        "metrics_ports": [each.metrics_port for each in cluster.routers],
        "pid": os.getpid(),
        **({"console": page.url} if page is not None else {}),
    }


def _try(settings: Settings, target: str) -> str:
    first = next(iter(settings.pools))
    model = f" --model {first}" if len(settings.pools) > 1 else ""
    key = f"{KEY_VARIABLE}=<API key> " if settings.auth.credentials else ""
    tls = ""
    if settings.router.tls is not None:
        tls = " --tls-ca <file>"
        if settings.router.tls.client_ca_file is not None:
            tls += " --tls-cert <file> --tls-key <file>"
    # Some shells read the brackets of an IPv6 address as a pattern.
    return f'{key}penstock generate --target {shlex.quote(_dialled(target))}{tls}{model} "What is Penstock?"'


def _http(cluster: LocalCluster) -> list[str]:
    """Return the base URL of each router's HTTP API. Routers that share a port have the same one."""
    router = cluster.settings.router
    scheme = "https" if router.tls is not None else "http"
    return [f"{scheme}://{_dialled(host_port(router.host, each.http_port))}/v1" for each in cluster.routers]


def _dialled(target: str) -> str:
    """Return the address at which this machine reaches a target: one that means all addresses can't be called."""
    host, _, port = target.rpartition(":")
    try:
        address = ipaddress.ip_address(bare_host(host))
    except ValueError:
        return target
    if not address.is_unspecified:
        return target
    return host_port("127.0.0.1" if address.version == 4 else "::1", int(port))
