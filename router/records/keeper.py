"""Keeper of the records of a router's calls: it makes them soon after each end, and stores them in batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from cluster.clock import SystemClock
from cluster.errors import QueueUnavailableError
from cluster.lifecycle import TaskOwner
from cluster.records.contract import EndedRequest, RecordStore
from penstock.v1 import records_pb2 as api
from router.dispatch.pool import Pool
from router.generation.generation import Generation
from router.records.build import Closed, missed, record_of
from router.records.pace import Paces

_LOG = logging.getLogger(__name__)

FLUSH_S = 0.25
"""Seconds between two batches."""
BATCH = 64
"""Most records that are made, and stored with one call, before others get a turn."""
MOST_UNSTORED = 4_096
"""Most calls that wait to be stored. While Redis is away, later ones are not recorded."""
LATE_S = 10.0
"""Seconds after its call within which an attempt that was stopped says what it used."""


@dataclass(frozen=True, slots=True)
class _Over:
    generation: Generation
    closed: Closed


class RecordKeeper:
    """Keeper of records. `closed` is all that happens within a call."""

    def __init__(self, pools: Mapping[str, Pool], open_store: Callable[[str], RecordStore]) -> None:
        """`open_store` opens the store of a pool."""
        self.listeners: list[Callable[[api.RequestRecord, Generation], None]] = []
        """Functions that are told every record and its generation, whether it is stored or not."""
        self.dropped = 0
        """Calls that were not recorded."""
        self._pools = pools
        self._open_store = open_store
        self._stores: dict[str, RecordStore] = {}
        self._clock = SystemClock()
        self._over: deque[_Over] = deque()
        self._paces = Paces()
        self._owner = TaskOwner("records")

    def store(self, pool: str) -> RecordStore:
        if pool not in self._stores:
            self._stores[pool] = self._open_store(pool)
        return self._stores[pool]

    def start(self) -> None:
        """Start to store."""
        self._owner.spawn(self._run(), "store")

    async def close(self) -> None:
        """Store what is over, and stop."""
        await self._owner.close()
        await self.flush(everything=True)
        for store in self._stores.values():
            await store.close()

    def closed(self, generation: Generation) -> None:
        """Note a call that has ended; its generation is closed. What the replica still says of it is waited for."""
        if len(self._over) >= MOST_UNSTORED:
            self.dropped += 1
            return
        if (pool := self._pools.get(generation.pool)) is None:
            # It has gone, and ended what it still had.
            self.dropped += 1
            return
        slo = pool.admission.demand.point.of(generation.choices[0].entry.request_class)
        ended = Closed(time.monotonic(), self._clock.wall_ms(), slo, pool.replicas.records)
        self._over.append(_Over(generation, ended))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self, *, everything: bool = False) -> None:
        """Record the calls whose choices are over, or that have waited long enough for it."""
        for _ in range(-(-len(self._over) // BATCH)):
            batch = [self._over.popleft() for _ in islice(range(BATCH), min(BATCH, len(self._over)))]
            late = time.monotonic() - LATE_S
            records = []
            for one in batch:
                if not (everything or one.closed.at <= late or _is_over(one.generation)):
                    self._over.append(one)
                elif (record := self._record(one)) is not None:
                    records.append(record)
            await self._store(records)
        for name in [name for name in self._stores if name not in self._pools]:
            await self._stores.pop(name).close()

    def _record(self, over: _Over) -> api.RequestRecord | None:
        try:
            record = record_of(over.generation, over.closed)
            self._paces.note(record)
        except Exception:  # noqa: BLE001 - one that cannot be described must not keep the others from being stored
            self.dropped += 1
            _LOG.exception("records.not_made", extra={"request": over.generation.request_id})
            return None
        for listener in self.listeners:
            listener(record, over.generation)
        return record

    async def _store(self, records: Sequence[api.RequestRecord]) -> None:
        for pool in {record.pool for record in records}:
            mine = [_stored(record) for record in records if record.pool == pool]
            try:
                await self.store(pool).add(mine)
            except QueueUnavailableError as error:
                self.dropped += len(mine)
                _LOG.debug("records.not_stored", extra={"pool": pool, "records": len(mine), "error": str(error)})


def _is_over(generation: Generation) -> bool:
    return all(choice.state.over for choice in generation.choices)


def _stored(record: api.RequestRecord) -> EndedRequest:
    blob = api.RequestCalls(calls=[record]).SerializeToString()
    return EndedRequest(record.request_id, record.tenant, missed(record), blob)
