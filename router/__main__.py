"""The router process: `python -m router`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from router import polling  # noqa: F401 - before anything that imports gRPC

# isort: split

from cluster.errors import SetupError
from cluster.gc_tuning import settle_heap
from cluster.lifecycle import stop_signals
from cluster.open_files import raise_open_files
from cluster.queue.cells.names import cell_name
from cluster.ready_file import READY_FLAG, check_ready_file, write_ready_file
from cluster.redis.check import warn_or_refuse
from cluster.settings import Settings
from cluster.settings.load import read_settings
from cluster.telemetry import configure_logging
from cluster.trust.secret import ClusterSecret
from router.build import build_router
from router.server import Router
from router.stores import redis_factory


def main(argv: Sequence[str] | None = None) -> int:
    """Run a router until SIGTERM or SIGINT, and return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        check_ready_file(options.ready_file)
        settings = read_settings(options.settings_json, options.settings)
        configure_logging(settings.cluster.log_level, settings.cluster.log_format)
        raise_open_files()
        run = _run(settings, options)
        _run_loop(run)
    except SetupError as error:
        sys.stderr.write(f"penstock router: {error}\n")
        return 2
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m router", description="Runs one Penstock router process.")
    parser.add_argument("--settings", type=Path, help="TOML file; default: $PENSTOCK_SETTINGS and PENSTOCK_* variables")
    parser.add_argument("--settings-json", type=Path, help="a whole settings tree as JSON; wins over --settings")
    parser.add_argument("--port", type=int, help="overrides router.port")
    parser.add_argument("--metrics-port", type=int, help="overrides router.metrics_port")
    parser.add_argument("--shared-port", action="store_true", help="let other router processes listen on the same port")
    parser.add_argument("--any-http-port", action="store_true", help="take a free one where router.http.port is in use")
    parser.add_argument(READY_FLAG, type=Path, help="written as JSON once the port is open")
    return parser


def _run_loop(run: object) -> None:
    try:
        import uvloop
    except ImportError:  # not built for this platform
        asyncio.run(run)  # type: ignore[arg-type]
    else:
        uvloop.run(run)


async def _run(settings: Settings, options: argparse.Namespace) -> None:
    redis = settings.redis
    if not redis.url:
        raise SetupError("redis.url must be set for a router process; `penstock up` starts an embedded server")
    secret = ClusterSecret.create_file(settings.cluster.secret_file or settings.cluster.folder / "secret")
    first = next(iter(settings.pools))
    cells = [cell_name(first, cell) for cell in range(settings.pools[first].cells)]
    await asyncio.gather(
        *(warn_or_refuse(redis.url, cell, redis.timeout_s, allow_eviction=redis.allow_eviction) for cell in cells)
    )
    queues = redis_factory(settings)
    ports = {"port": options.port, "metrics_port": options.metrics_port, "shared_port": options.shared_port}
    router = build_router(settings, secret, queues, **ports)
    if router.http is not None:
        router.http.any_port = options.any_http_port
    stop = asyncio.Event()
    with stop_signals(stop.set):
        await router.start()
        settle_heap()
        try:
            write_ready_file(options.ready_file, _fields(router))
            await stop.wait()
        finally:
            await router.stop()


def _fields(router: Router) -> dict[str, str | int]:
    """Return the ports and ids of this process, for the process that started it."""
    return {
        "port": router.port,
        "metrics_port": router.metrics_port,
        "http_port": router.http.port if router.http is not None else 0,
        "router_id": router.router_id,
        "pid": os.getpid(),
    }


if __name__ == "__main__":
    sys.exit(main())
