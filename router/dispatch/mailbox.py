"""What the queue sends to this router for one pool: grants of places, and orders."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Grant, Mail, Settlement, sibling_ids
from router.dispatch.adoption import Adoption
from router.dispatch.membership import Membership
from router.dispatch.pool_context import PoolContext
from router.dispatch.releases import Releases
from router.dispatch.resubmit import Resubmit
from router.links.replicas import ReplicaSet

_LOG = logging.getLogger(__name__)


class Mailbox:
    """Mail of one pool. It comes in replies and in the mailbox itself; all of it goes through `deliver`."""

    def __init__(
        self,
        context: PoolContext,
        membership: Membership,
        replicas: ReplicaSet,
        adoption: Adoption,
        releases: Releases,
        resubmit: Resubmit,
        *,
        parked: Collection[str],
    ) -> None:
        """`parked`: requests that were left to other routers."""
        self._context = context
        self._membership = membership
        self._replicas = replicas
        self._adoption = adoption
        self._releases = releases
        self._resubmit = resubmit
        self._parked = parked
        self._collecting = False

    def ring(self) -> None:
        """Look into the mailbox; rings while a look is under way are merged."""
        if not self._collecting:
            self._collecting = True
            self._context.owner.spawn(self._collect(), "collect")

    async def _collect(self) -> None:
        self._collecting = False
        try:
            self.deliver(await self._context.queue.collect(self._context.router_id))
        except QueueUnavailableError:
            # The next heartbeat brings the same mail.
            return

    def deliver(self, mail: Mail) -> None:
        """Obey orders, then use grants: what is cancelled before it is started never starts."""
        for order in mail.orders:
            if order.kind == "cancel":
                self._cancel_others(order.request_id)
            if (choice := self._context.choices.get(order.request_id)) is not None:
                if order.kind == "expired" and choice.state.waits and choice.wait.has_time:
                    if order.request_id not in self._adoption.under_way:
                        self._context.owner.spawn(self._submit_early(order.request_id), "submit_early")
                else:
                    choice.ordered(order.kind)
            elif order.request_id not in self._adoption.under_way and not self._releases.left(order.request_id):
                self._give_back(order.request_id, "")
        for grant in mail.grants:
            self.granted(grant)

    def _cancel_others(self, entry_id: str) -> None:
        """Cancel the other choices of an entry's request: a cell that was away has no order for those that it has."""
        for sibling in sibling_ids(entry_id):
            if sibling != entry_id and (choice := self._context.choices.get(sibling)) is not None:
                choice.cancel()

    async def _submit_early(self, request_id: str) -> None:
        _LOG.warning("choice.expired_early", extra={"request": request_id})
        # The next heartbeat brings the order again.
        with suppress(QueueUnavailableError):
            await self._resubmit.submit_again(request_id)

    def granted(self, grant: Grant) -> None:
        """Start a choice on the replica that was granted to it, or give the grant back."""
        choice = self._context.choices.get(grant.request_id)
        if grant.request_id in self._adoption.under_way:
            return
        if choice is None:
            known = self._releases.ended(grant.request_id, grant.attempt) or grant.request_id in self._parked
            if not known:
                self._give_back(grant.request_id, grant.attempt)
            return
        if not choice.state.waits or choice.attempt == grant.attempt:
            # Mail repeats until the next heartbeat reports the start.
            return
        if not self._membership.held:
            # Fenced: the pool may already have given this slot to another router.
            _LOG.warning("grant.fenced", extra={"request": grant.request_id})
            return
        choice.attempt = grant.attempt
        place = self._replicas.place(grant.replica_id)
        if place is None or place.link.suspect:
            self._releases.refuse(choice.entry.request_id, choice.attempt)
            return
        elsewhere = tuple(self._replicas.groups(besides=grant.replica_id))
        if elsewhere and choice.resume_state.origin is None and self._replicas.keeps(grant.replica_id):
            self._releases.refuse(choice.entry.request_id, choice.attempt)
            return
        if not choice.may_run_on(place, elsewhere):
            return
        choice.run_on(grant, place)
        self._membership.started(grant.request_id, grant.attempt)

    def _give_back(self, request_id: str, attempt: str) -> None:
        self._releases.release(request_id, attempt, Settlement(0))
