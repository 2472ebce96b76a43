"""What this router gives back to the store: slots, requests that wait again, places in line."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Mail, Settlement
from router.dispatch.pool_context import PoolContext

_LOG = logging.getLogger(__name__)


class Releases:
    """Ends that the store has to know. What it misses is told again with every heartbeat."""

    def __init__(
        self,
        context: PoolContext,
        deliver: Callable[[Mail], None],
        line_up: Callable[[str], Awaitable[None]],
    ) -> None:
        """`line_up` puts a request in line again where the store has forgotten it."""
        self._router_id = context.router_id
        self._queue = context.queue
        self._owner = context.owner
        self._deliver = deliver
        self._line_up = line_up
        self._ends: dict[tuple[str, str], Settlement] = {}
        """Of requests that are over."""
        self._breaks: dict[tuple[str, str], Settlement] = {}
        """Ends of attempts whose requests go on."""
        self._refusals: set[tuple[str, str]] = set()
        """Grants that were not used."""
        self._leaves: dict[tuple[str, str], tuple[Settlement | None, bool]] = {}
        """Of requests that ended in line, with whether they were refused; their attempt is ""."""
        self._telling: set[tuple[str, str]] = set()
        """Of all: those that the store is being told."""

    def __len__(self) -> int:
        """How many ends the store does not know yet."""
        return len(self._ends) + len(self._breaks) + len(self._refusals) + len(self._leaves)

    def untold(self) -> set[str]:
        """List the requests of which the store does not know yet how it is with them."""
        waiting = (self._ends, self._breaks, self._refusals, self._leaves)
        return {request_id for keys in waiting for request_id, _ in keys}

    def ended(self, request_id: str, attempt: str) -> bool:
        """Whether the store may still take this attempt for a running one."""
        return (request_id, attempt) in self._ends or self.left(request_id)

    def left(self, request_id: str) -> bool:
        """Whether the store may still take this request for a waiting one."""
        return (request_id, "") in self._leaves

    def release(self, request_id: str, attempt: str, settlement: Settlement) -> None:
        """Give a slot back for good."""
        self._ends[request_id, attempt] = settlement
        self._tell(self._release, request_id, attempt)

    def requeue(self, request_id: str, attempt: str, settlement: Settlement) -> None:
        """Give a slot back, and wait for another one."""
        self._breaks[request_id, attempt] = settlement
        self._tell(self._requeue, request_id, attempt)

    def refuse(self, request_id: str, attempt: str) -> None:
        """Give a grant back that was not used."""
        self._refusals.add((request_id, attempt))
        self._tell(self._refuse, request_id, attempt)

    def withdraw(self, request_id: str, used: Settlement | None, *, refused: bool = False) -> None:
        """Leave the line; `used` and `refused` as in `Queue.withdraw`."""
        self._leaves[request_id, ""] = used, refused
        self._tell(self._withdraw, request_id, "")

    def stay(self, request_id: str) -> None:
        """Keep a place after all: another call goes on with the request."""
        self._leaves.pop((request_id, ""), None)

    def tell_again(self) -> None:
        """Tell what the store may have missed."""
        # Not what is under way: a store that is slow to answer would get ever more of the same.
        untold = (
            (self._release, self._ends.keys()),
            (self._requeue, self._breaks.keys()),
            (self._refuse, self._refusals),
            (self._withdraw, self._leaves.keys()),
        )
        again = [(how, key) for how, waiting in untold for key in waiting - self._telling]
        if again:
            _LOG.warning("returns.told_again", extra={"ends": len(again)})
        for how, key in again:
            self._tell(how, *key)

    def _tell(self, how: Callable[[str, str], Awaitable[None]], request_id: str, attempt: str) -> None:
        if self._owner.closed:
            # The router has left the pool, and with its lease all that it had.
            return
        self._telling.add((request_id, attempt))
        self._owner.spawn(self._tell_once(how, (request_id, attempt)), "tell")

    async def _tell_once(self, how: Callable[[str, str], Awaitable[None]], key: tuple[str, str]) -> None:
        try:
            await how(*key)
        finally:
            self._telling.discard(key)

    async def _release(self, request_id: str, attempt: str) -> None:
        settlement = self._ends.get((request_id, attempt))
        if settlement is None:
            return
        try:
            mail = await self._queue.release(self._router_id, request_id, attempt, settlement)
        except QueueUnavailableError as error:
            _LOG.debug("release.later", extra={"request": request_id, "error": str(error)})
            return
        self._ends.pop((request_id, attempt), None)
        self._deliver(mail)

    async def _requeue(self, request_id: str, attempt: str) -> None:
        settlement = self._breaks.get((request_id, attempt))
        if settlement is None:
            return
        try:
            mail = await self._queue.requeue(self._router_id, request_id, attempt, settlement)
            await self._line_up(request_id)
        except QueueUnavailableError as error:
            _LOG.debug("requeue.later", extra={"request": request_id, "error": str(error)})
            return
        self._breaks.pop((request_id, attempt), None)
        self._deliver(mail)

    async def _refuse(self, request_id: str, attempt: str) -> None:
        try:
            mail = await self._queue.refuse(self._router_id, request_id, attempt)
            # A client that came back with a token may name an attempt that is over, and nothing of it is in line.
            await self._line_up(request_id)
        except QueueUnavailableError as error:
            _LOG.debug("refuse.later", extra={"request": request_id, "error": str(error)})
            return
        self._refusals.discard((request_id, attempt))
        self._deliver(mail)

    async def _withdraw(self, request_id: str, _: str) -> None:
        # The end of an attempt comes first: with the entry it would be lost, and what the attempt used with it.
        for key in [key for key in self._breaks if key[0] == request_id]:
            await self._requeue(*key)
            if key in self._breaks:
                return
        if (request_id, "") not in self._leaves:
            return
        used, refused = self._leaves[request_id, ""]
        try:
            mail = await self._queue.withdraw(self._router_id, request_id, used, refused=refused)
        except QueueUnavailableError as error:
            _LOG.debug("withdraw.later", extra={"request": request_id, "error": str(error)})
            return
        self._leaves.pop((request_id, ""), None)
        self._deliver(mail)
