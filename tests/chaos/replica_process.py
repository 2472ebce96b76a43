"""Runs one replica as `deployments.app` does, without Ray, and notes what its engine decodes and when.

    python -m tests.chaos.replica_process --settings-json FILE --pool NAME --replica-id ID --announce HOST:PORT \
        --ready-file FILE --journal FILE

`--announce` is the address that routers dial instead of the replica's own: a proxy's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from cluster.control.step_model import StepSample
from cluster.errors import EngineDeadError
from cluster.lifecycle import stop_signals
from cluster.models import EngineStats, GenerationSpec, Judgement, SequenceEnd
from cluster.queue.cells.member import ReplicaCells
from cluster.queue.redis.queue import RedisQueue
from cluster.queue.settings import limits_from
from cluster.registry.redis.store import RedisRegistryStore
from cluster.rollout.book import RolloutBook
from cluster.rollout.record import Revision
from cluster.rollout.redis.store import RedisRolloutStore
from cluster.settings import PoolSettings, Settings
from cluster.settings.load import parse_settings
from cluster.telemetry import configure_logging
from cluster.trust.secret import ClusterSecret
from deployments.engines.base import Engine, EngineIdentity, TokenSink
from deployments.engines.factory import build_engine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from deployments.revisions import Place, started_as, told_to_retire
from penstock.models import FinishReason, OutputParsing, PositionLogprobs, StructuredOutput

_LOG = logging.getLogger("replica")
HEALTH_S = 2.0
"""How often the engine is asked, as Serve does."""


class _NotedSink:
    def __init__(self, sink: TokenSink, note_end: Callable[[SequenceEnd], None]) -> None:
        self._sink = sink
        self._note_end = note_end
        self.on_tokens: Callable[[Sequence[int], str, Sequence[PositionLogprobs] | None], None] = sink.on_tokens

    def on_end(self, end: SequenceEnd) -> None:
        """Note the end before anybody can act on it."""
        self._note_end(end)
        self._sink.on_end(end)


class JournalledEngine:
    """An engine that writes a line when a sequence starts and ends; times are monotonic, so they compare."""

    def __init__(self, engine: Engine, journal: TextIO) -> None:
        self._engine = engine
        self._journal = journal

    def _note(self, what: str, sequence_id: str, **more: object) -> None:
        line = {"at": time.monotonic(), "what": what, "id": sequence_id, **more}
        self._journal.write(json.dumps(line) + "\n")
        # What a killed process has not handed to the kernel is gone.
        self._journal.flush()

    async def start(self) -> EngineIdentity:
        """Start the engine. What has no words below is passed on to it as well."""
        return await self._engine.start()

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        """Note the start."""
        self._note("start", sequence_id, prior=len(spec.resume.prior_token_ids) if spec.resume else 0)

        def ended(end: SequenceEnd) -> None:
            self._note("end", sequence_id, reason=end.reason.value, tokens=end.output_tokens)

        try:
            await self._engine.submit(sequence_id, spec, _NotedSink(sink, ended))
        except Exception:
            self._note("end", sequence_id, reason="refused", tokens=0)
            raise

    async def abort(
        self, sequence_ids: Sequence[str], reason: str = FinishReason.CANCELLED, *, release_text: bool = False
    ) -> None:
        await self._engine.abort(sequence_ids, reason, release_text=release_text)

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self._engine.load_adapter(name, folder)

    async def unload_adapter(self, name: str) -> None:
        await self._engine.unload_adapter(name)

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def wake(self) -> None:
        await self._engine.wake()

    async def judge(self, constraint: StructuredOutput) -> Judgement:
        return await self._engine.judge(constraint)

    async def judge_calls(self, parsing: OutputParsing, structured: StructuredOutput | None) -> Judgement:
        return await self._engine.judge_calls(parsing, structured)

    async def set_batch_limits(self, sequences: int | None, tokens: int | None) -> tuple[int, int]:
        return await self._engine.set_batch_limits(sequences, tokens)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def live_ids(self) -> Collection[str]:
        return self._engine.live_ids()

    def take_steps(self) -> list[StepSample]:
        return self._engine.take_steps()

    async def check_health(self) -> None:
        await self._engine.check_health()

    async def close(self) -> None:
        await self._engine.close()


class ProxiedReplica(Replica):
    """A replica that announces another address than its own."""

    announced = ""

    async def _join(self) -> None:
        assert self._announced is not None
        self._announced = replace(self._announced, address=self.announced)
        await super()._join()


async def run(settings: Settings, options: argparse.Namespace) -> None:
    """Serve until SIGTERM, until the engine is dead, or until another revision takes the place."""
    url, timeout_s = settings.redis.url, settings.redis.timeout_s
    book = RolloutBook(options.pool, RedisRolloutStore(url, options.pool, timeout_s))
    place = Place(options.replica_id, options.rank)
    try:
        async with started_as(book, settings.pools[options.pool], place) as (revision, pool):
            await _run(settings, options, revision, pool, book)
    finally:
        await book.close()


async def _run(
    settings: Settings, options: argparse.Namespace, revision: Revision, pool: PoolSettings, book: RolloutBook
) -> None:
    plan = ReplicaPlan(
        replica_id=options.replica_id,
        pool=options.pool,
        pool_settings=pool,
        queue_settings=settings.queue,
        settings=settings.replica,
        telemetry=settings.telemetry,
        adapter_folder=settings.cluster.folder / "adapters",
        revision=revision.number,
    )
    if settings.cluster.secret_file is None:
        raise SystemExit("cluster.secret_file must be set")
    secret, limits = ClusterSecret.from_file(settings.cluster.secret_file), limits_from(settings.queue)

    def open_cell(name: str) -> RedisQueue:
        return RedisQueue(settings.redis.url, name, limits, settings.redis.timeout_s)

    cells = ReplicaCells(plan.pool, open_cell, pool.cells, settings.queue.lease_s)
    stop = asyncio.Event()
    with options.journal.open("a", encoding="utf-8") as journal, stop_signals(stop.set):
        engine = JournalledEngine(build_engine(plan.pool_settings, _core(options.rank)), journal)
        replica = ProxiedReplica(
            plan,
            engine,
            cells.open,
            secret,
            open_registry=lambda: RedisRegistryStore(settings.redis.url, settings.redis.timeout_s),
            layout=cells.layout,
        )
        replica.announced = options.announce
        # Linked only once the proxy knows where this port is, so routers may dial a moment too early; they try again.
        await replica.start()
        partial = options.ready_file.with_suffix(".partial")
        partial.write_text(json.dumps({"address": replica.address, "pid": os.getpid()}), encoding="utf-8")
        partial.replace(options.ready_file)
        order = asyncio.create_task(told_to_retire(book, plan.replica_id, settings.queue.heartbeat_s))
        order.add_done_callback(lambda _: stop.set())
        await _until_stopped(replica, stop)
        order.cancel()
        (drain_s,) = await asyncio.gather(order, return_exceptions=True)
        if isinstance(drain_s, float | int):
            await replica.stop(drain_s, settings.queue.attach_grace_s)
        await replica.stop()


def _core(rank: int) -> tuple[int, ...]:
    """Give each replica of a machine another core; only real engines on a CPU mind."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[rank % len(cores)],)


async def _until_stopped(replica: Replica, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await replica.check_health()
        except EngineDeadError:
            _LOG.exception("replica.engine_dead")
            await _end_after_engine_death(replica)
        try:
            await asyncio.wait_for(stop.wait(), HEALTH_S)
        except TimeoutError:
            continue


async def _end_after_engine_death(replica: Replica) -> None:
    # As `deployments.app` does.
    try:
        await asyncio.wait_for(replica.stop(drain_s=0.2), 5.0)
    finally:
        os._exit(1)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.replica_process")
    parser.add_argument("--settings-json", type=Path, required=True)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--replica-id", required=True)
    parser.add_argument("--announce", required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    settings = parse_settings(options.settings_json.read_text(encoding="utf-8"))
    configure_logging(settings.cluster.log_level, settings.cluster.log_format)
    asyncio.run(run(settings, options))


if __name__ == "__main__":
    main()
