"""Choices that meet a replica with another tokenizer: their prompt is encoded anew for it.

In a roll-out to a model with another tokenizer, replicas of both run. Ids of one mean another text to the other, so a
choice never runs on ids of another tokenizer than its replica's. Output never goes on in another model, and groups of
inputs never run in two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial

from cluster.errors import PenstockError, UnavailableError
from cluster.queue.entries import Grant
from router.dispatch.pool_context import PoolContext
from router.dispatch.releases import Releases
from router.generation.choice import Choice
from router.links.placement import Group, Placement

_LOG = logging.getLogger(__name__)


class Translations:
    """Choices of one pool whose prompt is encoded anew, or that wait for a replica which reads it as it is."""

    def __init__(
        self,
        context: PoolContext,
        releases: Releases,
        granted: Callable[[Grant], None],
        started: Callable[[str, str], None],
    ) -> None:
        """`granted` starts a choice whose place stays granted; `started` reports that a grant is used."""
        self._context = context
        self._releases = releases
        self._granted = granted
        self._started = started
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def under_way(self) -> AbstractSet[str]:
        """Requests that have a place and no ids for it yet."""
        return self._tasks.keys()

    def translate(self, choice: Choice, place: Placement, elsewhere: Iterable[Group]) -> None:
        """Encode a choice's prompt for a granted place, as `Dispatch.translate` says."""
        request_id = choice.entry.request_id
        grant = Grant(request_id, choice.attempt, place.link.replica_id)
        readers = any(each.tokenizer_digest and choice.reads(each) for each in elsewhere)
        # The queue would take the place back while the tokenizer comes.
        self._started(request_id, grant.attempt)
        if (older := self._tasks.pop(request_id, None)) is not None:
            older.cancel()
        task = self._context.owner.spawn(self._translate(choice, grant, readers=readers), "translate")
        self._tasks[request_id] = task
        task.add_done_callback(partial(self._over, request_id))

    def _over(self, request_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(request_id) is task:
            del self._tasks[request_id]

    async def _translate(self, choice: Choice, grant: Grant, *, readers: bool) -> None:
        error: PenstockError | None = None
        start = None
        try:
            start = await choice.again(grant.replica_id) if choice.again is not None else None
        except PenstockError as found:
            error = found
        except Exception:  # noqa: BLE001 - otherwise the choice would wait for ever
            _LOG.exception("choice.translation_failed", extra={"request": grant.request_id})
            error = UnavailableError(f"the prompt of {grant.request_id} could not be encoded anew")
        if start is None and readers:
            # Each place that is given back closes a replica for a moment, also to others.
            await asyncio.sleep(choice.resume_state.pause_s())
        if not choice.state.waits or choice.attempt != grant.attempt:
            # It was stopped meanwhile, or the queue took the place back.
            return
        if start is None:
            # A tokenizer that can't be had now may come with the next place.
            if readers or (isinstance(error, UnavailableError) and choice.resume_state.refused()):
                self._releases.refuse(grant.request_id, grant.attempt)
            else:
                choice.misread(error)
            return
        _LOG.info("choice.translated", extra={"request": grant.request_id, "replica": grant.replica_id})
        # The old ids say nothing of what this replica's cache knows.
        choice.start, choice.on_start, choice.attempt = start, None, ""
        self._granted(grant)
