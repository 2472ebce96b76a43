"""Reconciliation of what the store has on record with what this router knows.

A failover may lose the last second of what the store was told. A reply may be lost on its way. A router that was cut
off for long finds that the store has given it up. Each leaves a slot that is never freed, or a request that is never
granted, and neither side sees it by itself.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Holding, Settlement, Where
from router.dispatch.pool_context import PoolContext
from router.dispatch.releases import Releases
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState

_LOG = logging.getLogger(__name__)

_PAGE = 500
"""Requests that are read at a time."""
_SIGHTS = 3
"""How many looks in a row must find the same: what is only under way is over by then."""
_SHARE = 0.05
"""Part of the time that looks may take: a long line is read in many pages."""
_TAKEN_OVER = 2 * _SIGHTS
"""How many looks in a row must find a request that waits here with another router, which would have given it up by now
if it did not serve it.
"""


class Remedy(enum.Enum):
    """What the store has to be told."""

    RELEASE = "release"
    """The attempt of a request that is over here has a slot."""
    REQUEUE = "requeue"
    """A request waits here, and an earlier attempt of it has a slot."""
    WITHDRAW = "withdraw"
    """A request that is over here waits."""
    SUBMIT = "submit"
    """A request waits here, and is not in line."""
    ADOPT = "adopt"
    """The output of an attempt comes here, and it is on record as the router's that started it, or not at all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference."""

    remedy: Remedy
    request_id: str
    attempt: str = ""


def differences(
    held: Collection[Holding],
    choices: Mapping[str, Choice],
    besides: Collection[str],
) -> set[Finding]:
    """Compare.

    Args:
        held: what the store has on record as this router's.
        choices: what waits or runs here, by request id.
        besides: requests that are left as they are.
    """
    found = set[Finding]()
    for one in held:
        choice = choices.get(one.request_id)
        if one.request_id in besides:
            continue
        match one.where:
            case Where.SLOT if choice is None:
                found.add(Finding(Remedy.RELEASE, one.request_id, one.attempt))
            case Where.SLOT if choice is not None and choice.state is ChoiceState.WAITING:
                found.add(Finding(Remedy.REQUEUE, one.request_id, one.attempt))
            case Where.LINE if choice is None:
                found.add(Finding(Remedy.WITHDRAW, one.request_id))
    listed = {one.request_id for one in held}
    for request_id, choice in choices.items():
        if request_id in listed or request_id in besides:
            continue
        if choice.state is ChoiceState.WAITING and choice.run_id:
            found.add(Finding(Remedy.SUBMIT, request_id))
        elif choice.taken_over:
            # Not what was started here and is another router's by now: its client has left.
            found.add(Finding(Remedy.ADOPT, request_id, choice.attempt))
    return found


class Reconciler:
    """Reconciliation of one pool in one router."""

    def __init__(
        self,
        context: PoolContext,
        releases: Releases,
        besides: Callable[[], Collection[str]],
        submit: Callable[[str], Awaitable[bool]],
        started: Callable[[str, str], None],
    ) -> None:
        """`submit` puts a choice in line again, or says that another router has it; `started` reports that an attempt
        runs; `besides` lists requests that are left as they are.
        """
        self._router_id = context.router_id
        self._queue = context.queue
        self._choices = context.choices
        self._releases = releases
        self._besides = besides
        self._submit = submit
        self._started = started
        self._seen: dict[Finding, int] = {}
        """How many looks in a row have found it."""
        self._asked: set[Finding] = set()
        """Attempts of other routers that were asked for; the store may know none of them."""
        self.mended = dict.fromkeys(Remedy, 0)
        """Since start."""

    async def watch(self, period_s: float, may_look: Callable[[], bool]) -> None:
        """Look every so often, while this router is a member of the pool; less often where a look takes long."""
        took_s = 0.0
        while True:
            await asyncio.sleep(max(period_s, took_s / _SHARE))
            began = time.monotonic()
            if may_look():
                # What is not seen now is seen the next time.
                with suppress(QueueUnavailableError):
                    await self.look()
            took_s = time.monotonic() - began

    async def look(self) -> None:
        """Compare, and mend what was found for the third time in a row.

        Raises:
            QueueUnavailableError: the queue does not answer.
        """
        held = await self._read()
        besides = {*self._besides(), *self._releases.untold()}
        found = differences(held, self._choices, besides)
        self._seen = {finding: self._seen.get(finding, 0) + 1 for finding in found}
        self._asked &= found
        for finding, times in self._seen.items():
            if finding.remedy is Remedy.ADOPT:
                # Before its old owner gives its slot away, and once.
                if finding not in self._asked:
                    self._asked.add(finding)
                    await self._mend(finding, times)
            elif times >= _SIGHTS:
                await self._mend(finding, times)

    async def _read(self) -> list[Holding]:
        found, after = list[Holding](), b""
        while True:
            some = await self._queue.holdings(self._router_id, after, _PAGE)
            found += some.page
            after = some.last
            if not after:
                return found

    async def _mend(self, finding: Finding, times: int) -> None:
        request_id, attempt = finding.request_id, finding.attempt
        choice = self._choices.get(request_id)
        match finding.remedy:
            case Remedy.RELEASE:
                self._releases.release(request_id, attempt, Settlement(0))
            case Remedy.REQUEUE:
                self._releases.requeue(request_id, attempt, Settlement(choice.tokens if choice is not None else 0))
            case Remedy.WITHDRAW:
                self._releases.withdraw(request_id, None)
            case Remedy.SUBMIT:
                if not await self._submit(request_id):
                    if choice is not None and times >= _TAKEN_OVER:
                        choice.on_detached()
                    return
            case Remedy.ADOPT if choice is not None:
                adopted = await self._queue.adopt(self._router_id, choice.entry.tenant, request_id)
                if adopted is None:
                    return
                choice.metering.closed = False
                if adopted.grant is not None and adopted.grant.attempt == attempt:
                    # Its old owner may not have come to say so, and the grant would be taken back.
                    self._started(request_id, attempt)
        self.mended[finding.remedy] += 1
        _LOG.warning("pool.mended", extra={"request": request_id, "attempt": attempt, "how": finding.remedy.value})
