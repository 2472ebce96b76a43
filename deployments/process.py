"""A replica in a process without Ray: `python -m deployments.process`. For simulated engines on one machine.

It ends on SIGTERM or SIGINT, after a drain, and by itself when its engine is dead or it has to give way to another
revision.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cluster.errors import EngineDeadError, PenstockError, SetupError
from cluster.gc_tuning import settle_heap
from cluster.lifecycle import stop_signals
from cluster.ready_file import READY_FLAG, check_ready_file, write_ready_file
from cluster.settings import Settings
from cluster.telemetry import configure_logging
from deployments.hosting import end_after_engine_death, ordered_to_end, read_settings, start_replica
from deployments.replica.replica import Replica

HEALTH_S = 2.0
"""Seconds between checks of the engine, as under Ray Serve."""
_LOG = logging.getLogger("deployments")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a replica until it is stopped, and return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        check_ready_file(options.ready_file)
        settings = read_settings(str(options.settings_json))
        configure_logging(settings.cluster.log_level, settings.cluster.log_format)
        asyncio.run(_run(settings, options.pool, options.rank, options.ready_file))
    except PenstockError as error:
        sys.stderr.write(f"penstock replica: {error}\n")
        return 2 if isinstance(error, SetupError) else 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deployments.process", description="Runs one replica without Ray.")
    parser.add_argument("--settings-json", type=Path, required=True, help="a whole settings tree as JSON")
    parser.add_argument("--pool", required=True, help="the replica's pool")
    parser.add_argument("--rank", type=int, default=0, help="number of the replica within its pool, from 0")
    parser.add_argument(READY_FLAG, type=Path, required=True, help="written as JSON once the replica takes work")
    return parser


async def _run(settings: Settings, pool: str, rank: int, ready_file: Path) -> None:
    stop = asyncio.Event()
    with stop_signals(stop.set):
        replica = await start_replica(settings, pool, secrets.token_hex(4), rank)
        settle_heap()
        order = asyncio.create_task(ordered_to_end(settings, replica), name="give-way")
        order.add_done_callback(lambda _: stop.set())
        try:
            fields = {"replica_id": replica.plan.replica_id, "address": replica.address, "pid": os.getpid()}
            write_ready_file(ready_file, fields)
            await _serve(replica, stop)
        finally:
            order.cancel()
            (drain_s,) = await asyncio.gather(order, return_exceptions=True)
            if isinstance(drain_s, float | int):
                await replica.stop(drain_s, settings.queue.attach_grace_s)
            await replica.stop()


async def _serve(replica: Replica, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await replica.check_health()
        except EngineDeadError as error:
            _LOG.error("replica.engine_dead", extra={"error": str(error)})
            await end_after_engine_death(replica)
        with suppress(TimeoutError):
            async with asyncio.timeout(HEALTH_S):
                await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
