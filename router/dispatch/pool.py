"""One pool as a router serves it: its queue, its replicas, and the choices that wait or run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from cluster.autoscaler.router_report import JobWork
from cluster.errors import (
    KeyReusedError,
    PenstockError,
    QueueFullError,
    QueueUnavailableError,
    QuotaExceededError,
    TakenOverError,
)
from cluster.lifecycle import TaskOwner
from cluster.queue.cells.cell import Cell
from cluster.queue.contract import Ledger
from cluster.queue.entries import KnownRequest, Settlement
from cluster.queue.heartbeats import RouterBeat, RouterBeatReply
from cluster.settings import PoolSettings, Settings
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from router.admission.admission_control import AdmissionControl
from router.admission.cut_off import CutOff
from router.affinity import Affinity
from router.dispatch.adoption import Adoption
from router.dispatch.cells.moves import CellMoves
from router.dispatch.cells.pool_cells import PoolCells
from router.dispatch.client_keys import ClientKeys
from router.dispatch.line_watch import LineWatch
from router.dispatch.mailbox import Mailbox
from router.dispatch.membership import Membership
from router.dispatch.pool_context import PoolContext
from router.dispatch.positions import Positions
from router.dispatch.quarantine import Quarantine
from router.dispatch.reconcile import Reconciler
from router.dispatch.releases import Releases
from router.dispatch.resubmit import Resubmit
from router.dispatch.translations import Translations
from router.generation.choice import Choice
from router.generation.choice_table import ChoiceTable
from router.generation.slow_readers import SlowReaders
from router.links.breaker import BreakerLimits
from router.links.failure import Failure, RecoveryLimits
from router.links.placement import Group, Placement
from router.links.replicas import ReplicaSet

_LOG = logging.getLogger(__name__)


class Pool:
    """One pool of one router; the `Dispatch` of its choices."""

    def __init__(
        self,
        name: str,
        router_id: str,
        settings: Settings,
        open_cell: Callable[[str], Cell],
        secret: ClusterSecret,
        dialer: LinkDialer,
    ) -> None:
        """`open_cell` opens a cell of the queue: once for this loop, and once for the thread that renews the lease."""
        queue_settings, router_settings = settings.queue, settings.router
        self.name, self.settings = name, settings.pools[name]
        self.closing = False
        """Whether the pool is being removed: it takes no new requests."""
        self.queue_settings = queue_settings
        self.admission = AdmissionControl(self.settings, late_last=queue_settings.late_last)
        self.affinity = Affinity(router_settings.affinity)
        self.recovery = RecoveryLimits.of(router_settings, queue_settings)
        self.job_work: Callable[[], Sequence[JobWork]] = tuple
        """Function that lists what is left of the jobs that are fed from here; another thread calls it."""
        self.on_settled: Callable[[Choice, Settlement | None], None] = lambda _choice, _used: None
        """Told once of every choice that is over, with what the ledger gets of it, whether a client listens or not."""
        self.losses = dict.fromkeys(Failure, 0)
        """Attempts that were lost, since start."""
        self.beat: RouterBeatReply | None = None
        """The newest heartbeat's answer; None before the first."""
        self._doubt_until = 0.0
        """Until then a replica may be missing in the registry because the store lost it."""
        self._parked: set[str] = set()
        """Requests that were left to other routers."""
        self._watch = TaskOwner(f"pool.{name}.watch")
        self.cells = PoolCells(name, self.settings.cells, queue_settings, open_cell)
        self._context = PoolContext(name, router_id, self.cells.queue, TaskOwner(f"pool.{name}"), ChoiceTable())
        context = self._context
        self.keys = ClientKeys(context, queue_settings.max_result_mb)
        self.choices = context.choices
        self.replicas = ReplicaSet(
            name,
            router_id,
            secret,
            dialer,
            ping_s=router_settings.link_ping_s,
            attach_grace_s=queue_settings.attach_grace_s,
            limits=self.recovery,
            breakers=BreakerLimits.of(router_settings),
            # The queue grants only where it knows us connected: tell it now, not in a second.
            on_change=lambda: self._membership.nudge(),
            origins=context.choices.origins,
        )
        self._membership = Membership(context, queue_settings, self.cells.open, self._describe, self._beaten)
        self.resubmit = Resubmit(context, lambda grant: self.mailbox.granted(grant), lambda: self.adoption.under_way)
        self.releases = Releases(context, lambda mail: self.mailbox.deliver(mail), self.resubmit.submit)
        grace_s, membership = queue_settings.attach_grace_s, self._membership
        self.adoption = Adoption(context, membership, self.replicas, grace_s, self.take, lambda: self.resubmit.run_id)
        ways = self.adoption, self.releases, self.resubmit
        self.mailbox = Mailbox(context, membership, self.replicas, *ways, parked=self._parked)
        self._translations = Translations(context, self.releases, self.mailbox.granted, membership.started)
        self.quarantine = Quarantine(context, router_settings.quarantine_s, self._line_up)
        self.reconciler = Reconciler(
            context,
            self.releases,
            lambda: self._parked | self.adoption.under_way | self._translations.under_way,
            self.resubmit.submit_again,
            membership.started,
        )
        self.slow_readers = SlowReaders.of(router_settings, context.choices)
        self._positions = Positions(context.choices)
        self._cut_off = CutOff(name, context.choices, self.replicas, queue_settings.lease_s)
        self.moves = CellMoves(context, self.cells, self.adoption, self.mailbox, self.releases, self.resubmit)
        self.line = LineWatch(context, self.replicas, lambda: self.available, queue_settings)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the pool; returns after the first heartbeat was tried."""
        await self._membership.start()
        self._watch.spawn(self.slow_readers.watch(), "slow_readers")
        self._watch.spawn(self.line.watch(), "line")
        self._watch.spawn(self.reconciler.watch(self.queue_settings.lease_s / 2, lambda: self.available), "audit")

    def change(self, settings: PoolSettings) -> None:
        """Take other settings of the kind that changes while the pool runs."""
        self.settings = settings
        self.cells.change(settings.cells, self.choices)

    async def close(self) -> None:
        """Leave the pool: what still waits or runs is cancelled first, so that no slot stays taken."""
        for choice in self.choices.snapshot():
            choice.cancel()
        try:
            async with asyncio.timeout(5.0):
                await self._settled()
        except TimeoutError:
            _LOG.warning("pool.left_running", extra={"pool": self.name, "choices": len(self.choices)})
        # A heartbeat on its way would open links again.
        await self._membership.stop()
        await self._watch.close()
        # What is left loses its link here, and its release is one of the tasks that end below.
        await self.replicas.close()
        await self._context.owner.close()
        await self._context.queue.close()

    async def _settled(self) -> None:
        while self.choices or len(self._context.owner):
            # Ends arrive from links and releases end as tasks: look again at each turn of either.
            await self._context.owner.wait_any(timeout=0.1)

    @property
    def available(self) -> bool:
        """Whether the queue answers: this router's lease is held."""
        return self._membership.held

    def why_away(self) -> str:
        """Return why the queue does not answer; empty while it does."""
        return "" if self.available else self._membership.problem

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
        return len(self.choices)

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
        self._cut_off.check()
        choice.metering.closed = False
        self.quarantine.check(choice)
        self.take(choice)
        try:
            submitted = await self._context.queue.submit(self._context.router_id, choice.entry)
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
        except BaseException as error:
            # Also when the caller was cancelled: the entry may be in line, and its grant would get no answer.
            if choice.last_attempt is None and self._drop(choice):
                self.releases.withdraw(choice.entry.request_id, None, refused=isinstance(error, PenstockError))
            # With a place it was let in: its grant came with other mail. Its attempt ends as any other does.
            if choice.last_attempt is None or not isinstance(error, QueueUnavailableError):
                raise
            choice.run_id = self.resubmit.run_id
            return None
        if submitted.known is not None or submitted.elsewhere:
            self._drop(choice)
            if submitted.elsewhere:
                raise TakenOverError(choice.entry.of_request)
            return submitted.known
        choice.wait.position = choice.wait.first_position = submitted.position
        choice.wait.budget = self.admission.budgets.note(choice.entry, submitted)
        choice.run_id = self.resubmit.run_id
        if submitted.grant is not None:
            self.mailbox.granted(submitted.grant)
        else:
            choice.wait.predicted_s = self.admission.wait_s(choice)
        return None

    def _drop(self, choice: Choice) -> bool:
        """Forget a choice; False where another call has its request by now."""
        return self.choices.drop(choice) or choice.entry.request_id not in self.choices

    def take(self, choice: Choice) -> None:
        """Deliver to this choice from now on; a call of this router that had its request is told."""
        self.releases.stay(choice.entry.request_id)
        if (old := self.choices.take(choice)) is not None:
            old.on_detached()

    @property
    def ledger(self) -> Ledger:
        """Usage and costs of the pool."""
        return self._context.queue

    async def cancel(self, tenant: str, target: str, *, by_key: bool) -> str | None:
        """Cancel a request of the pool with all its choices, as `Queue.cancel` does. What runs here ends at once.

        Returns the request id; None when this tenant has no such request.
        """
        here = not by_key and self.choices.cancel(target, tenant)
        try:
            # Also then: another router may have taken it over a moment ago.
            found = await self._context.queue.cancel(self._context.router_id, tenant, target, by_key=by_key)
        except QueueUnavailableError:
            if here:
                return target
            raise
        if found is not None:
            self.choices.cancel(found, tenant)
        return found if found is not None or not here else target

    # --- Dispatch -----------------------------------------------------------------------------------------------------

    def release(self, choice: Choice) -> None:
        """Give the slot back."""
        self._let_go(choice)
        used = choice.metering.final(choice.tokens)
        if not choice.metering.closed:
            self.admission.learn(choice.metering)
            self.admission.demand.over(choice)
            self.on_settled(choice, used)
        self.releases.release(choice.entry.request_id, choice.attempt, used or Settlement(choice.tokens))

    def _let_go(self, choice: Choice) -> bool:
        """Forget a choice but for what its client has not read; returns False where it is another call's by now."""
        self.slow_readers.follow(choice)
        return self.choices.drop(choice)

    def requeue(self, choice: Choice) -> None:
        """Give the slot back, and wait for another one."""
        if (origin := choice.resume_state.origin) is not None:
            self.replicas.keep_for(origin)
        self.releases.requeue(choice.entry.request_id, choice.attempt, choice.metering.partial(choice.tokens))

    def _line_up(self, choice: Choice) -> None:
        """Let a choice that was held wait for another slot."""
        choice.line_up()
        self.requeue(choice)

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
        self.quarantine.leave(choice.entry.request_id)
        if self._let_go(choice):
            self.releases.release(choice.entry.request_id, "", Settlement(0))

    def park(self, choice: Choice) -> None:
        """Leave a choice as it is to the router that adopts it."""
        self.leave(choice)
        self._parked.add(choice.entry.request_id)
        self._membership.parted = True

    def leave(self, choice: Choice) -> None:
        """Leave a running attempt to the client's next call, here or elsewhere.

        Where none comes, the replica stops the attempt and reconciliation frees its slot.
        """
        self.quarantine.leave(choice.entry.request_id)
        self._let_go(choice)

    def refuse(self, choice: Choice) -> None:
        """Wait for another slot."""
        self.releases.refuse(choice.entry.request_id, choice.attempt)

    def translate(self, choice: Choice, place: Placement, elsewhere: Iterable[Group]) -> None:
        """Start a choice once it has the ids of its replica's tokenizer."""
        self._translations.translate(choice, place, elsewhere)

    def withdraw(self, choice: Choice) -> None:
        """Leave the line."""
        if self.quarantine.leave(choice.entry.request_id):
            # It is not in line yet: it has its slot on the replica whose engine died.
            self.release(choice)
        elif self._let_go(choice):
            self.admission.demand.over(choice)
            used = choice.metering.final(choice.tokens)
            self.on_settled(choice, used)
            self.releases.withdraw(choice.entry.request_id, used)

    def take_back(self, choice: Choice) -> None:
        """Take a choice out of the line that is refused after all: it does not count as one that ended."""
        if choice.state.waits and choice.wait.waited_s is None and self.choices.drop(choice):
            self.releases.withdraw(choice.entry.request_id, None, refused=True)

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    def _describe(self) -> RouterBeat:
        """Runs on the membership's thread."""
        return RouterBeat(
            self._context.router_id,
            self.replicas.connected(),
            report=self.admission.demand.report(self.job_work()),
            positions_of=self._positions.ask(),
        )

    def _beaten(self, reply: RouterBeatReply) -> None:
        self.beat = reply
        self.cells.note(self.choices)
        self.admission.heard(reply)
        self.replicas.price_per_gpu_hour = self.admission.price_per_gpu_hour
        self.replicas.wanted = self.settings.replicas if self.settings.autoscale.mode != "active" else None
        now = time.monotonic()
        if reply.run_id != self.resubmit.run_id:
            self._doubt_until = now + self.queue_settings.lease_s
            if self.resubmit.heard(reply.run_id):
                self._context.owner.spawn(self.resubmit.submit_all(), "submit_again")
        if reply.replicas is not None:
            self.replicas.update(reply.replicas, complete=now >= self._doubt_until)
        self._cut_off.look(now)
        self._positions.heard(reply.positions)
        if reply.marks != self.quarantine.marks:
            self._context.owner.spawn(self._follow(), "follow_marks")
        self.mailbox.deliver(self.cells.newest(reply.mail))
        for part in (self.releases, self.keys, self.quarantine):
            part.tell_again()
        self.moves.look()

    async def _follow(self) -> None:
        # What is not learned now comes with the next heartbeat.
        with suppress(QueueUnavailableError):
            await self.quarantine.follow()
