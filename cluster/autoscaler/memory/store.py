"""The autoscaler's store in memory, for tests and simulations: the same contract as `redis/store.py`.

It lives inside the in-memory queue, whose heartbeats bring decisions to routers and replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from cluster.autoscaler.store import Commit, Leadership, Stored, StoredRecord
from cluster.errors import LeadershipLostError, QueueUnavailableError
from cluster.queue.entries import QueueLimits
from cluster.queue.memory.queue import MemoryStore
from cluster.queue.memory.state import PoolState

_LIMITS = QueueLimits()
_DECISION, _FIT = "\0decision:", "\0fit:"
"""Prefixes of the names of values that have keys of their own in Redis."""


class MemoryControlStore:
    """One pool's store in a `MemoryStore`."""

    def __init__(self, store: MemoryStore, pool: str) -> None:
        self.pool = pool
        self._store = store
        self._closed = False

    async def lead(self, holder: str, lease_s: float) -> Leadership:
        with self._call() as (fields, now):
            left, lease = _number(fields, "until") - now, round(lease_s * 1000)
            held = fields.get("holder", b"").decode()
            if held != holder:
                if held and 0 < left <= lease:
                    return Leadership(held, _number(fields, "fence"), left / 1000)
                fields["fence"] = b"%d" % (_number(fields, "fence") + 1)
            fields["holder"], fields["until"] = holder.encode(), b"%d" % (now + lease)
            return Leadership(holder, _number(fields, "fence"), lease_s)

    async def resign(self, holder: str) -> None:
        with self._call() as (fields, _):
            if fields.get("holder") == holder.encode():
                fields["holder"], fields["until"] = b"", b"0"

    async def load(self) -> Stored:
        with self._call() as (fields, _):
            target = fields.get("target")
            failed, failure = _number(fields, "failed_starts"), fields.get("failure", b"").decode()
            return Stored(fields.get("state"), None if target is None else int(target), failed, failure)

    async def commit(self, holder: str, fence: int, decision: Commit) -> int:
        with self._call() as (fields, _):
            if fields.get("holder") != holder.encode() or _number(fields, "fence") != fence:
                raise LeadershipLostError(self.pool, fence)
            number = _number(fields, "decision") + 1
            fields["decision"] = b"%d" % number
            fields["state"], fields["target"] = decision.state, b"%d" % decision.target
            fields["relief"] = decision.relief.value.encode()
            fields["relief_until"] = b"%d" % decision.relief_until_ms
            fields[f"{_DECISION}{number}"] = decision.record
            old = number - decision.keep
            # Several are removed if fewer are kept than before.
            while fields.pop(f"{_DECISION}{old}", None) is not None:
                old -= 1
            return number

    async def decisions(self, limit: int) -> list[StoredRecord]:
        with self._call() as (fields, _):
            names = [name for name in fields if name.startswith(_DECISION)]
            found = [StoredRecord(int(name.removeprefix(_DECISION)), fields[name]) for name in names]
            return sorted(found, key=lambda one: -one.number)[:limit]

    async def set_point(self, point: bytes, *, if_missing: bool = False) -> int:
        with self._call() as (fields, _):
            if if_missing and "point" in fields:
                return 0
            fields["point"] = point
            fields["point_version"] = b"%d" % (_number(fields, "point_version") + 1)
            return _number(fields, "point_version")

    async def point(self) -> bytes | None:
        with self._call() as (fields, _):
            return fields.get("point")

    async def fit(self, group: str) -> str | None:
        with self._call() as (fields, _):
            found = fields.get(_FIT + group)
            return None if found is None else found.decode()

    async def store_fit(self, group: str, fit: str) -> None:
        with self._call() as (fields, _):
            fields[_FIT + group] = fit.encode()

    async def note_failed_start(self, why: str) -> None:
        with self._call() as (fields, _):
            fields["failure"] = why.encode()
            fields["failed_starts"] = b"%d" % (_number(fields, "failed_starts") + 1)

    async def close(self) -> None:
        self._closed = True

    @contextmanager
    def _call(self) -> Iterator[tuple[MutableMapping[str, bytes], int]]:
        if self._closed:
            raise QueueUnavailableError("the queue client is closed")
        pool: PoolState
        with self._store.call(self.pool, _LIMITS, "") as pool:
            yield pool.control, pool.raw


def _number(fields: MutableMapping[str, bytes], name: str) -> int:
    return int(fields.get(name, 0))
