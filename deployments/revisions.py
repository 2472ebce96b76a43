"""The revision of a replica: which one it starts with, and when it has to give way to another one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cluster.errors import QueueUnavailableError
from cluster.rollout.book import RolloutBook
from cluster.rollout.changes import applies, settings_of
from cluster.rollout.record import Revision, Rollout
from cluster.rollout.starts import claim, give_up
from cluster.settings import PoolSettings

_LOG = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""Seconds that a start waits for the store. Without it nobody knows which revision the pool has."""
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """A replica that starts."""

    replica_id: str
    rank: int
    """Number within its pool."""


async def choose_revision(book: RolloutBook, pool: PoolSettings, place: Place) -> Revision:
    """Return the revision that a replica has to start with. Where a roll-out goes on, its record names the start then.

    Raises:
        QueueUnavailableError: the store did not answer for a minute.
    """
    chosen = Revision()

    def take(found: Rollout | None, now_ms: int) -> Rollout | None:
        nonlocal chosen
        chosen = Revision()
        if found is None or not applies(found, pool):
            return found
        after, chosen = claim(found, place.replica_id, place.rank, now_ms)
        return after

    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while True:
        try:
            await book.change(take)
        except QueueUnavailableError as error:
            if loop.time() >= until:
                raise
            _LOG.warning("revision.store_away", extra={"replica": place.replica_id, "error": str(error)})
            await asyncio.sleep(RETRY_S)
        else:
            if chosen.number:
                _LOG.info("revision.chosen", extra={"replica": place.replica_id, "revision": chosen.number})
            return chosen


@asynccontextmanager
async def started_as(
    book: RolloutBook, pool: PoolSettings, place: Place
) -> AsyncIterator[tuple[Revision, PoolSettings]]:
    """Choose the revision of a replica that starts in the block. If the start fails, the roll-out hears of it.

    Raises:
        QueueUnavailableError: the store did not answer for a minute.
        SettingsError: this release does not know a setting of the revision.
    """
    revision = await choose_revision(book, pool, place)
    try:
        yield revision, settings_of(revision, pool)
    except Exception as error:
        why = str(error) or type(error).__name__
        try:
            await book.change(lambda found, now: found and give_up(found, place.replica_id, why, now))
        except QueueUnavailableError:
            _LOG.warning("revision.failure_not_told", extra={"replica": place.replica_id})
        raise


async def told_to_retire(book: RolloutBook, replica_id: str, period_s: float) -> float:
    """Wait until a replica has to give way to another revision. Return the seconds that its requests may take."""
    while True:
        await asyncio.sleep(period_s)
        try:
            found, _ = await book.read()
        except QueueUnavailableError:
            continue
        if found is not None and replica_id in found.retiring:
            _LOG.warning("revision.retires", extra={"replica": replica_id})
            return found.rules.drain_s
