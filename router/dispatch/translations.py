"""Choices that meet a replica with another tokenizer: their prompt is encoded anew for it.

In a roll-out to a model with another tokenizer, replicas of both run. Ids of one mean another text to the other, so a
choice never runs on ids of another tokenizer than its replica's. Output never goes on in another model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from cluster.errors import PenstockError, UnavailableError
from cluster.queue.entries import Grant
from router.dispatch.pool_context import PoolContext
from router.dispatch.releases import Releases
from router.generation.attempt import Again
from router.generation.choice import Choice
from router.links.placement import Group, Placement

_LOG = logging.getLogger(__name__)


class Translations:
    """Choices of one pool whose prompt is encoded anew."""

    def __init__(self, context: PoolContext, releases: Releases, granted: Callable[[Grant], None]) -> None:
        """`granted` starts a choice whose place stays granted."""
        self._context = context
        self._releases = releases
        self._granted = granted

    def translate(self, choice: Choice, place: Placement, elsewhere: Iterable[Group]) -> None:
        """Encode a choice's prompt for a granted place, as `Dispatch.translate` says."""
        grant = Grant(choice.entry.request_id, choice.attempt, place.link.replica_id)
        readers = any(each.tokenizer_digest == choice.start.tokenizer_digest for each in elsewhere)
        if choice.again is not None:
            self._context.owner.spawn(self._translate(choice, choice.again, grant, elsewhere=readers), "translate")
        else:
            self._give_up(choice, None, elsewhere=readers)

    async def _translate(self, choice: Choice, again: Again, grant: Grant, *, elsewhere: bool) -> None:
        error: PenstockError | None = None
        try:
            start = await again(grant.replica_id)
        except PenstockError as found:
            error = found
        if not choice.state.waits or choice.attempt != grant.attempt:
            # It was stopped meanwhile, or the queue took the place back.
            return
        if error is not None:
            # A tokenizer that can't be had now may come with the next place.
            self._give_up(choice, error, elsewhere=elsewhere or isinstance(error, UnavailableError))
            return
        _LOG.info("choice.translated", extra={"request": grant.request_id, "replica": grant.replica_id})
        # The old ids say nothing of what this replica's cache knows.
        choice.start, choice.on_start, choice.attempt = start, None, ""
        self._granted(grant)

    def _give_up(self, choice: Choice, error: PenstockError | None, *, elsewhere: bool) -> None:
        if elsewhere and choice.resume_state.refused():
            self._releases.refuse(choice.entry.request_id, choice.attempt)
        else:
            choice.misread(error)
