"""Parts of a router with which jobs and files are stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cluster.errors import JobNotFoundError, QueueUnavailableError
from cluster.jobs.contract import JobStore
from cluster.settings import JobsSettings
from penstock.models import FieldViolation, ModelTask, StructuredOutput
from router.jobs.stores import JobStores
from router.routing import Aliases
from router.validation import RequestLimits

_T = TypeVar("_T")

_AGAIN_S = 0.5
"""Pause before the next call after Redis did not answer, in seconds."""
_INSIST_S = 15.0
"""Seconds for which a step of an upload is tried while Redis does not answer."""


@dataclass(frozen=True, slots=True)
class JobTools:
    """Parts that all uploads share."""

    stores: JobStores
    settings: JobsSettings
    limits: RequestLimits
    nudge: Callable[[str], None]
    """Called with the pool of every job that was opened here."""
    constraint_problem: Callable[[str, StructuredOutput], Awaitable[FieldViolation | None]]
    """Function that returns what a pool's engines refuse of a constraint; None where they follow it."""
    aliases: Aliases | None = None
    """Aliases; None for none."""
    task: Callable[[str], ModelTask | None] = lambda _pool: None
    """Function that returns the task of a pool's model; None while that is not known."""

    def pool(self, model: str) -> str:
        """Return the pool that keeps the jobs of a model or an alias; empty for a name that is neither."""
        if model in self.stores.served:
            return model
        home = self.aliases.home(model) if self.aliases is not None else ""
        return home if home in self.stores.served else ""

    def models(self) -> list[str]:
        """Return the names that a job may have as its model, in order."""
        aliases = self.aliases.names() if self.aliases is not None else []
        return sorted({*self.stores.served, *aliases})


async def drop(store: JobStore, job_id: str, *, begun: bool = False) -> None:
    """Remove an upload whose client hears an error. Where it may have `begun` as a job, or be kept as a file, do it
    later while Redis does not answer: `sweep` drops only what is neither.
    """
    while True:
        try:
            await store.delete(job_id)
        except QueueUnavailableError:
            if begun:
                await asyncio.sleep(_AGAIN_S)
                continue
        return


async def insist(call: Callable[[], Awaitable[_T]]) -> _T:
    """Call the store until it answers. A short absence of Redis must not end an upload that may have taken minutes."""
    end = time.monotonic() + _INSIST_S
    while True:
        try:
            return await call()
        except QueueUnavailableError:
            if time.monotonic() >= end:
                raise
            await asyncio.sleep(_AGAIN_S)


async def append(store: JobStore, job_id: str, at: int, block: Sequence[bytes]) -> None:
    """Add a block to an upload once, also where Redis does not answer for a moment. Errors as of `JobStore.append`."""
    try:
        await insist(lambda: store.append(job_id, at, block))
    except JobNotFoundError:
        record = await insist(lambda: store.get(job_id))
        # Otherwise the call before it did its work, and only its answer was lost.
        if record is None or record.items != at + len(block):
            raise
