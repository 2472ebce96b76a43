"""`penstock autoscaler`: the process that sets the number of replicas of pools."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.ready_file import READY_FLAG, check_ready_file, write_ready_file
from cluster.terminal.command import show_examples

if TYPE_CHECKING:
    from cluster.settings import Settings


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", type=Path, metavar="FILE", help="TOML file with the settings")
    parser.add_argument("--settings-json", type=Path, metavar="FILE", help="all settings as JSON; wins over --settings")
    parser.add_argument(
        "--ray-address", metavar="URL", help="dashboard of the Ray cluster (default: the setting cluster.ray_address)"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token of the dashboard (default: ~/.ray/auth_token)"
    )
    parser.add_argument(READY_FLAG, type=Path, metavar="FILE", help="file to write as JSON once it runs")
    show_examples(parser, "penstock autoscaler --settings cluster.toml --ray-address http://head:8265")
    parser.set_defaults(run=run_autoscaler)


def run_autoscaler(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT.

    Raises:
        SetupError: settings are missing.
    """
    from cluster.ray_serve.client import default_token_file
    from cluster.settings.load import read_settings
    from cluster.telemetry import configure_logging

    check_ready_file(options.ready_file)
    settings = read_settings(options.settings_json, options.settings)
    configure_logging(settings.cluster.log_level, settings.cluster.log_format)
    token_file = options.token_file or settings.autoscaler.token_file or default_token_file()
    asyncio.run(_run(settings, options, token_file))
    return 0


async def _run(settings: Settings, options: argparse.Namespace, token_file: Path) -> None:
    from cluster.announced.redis.store import RedisAnnouncedStore
    from cluster.autoscaler.actuator import ServeActuator
    from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores, scaled_pools
    from cluster.autoscaler.redis.store import RedisControlStore
    from cluster.errors import SettingsError
    from cluster.lifecycle import stop_signals
    from cluster.queue.cells.queue import CellQueue
    from cluster.queue.redis.queue import RedisQueue
    from cluster.queue.settings import limits_from
    from cluster.ray_serve.client import ServeApi
    from cluster.redis.check import warn_or_refuse
    from cluster.registry.redis.store import RedisRegistryStore
    from cluster.rollout.redis.store import RedisRolloutStore
    from cluster.trust.secret import ClusterSecret

    redis, address = settings.redis, options.ray_address or settings.cluster.ray_address
    if not redis.url:
        raise SettingsError("redis.url: must be set for an autoscaler; `penstock up` starts an embedded server")
    if not address:
        raise SettingsError("cluster.ray_address: must be set for an autoscaler, such as http://127.0.0.1:8265")
    if not scaled_pools(settings.pools):
        raise SettingsError("pools: none has autoscale.mode advisory or active, so there is nothing to do")
    first = next(iter(settings.pools))
    await warn_or_refuse(redis.url, first, redis.timeout_s, allow_eviction=redis.allow_eviction)
    limits = limits_from(settings.queue)

    def open_cell(name: str) -> RedisQueue:
        return RedisQueue(redis.url, name, limits, redis.timeout_s)

    stores = AutoscalerStores(
        queue=lambda pool: CellQueue(pool, open_cell),
        control=lambda pool: RedisControlStore(redis.url, pool, redis.timeout_s),
        rollout=lambda pool: RedisRolloutStore(redis.url, pool, redis.timeout_s),
        announced=lambda pool: RedisAnnouncedStore(redis.url, pool, redis.timeout_s),
        registry=lambda: RedisRegistryStore(redis.url, redis.timeout_s),
    )
    secret = ClusterSecret.create_file(settings.cluster.secret_file or settings.cluster.folder / "secret")
    serve = ServeApi(address, token_file, settings.autoscaler.patience_s)
    autoscaler = Autoscaler(settings, secret, stores, ServeActuator(serve))
    stop = asyncio.Event()
    with stop_signals(stop.set):
        await autoscaler.start()
        try:
            fields = {"port": autoscaler.port, "autoscaler": autoscaler.holder, "pid": os.getpid()}
            write_ready_file(options.ready_file, fields)
            await stop.wait()
        finally:
            await autoscaler.stop()
