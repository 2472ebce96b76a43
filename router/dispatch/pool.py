"""One pool as a router serves it: its queue, its replicas, and the choices that wait or run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from cluster.autoscaler.router_report import JobWork
from cluster.errors import (
    KeyReusedError,
    NoReplicaError,
    QueueFullError,
    QueueUnavailableError,
    QuotaExceededError,
    TakenOverError,
)
from cluster.lifecycle import TaskOwner
from cluster.queue.contract import Queue
from cluster.queue.entries import Adopted, Grant, KnownRequest, Mail, Settlement, UsageLine, choice_ids
from cluster.queue.heartbeats import RouterBeat, RouterBeatReply
from cluster.settings import PoolSettings, QueueSettings, RouterSettings
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from router.admission.admission_control import AdmissionControl
from router.affinity import Affinity
from router.dispatch.membership import Membership
from router.dispatch.positions import Positions
from router.dispatch.quarantine import Quarantine
from router.dispatch.reconcile import Reconciler
from router.dispatch.releases import Releases
from router.dispatch.resubmit import Resubmit
from router.generation.choice import Choice, ChoiceState
from router.generation.metering import Prices
from router.generation.slow_readers import SlowReaders
from router.links.breaker import BreakerLimits
from router.links.failure import Failure, RecoveryLimits
from router.links.placement import Placement
from router.links.replicas import ReplicaSet

_LOG = logging.getLogger(__name__)


class Pool:
    """Is a `Dispatch`. Grants arrive in replies and in the mailbox; both go through `_deliver`."""

    def __init__(
        self,
        name: str,
        router_id: str,
        queue: Queue,
        open_queue: Callable[[], Queue],
        secret: ClusterSecret,
        settings: PoolSettings,
        queue_settings: QueueSettings,
        router_settings: RouterSettings,
        dialer: LinkDialer,
    ) -> None:
        """`queue` belongs to this loop; `open_queue` makes another one on the thread that renews the lease."""
        self.name = name
        self.settings = settings
        self.prices = Prices.of(settings)
        self.admission = AdmissionControl(settings, late_last=queue_settings.late_last)
        self.job_work: Callable[[], Sequence[JobWork]] = tuple
        """Says what is left of the jobs that are fed from here; called from another thread."""
        self.on_settled: Callable[[Choice, Settlement | None], None] = _unheard
        """Is told once of every choice that is over, whoever still listens, with what the ledger gets of it."""
        self.queue_settings = queue_settings
        self.recovery = RecoveryLimits(
            router_settings.max_attempts, router_settings.first_token_timeout_s, router_settings.token_timeout_s
        )
        self._router_id = router_id
        self._queue = queue
        self._owner = TaskOwner(f"pool.{name}")
        self._watch = TaskOwner(f"pool.{name}.watch")
        self.replicas = ReplicaSet(
            name,
            router_id,
            secret,
            dialer,
            ping_s=router_settings.link_ping_s,
            attach_grace_s=queue_settings.attach_grace_s,
            limits=self.recovery,
            breakers=BreakerLimits(router_settings.breaker_failures, router_settings.breaker_open_s),
            on_change=self._links_changed,
        )
        self.affinity = Affinity(router_settings.affinity)
        self._choices: dict[str, Choice] = {}
        """Choices that wait or run here, by their queue id."""
        self._positions = Positions(self._choices)
        self._parked: set[str] = set()
        """Requests that were left to other routers."""
        self.resubmit = Resubmit(
            name, router_id, queue, self._choices, lambda choice: choice in self.quarantine.held, self._granted
        )
        self._membership = Membership(name, router_id, open_queue, self._describe, self._beaten, queue_settings)
        self.releases = Releases(router_id, queue, self._owner, self._deliver, self.resubmit.submit)
        self.reconciler = Reconciler(
            router_id,
            queue,
            self._choices,
            self.releases,
            lambda: self._parked | self.quarantine.held | self._reaching.keys(),
            self.resubmit.submit_again,
            self._membership.started,
        )
        self.losses = dict.fromkeys(Failure, 0)
        """Attempts that were lost, since start."""
        self.quarantine = Quarantine(
            router_id, queue, self._owner, router_settings.quarantine_s, self._choices, self.requeue
        )
        self.slow_readers = SlowReaders(
            self._choices,
            round(router_settings.max_unread_mb * (1 << 20)),
            round(router_settings.max_unread_total_mb * (1 << 20)),
        )
        self._reaching = Counter[str]()
        """Requests of other calls or routers that are being adopted, or whose replicas are waited for: what mail says
        of them comes again.
        """
        self._collecting = False
        self._doubt_until = 0.0
        """Until then a replica may be missing in the registry because the store lost it."""
        self.beat: RouterBeatReply | None = None
        """The newest heartbeat's answer; None before the first."""

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the pool; returns after the first heartbeat was tried."""
        await self._membership.start()
        self._watch.spawn(self.slow_readers.watch(), "slow_readers")
        self._watch.spawn(self.reconciler.watch(self.queue_settings.lease_s / 2, lambda: self.available), "audit")

    async def close(self) -> None:
        """Leave the pool: what still waits or runs is cancelled first, so that no slot stays taken."""
        for choice in list(self._choices.values()):
            choice.cancel()
        try:
            async with asyncio.timeout(5.0):
                await self._settled()
        except TimeoutError:
            _LOG.warning("pool.left_running", extra={"pool": self.name, "choices": len(self._choices)})
        # A heartbeat on its way would open links again.
        await self._membership.stop()
        await self._watch.close()
        # What is left loses its link here, and its release is one of the tasks that end below.
        await self.replicas.close()
        await self._owner.close()
        await self._queue.close()

    async def _settled(self) -> None:
        while self._choices or len(self._owner):
            # Ends arrive from links and releases end as tasks: look again at each turn of either.
            await self._owner.wait_any(timeout=0.1)

    @property
    def available(self) -> bool:
        """Whether the queue answers: this router's lease is held."""
        return self._membership.held

    @property
    def longest_lag_s(self) -> float:
        """The longest that this router's event loop let its lease wait for a sign of life."""
        return self._membership.longest_lag_s

    @property
    def stalled_s(self) -> float:
        """How long this router's event loop stood still, all times together."""
        return self._membership.stalled_s

    @property
    def active(self) -> int:
        """Choices that wait or run here."""
        return len(self._choices)

    # --- for requests -------------------------------------------------------------------------------------------------

    async def submit(self, choice: Choice) -> KnownRequest | None:
        """Put a choice in line, or start it at once.

        Returns the request that the choice's client key already belongs to; nothing is in line then.

        Raises:
            QueueFullError, QuotaExceededError, KeyReusedError, QuarantinedError: not this one, or not now.
            NoReplicaError: replicas take work, and this router reaches none of them.
            TakenOverError: it was submitted before, and another router has it now.
            QueueUnavailableError: the queue does not answer.
        """
        self._check_links()
        choice.metering.closed = False
        self.quarantine.check(choice)
        self.take(choice)
        try:
            submitted = await self._queue.submit(self._router_id, choice.entry)
            if submitted.known is None and submitted.marks != self.quarantine.marks:
                # Another router turned something away, and it may be this content.
                await self.quarantine.follow()
                self.quarantine.check(choice)
        except (QueueFullError, QuotaExceededError, KeyReusedError) as error:
            # Nothing is in line. Refusals are many when a pool is full, so they are cheap.
            self._drop(choice)
            if isinstance(error, QueueFullError):
                self.admission.demand.turned_away(choice.entry.request_class)
            raise
        except BaseException:
            # Also when the caller was cancelled: the entry may be in line, and nobody would answer its grant.
            if self._drop(choice):
                self.releases.withdraw(choice.entry.request_id, None)
            raise
        if submitted.known is not None or submitted.elsewhere:
            self._drop(choice)
            if submitted.elsewhere:
                raise TakenOverError(choice.entry.request_id)
            return submitted.known
        choice.position = submitted.position
        choice.run_id = self.resubmit.run_id
        if submitted.grant is not None:
            self._granted(submitted.grant)
        else:
            choice.predicted_wait_s = self.admission.wait_s(choice)
        return None

    def _drop(self, choice: Choice) -> bool:
        """Forget a choice; False where another call has its request by now."""
        request_id = choice.entry.request_id
        ours = self._choices.get(request_id, choice) is choice
        if ours:
            self._choices.pop(request_id, None)
        return ours

    def _check_links(self) -> None:
        # A dead replica is in the registry for a lease. After two it is this router that is cut off, by a network
        # policy or its certificate, and what it takes would wait for nothing.
        silent_s = self.replicas.cut_off_s(time.monotonic())
        if silent_s > 2 * self.queue_settings.lease_s:
            count = self.replicas.ready()
            raise NoReplicaError(
                f"{self.name!r}: this router has reached none of the pool's replicas ({count}) for {silent_s:.0f} s"
            )

    async def adopt(self, choice: Choice) -> Adopted | None:
        """Make an entry of the queue this choice's; None when there is none. A call of this router that had it is told.

        Raises:
            QueueUnavailableError: the queue does not answer.
        """
        request_id = choice.entry.request_id
        # Mail may overtake the answer, and would find nobody here.
        with self._taking_over(request_id):
            adopted = await self._queue.adopt(self._router_id, choice.entry.tenant, request_id)
        choice.metering.closed = adopted is None
        if adopted is not None:
            if (old := self._choices.get(request_id)) is not None and old is not choice:
                choice.inherit(old)
            self.take(choice)
            choice.adopted = True
            choice.first_arrived_at = min(choice.arrived_at, time.monotonic() - adopted.age_ms / 1000)
            choice.position = adopted.position
            choice.run_id = self.resubmit.run_id
        return adopted

    def take(self, choice: Choice) -> None:
        """Deliver to this choice from now on; a call of this router that had its request is told."""
        self.releases.stay(choice.entry.request_id)
        old = self._choices.get(choice.entry.request_id)
        self._choices[choice.entry.request_id] = choice
        if old is not None and old is not choice:
            old.on_detached()

    async def reach(self, choice: Choice, grant: Grant, address: str = "") -> Placement | None:
        """Return where an adopted choice's attempt runs, as `find_place` does; `address` is for where the registry does
        not know its replica.
        """
        choice.attempt = grant.attempt
        # What its owner does not report is granted again after a while.
        self._membership.started(choice.entry.request_id, grant.attempt)
        known = self.replicas.announcements.get(grant.replica_id)
        return await self.find_place(choice, grant.replica_id, known.address if known is not None else address)

    async def find_place(self, choice: Choice, replica_id: str, address: str) -> Placement | None:
        """Return what is known of a choice's replica, as soon as this router reaches it; None when it does not within
        the grace, or the choice is over by then: it was stopped, or another call has it.
        """
        request_id = choice.entry.request_id
        place = self.replicas.place(replica_id)
        if place is None and address:
            # Meanwhile nobody else may start it, or give its slot back: it runs.
            with self._taking_over(request_id):
                link = await self.replicas.reach(replica_id, address, self.queue_settings.attach_grace_s)
            place = self.replicas.placement(link) if link is not None else None
        if choice.end is not None and choice.error is None and choice.attempt:
            # Cancelled meanwhile: its slot is given back, and nobody attaches to what runs.
            self.replicas.stop(replica_id, request_id, choice.attempt)
        return place if choice.state is ChoiceState.WAITING else None

    @contextmanager
    def _taking_over(self, request_id: str) -> Iterator[None]:
        self._reaching[request_id] += 1
        try:
            yield
        finally:
            self._reaching -= Counter((request_id,))

    async def find_key(self, tenant: str, key: str, request_id: str, digest: str) -> KnownRequest | None:
        """Tell whose a client key is; see `Queue.find_key`."""
        return await self._queue.find_key(tenant, key, request_id, digest)

    async def finish_key(self, tenant: str, key: str, request_id: str, result: bytes) -> None:
        """Keep a result for whoever repeats the key; an empty one frees the key."""
        try:
            await self._queue.finish_key(self._router_id, tenant, key, request_id, result)
        except QueueUnavailableError as error:
            # The key is forgotten with its window; until then a repeat finds neither request nor result.
            _LOG.warning("result.not_kept", extra={"request": request_id, "error": str(error)})

    async def usage(self, tenant: str, first_day: int, last_day: int, limit: int) -> Sequence[UsageLine]:
        """Read the ledger; see `Queue.usage`."""
        return await self._queue.usage(tenant, first_day, last_day, limit)

    async def cancel(self, tenant: str, target: str, *, by_key: bool) -> str | None:
        """Cancel any request of the pool, with all its choices; see `Queue.cancel`. What is known here does not wait
        for the queue. Returns the request id; None when this tenant has no such request.
        """
        here = not by_key and self._cancel_here(tenant, target)
        try:
            # Also then: another router may have taken it over a moment ago.
            found = await self._queue.cancel(self._router_id, tenant, target, by_key=by_key)
        except QueueUnavailableError:
            if here:
                return target
            raise
        if found is not None:
            self._cancel_here(tenant, found)
        return found if found is not None or not here else target

    def _cancel_here(self, tenant: str, request_id: str) -> bool:
        """Cancel the choices of a request that wait or run here; returns whether there are any."""
        choices = [
            choice
            for name in (request_id, *choice_ids(request_id))
            if (choice := self._choices.get(name)) is not None and choice.entry.tenant == tenant
        ]
        for choice in choices:
            choice.cancel()
        return bool(choices)

    # --- Dispatch -----------------------------------------------------------------------------------------------------

    def release(self, choice: Choice) -> None:
        """Give the slot back."""
        request_id = choice.entry.request_id
        self._choices.pop(request_id, None)
        self.slow_readers.follow(choice)
        used = choice.metering.final(choice.tokens)
        if not choice.metering.closed:
            self.admission.learn(choice.metering)
            self.admission.demand.over(choice)
            self.on_settled(choice, used)
        self.releases.release(request_id, choice.attempt, used or Settlement(choice.tokens))

    def requeue(self, choice: Choice) -> None:
        """Give the slot back, and wait for another one."""
        self.releases.requeue(choice.entry.request_id, choice.attempt, choice.metering.partial(choice.tokens))

    def note_loss(self, failure: Failure, replica_id: str) -> None:
        """Count an attempt that was lost on a replica."""
        self.losses[failure] += 1
        if failure in (Failure.ENGINE, Failure.ENGINE_DIED):
            self.replicas.failed(replica_id)

    def note_output(self, replica_id: str) -> None:
        """Learn that an attempt on a replica had its first output."""
        self.replicas.succeeded(replica_id)

    def suspect(self, choice: Choice) -> None:
        """Wait for another slot, but one suspect at a time."""
        self.quarantine.suspect(choice)

    def cleared(self, choice: Choice) -> None:
        """Let the next suspect run."""
        self.quarantine.clear(choice)

    def hand_over(self, choice: Choice) -> None:
        """Let go of a choice."""
        request_id = choice.entry.request_id
        self.quarantine.leave(request_id)
        if self._choices.get(request_id) is choice:
            del self._choices[request_id]
            self._give_back(request_id, "")

    def park(self, choice: Choice) -> None:
        """Leave a choice as it is to the router that adopts it."""
        request_id = choice.entry.request_id
        self.quarantine.leave(request_id)
        self._choices.pop(request_id, None)
        self._parked.add(request_id)
        self._membership.parted = True

    def leave(self, choice: Choice) -> None:
        """Leave a running attempt to whoever comes back for it, here or elsewhere. Where nobody does, its replica stops
        it and the audit frees its slot.
        """
        request_id = choice.entry.request_id
        if self._choices.get(request_id) is choice:
            del self._choices[request_id]

    def refuse(self, choice: Choice) -> None:
        """Wait for another slot."""
        self.releases.refuse(choice.entry.request_id, choice.attempt)

    def withdraw(self, choice: Choice) -> None:
        """Leave the line."""
        if self.quarantine.leave(choice.entry.request_id):
            # It is not in line yet: it has its slot on the replica whose engine died.
            self.release(choice)
        elif self._choices.pop(choice.entry.request_id, None) is not None:
            self.admission.demand.over(choice)
            used = choice.metering.final(choice.tokens)
            self.on_settled(choice, used)
            self.releases.withdraw(choice.entry.request_id, used)

    def take_back(self, choice: Choice) -> None:
        """Take a choice out of the line that is refused after all: it does not count as one that ended."""
        request_id = choice.entry.request_id
        if choice.state is ChoiceState.WAITING and choice.waited_s is None and request_id in self._choices:
            del self._choices[request_id]
            self.releases.withdraw(request_id, None)

    # --- mail ---------------------------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Look into the mailbox; rings while a look is under way are merged."""
        if not self._collecting:
            self._collecting = True
            self._owner.spawn(self._collect(), "collect")

    async def _collect(self) -> None:
        self._collecting = False
        try:
            self._deliver(await self._queue.collect(self._router_id))
        except QueueUnavailableError:
            # The next heartbeat brings the same mail.
            return

    def _deliver(self, mail: Mail) -> None:
        # Orders first: what is cancelled before it is started never starts.
        for order in mail.orders:
            if (choice := self._choices.get(order.request_id)) is not None:
                if order.kind == "expired" and choice.state is ChoiceState.WAITING and choice.has_time:
                    self._owner.spawn(self._submit_early(order.request_id), "submit_early")
                else:
                    choice.ordered(order.kind)
            elif order.request_id not in self._reaching and not self.releases.left(order.request_id):
                self._give_back(order.request_id, "")
        for grant in mail.grants:
            self._granted(grant)

    async def _submit_early(self, request_id: str) -> None:
        _LOG.warning("choice.expired_early", extra={"request": request_id})
        # The next heartbeat brings the order again.
        with suppress(QueueUnavailableError):
            await self.resubmit.submit_again(request_id)

    def _granted(self, grant: Grant) -> None:
        choice = self._choices.get(grant.request_id)
        if grant.request_id in self._reaching:
            return
        if choice is None:
            known = self.releases.ended(grant.request_id, grant.attempt) or grant.request_id in self._parked
            if not known:
                self._give_back(grant.request_id, grant.attempt)
            return
        if choice.state is not ChoiceState.WAITING or choice.attempt == grant.attempt:
            # Mail repeats until the next heartbeat reports the start.
            return
        if not self._membership.held:
            # Fenced: the pool may already have given this slot to somebody else.
            _LOG.warning("grant.fenced", extra={"request": grant.request_id})
            return
        choice.attempt = grant.attempt
        place = self.replicas.place(grant.replica_id)
        if place is None or place.link.suspect:
            self.refuse(choice)
            return
        if not choice.may_run_on(place, self.replicas.groups(besides=grant.replica_id)):
            return
        choice.run_on(grant, place)
        self._membership.started(grant.request_id, grant.attempt)

    def _give_back(self, request_id: str, attempt: str) -> None:
        self.releases.release(request_id, attempt, Settlement(0))

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    def _describe(self) -> RouterBeat:
        # Runs on the membership's thread.
        return RouterBeat(
            self._router_id,
            self.replicas.connected(),
            report=self.admission.demand.report(self.job_work()),
            positions_of=self._positions.ask(),
        )

    def _beaten(self, reply: RouterBeatReply) -> None:
        self.beat = reply
        self.admission.heard(reply)
        now = time.monotonic()
        if reply.run_id != self.resubmit.run_id:
            self._doubt_until = now + self.queue_settings.lease_s
            if self.resubmit.heard(reply.run_id):
                self._owner.spawn(self.resubmit.submit_all(), "submit_again")
        if reply.replicas is not None:
            self.replicas.update(reply.replicas, complete=now >= self._doubt_until)
        self.replicas.look(now)
        self._positions.heard(reply.positions)
        if reply.marks != self.quarantine.marks:
            self._owner.spawn(self._follow(), "follow_marks")
        self._deliver(reply.mail)
        self.releases.tell_again()

    async def _follow(self) -> None:
        # What is not learned now comes with the next heartbeat.
        with suppress(QueueUnavailableError):
            await self.quarantine.follow()

    def _links_changed(self) -> None:
        # The queue grants only where it knows us connected: tell it now, not in a second.
        self._membership.nudge()


def _unheard(_choice: Choice, _used: Settlement | None) -> None:
    """Do nothing until somebody counts."""
