"""Requests of other calls or routers that come here: their entries, and the replicas that they run on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from cluster.queue.entries import Adopted, Grant
from router.dispatch.membership import Membership
from router.dispatch.pool_context import PoolContext
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.links.placement import Placement
from router.links.replicas import ReplicaSet


class Adoption:
    """Adoption in one pool of one router."""

    def __init__(
        self,
        context: PoolContext,
        membership: Membership,
        replicas: ReplicaSet,
        attach_grace_s: float,
        take: Callable[[Choice], None],
        run_id: Callable[[], str],
    ) -> None:
        """`take` delivers to a choice from now on; `run_id` is the identity of the store."""
        self._context = context
        self._membership = membership
        self._replicas = replicas
        self._attach_grace_s = attach_grace_s
        self._take = take
        self._run_id = run_id
        self._under_way = Counter[str]()

    @property
    def under_way(self) -> AbstractSet[str]:
        """Requests that are being adopted, or whose replicas are waited for: what mail says of them comes again."""
        return self._under_way.keys()

    async def adopt(self, choice: Choice) -> Adopted | None:
        """Make an entry of the queue this choice's; None when there is none. A call of this router that had it is told.

        Raises:
            QueueUnavailableError: the queue does not answer.
        """
        context, request_id = self._context, choice.entry.request_id
        # Mail may overtake the answer, and would find no choice here.
        with self.held_open(request_id):
            adopted = await context.queue.adopt(context.router_id, choice.entry.tenant, request_id)
        choice.metering.closed = adopted is None
        if adopted is not None:
            if (old := context.choices.get(request_id)) is not None and old is not choice:
                choice.inherit(old)
            self._take(choice)
            wait = choice.wait
            wait.adopted = True
            wait.first_arrived_at = min(wait.arrived_at, time.monotonic() - adopted.age_ms / 1000)
            wait.position = adopted.position
            wait.first_span = adopted.trace
            choice.run_id = self._run_id()
        return adopted

    async def reach(self, choice: Choice, grant: Grant, address: str = "") -> Placement | None:
        """Return where an adopted choice's attempt runs, as `find_place` does.

        `address` is for a replica that the registry does not know.
        """
        choice.attempt = grant.attempt
        # What its owner does not report is granted again after a while.
        self._membership.started(choice.entry.request_id, grant.attempt)
        known = self._replicas.announcements.get(grant.replica_id)
        return await self.find_place(choice, grant.replica_id, known.address if known is not None else address)

    async def find_place(self, choice: Choice, replica_id: str, address: str) -> Placement | None:
        """Return what is known of a choice's replica, as soon as this router reaches it.

        None when it does not within the grace, or when the choice is over by then: it was stopped, or another call has
        it.
        """
        request_id = choice.entry.request_id
        place = self._replicas.place(replica_id)
        if place is None and address:
            # Meanwhile no other choice may start, and its slot stays taken: it runs.
            with self.held_open(request_id):
                link = await self._replicas.reach(replica_id, address, self._attach_grace_s)
            place = self._replicas.placement(link) if link is not None else None
        if choice.end is not None and choice.error is None and choice.attempt:
            # Cancelled meanwhile: its slot is given back, and no call attaches to what runs.
            self._replicas.stop(replica_id, request_id, choice.attempt)
        return place if choice.state is ChoiceState.WAITING else None

    @contextmanager
    def held_open(self, request_id: str) -> Iterator[None]:
        """Leave aside what mail says of a request: it comes again."""
        self._under_way[request_id] += 1
        try:
            yield
        finally:
            self._under_way -= Counter((request_id,))
