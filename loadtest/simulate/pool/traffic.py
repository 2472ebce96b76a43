"""Requests from their arrival over the queue and a replica's steps to their end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.queue.entries import Grant, Mail
from cluster.queue.heartbeats import ReplicaRecord
from loadtest.simulate.engine.replica import SimRequest
from loadtest.simulate.pool.fleet import Fleet, Member
from loadtest.simulate.pool.loop import EventLoop
from loadtest.simulate.pool.outcome import Outcome, Outcomes, RequestEnd, completed
from loadtest.simulate.pool.queues import SimQueue, Submission
from loadtest.simulate.pool.watch import PoolWatch
from loadtest.simulate.setup import Setup
from loadtest.traces import TraceRequest, kinds_of
from penstock.models import ReplicaState, RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Relief
from router.admission.shedding import SHED, TimeBounds, late_after_s, refusal, shed_after_s
from router.admission.wait_estimate import PoolEstimate
from router.affinity import Affinity, Trail


@dataclass(slots=True, eq=False)
class _Wish:
    trail: Trail
    preferred: tuple[str, ...]
    kv_tokens: int


class Router:
    """State of a router, which is also its bell."""

    def __init__(self, name: str, affinity: Affinity | None, loop: EventLoop) -> None:
        self.name = name
        self._loop = loop
        self.affinity = affinity
        self.estimate = PoolEstimate()
        self.relief = Relief.NONE
        """Relief of the pool, as of the last heartbeat."""
        self.records: dict[str, ReplicaRecord] = {}
        self.started: list[tuple[str, str]] = []
        self.wishes: dict[str, _Wish] = {}
        self.rung = False
        self.late_for: float | None = -1.0
        """The mean time to first token that `late_ms` is for."""
        self.late_ms = 0
        """Milliseconds after which a request is late."""

    def ring(self, _pool: bytes) -> None:
        """Note that there is mail."""
        self.rung = self._loop.rung = True


@dataclass(frozen=True, slots=True)
class SimPool:
    """Parts of a simulated pool that requests pass through."""

    loop: EventLoop
    queue: SimQueue
    fleet: Fleet
    watch: PoolWatch
    routers: Sequence[Router]


class Traffic:
    """Requests of a trace on their way through a pool.

    Args:
        trace: in the order of arrival.
        setup: the cluster.
        pool: its parts. A router is drawn for each request.
        point: the pool's operating point, by which routers refuse requests.
        context: longest prompt and output together, tokens.
        rnd: draws the routers.
        drained: called when a draining replica has no request left.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        setup: Setup,
        pool: SimPool,
        *,
        point: OperatingPoint,
        context: int,
        rnd: random.Random,
        drained: Callable[[Member], None],
    ) -> None:
        self._setup = setup
        self._loop = pool.loop
        self._queue = pool.queue
        self._fleet = pool.fleet
        self._watch = pool.watch
        self.routers = pool.routers
        self._by_name = {router.name: router for router in pool.routers}
        self._point = point
        self._default = setup.default_class
        self._late_slo = ClassSlo(setup.slo.ttft_s)
        self._context = context
        self._random = rnd
        self._drained = drained
        self.bring: Callable[[Member, SimRequest], None] | None = None
        """Brings a granted request into a replica's batch, where that takes more than to start it."""
        self._arrivals = iter(trace)
        self._items: dict[str, SimRequest] = {}
        """Requests that came and have not ended."""
        self.coming: TraceRequest | None = None
        self.outcomes = Outcomes()
        self.ended = 0
        """Number of outcomes."""
        self.yields = any(
            (self._default if each is None else each) is RequestClass.BATCH for each, _ in kinds_of(trace)
        )
        """Whether the trace has batch work, which can be preempted."""
        self.busy_at = 0.0
        """Time of the last arrival, start or end."""

    @property
    def quiet_until(self) -> float | None:
        """Time of the next arrival; None while a request is here, and after the last arrival."""
        return self.coming.arrival_s if self.coming is not None and not self._items else None

    def answer_bells(self) -> None:
        """Read the mail of routers that were rung."""
        for router in self.routers:
            if router.rung:
                router.rung = False
                self.read(router, self._queue.collect(router.name))

    def give_up(self) -> None:
        """Count all requests that have not ended as unfinished."""
        for item in self._items.values():
            self._outcome(self._lost(item, RequestEnd.UNFINISHED))
        self._items.clear()
        for request in ([self.coming] if self.coming is not None else []) + list(self._arrivals):
            self._outcome(self._lost(SimRequest("", request, "", request.arrival_s), RequestEnd.UNFINISHED))

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def next_arrival(self) -> None:
        """Schedule the arrival of the trace's next request."""
        self.coming = next(self._arrivals, None)
        if self.coming is None:
            self._loop.stopped = True
        else:
            self._loop.at(self.coming.arrival_s, self._arrive, self.coming)

    def _arrive(self, request: TraceRequest) -> None:
        self.next_arrival()
        self.busy_at = self._loop.now
        router = self.routers[0] if len(self.routers) == 1 else self._random.choice(self.routers)
        item = SimRequest(f"q{request.number}", request, router.name, self._loop.now)
        if request.prompt_tokens + request.output_tokens > self._context:
            self._outcome(self._lost(item, RequestEnd.REJECTED))
            return
        request_class = self._class(request)
        self._watch.arrived(self._loop.now, request_class, request.prompt_tokens)
        expected = min(self._setup.expected_output_tokens, self._context - request.prompt_tokens)
        kv_tokens = request.prompt_tokens + expected
        answer = self._queue.submit(
            router.name,
            Submission(
                item,
                request_class,
                expected,
                kv_tokens,
                self._late_after_ms(router, request_class),
                () if router.affinity is None else self._wish(router, router.affinity, item, kv_tokens),
            ),
        )
        if answer is None:
            self._watch.turned_away(request_class)
            router.wishes.pop(item.request_id, None)
            self._outcome(self._lost(item, RequestEnd.REJECTED))
            return
        self._items[item.request_id] = item
        grant, ahead = answer
        if grant is not None:
            self._granted(router, grant)
        else:
            self._watch.waits(item, request_class)
            self._check_in_time(router, item, request_class, ahead)

    def _late_after_ms(self, router: Router, request_class: RequestClass) -> int:
        if not self._setup.late_last or request_class is not self._default:
            return 0
        first_s = router.estimate.first_token_s
        if first_s != router.late_for:
            after_s = late_after_s(self._late_slo, first_s)
            router.late_for, router.late_ms = first_s, 0 if after_s is None else max(1, int(1000 * after_s))
        return router.late_ms

    def _check_in_time(self, router: Router, item: SimRequest, request_class: RequestClass, ahead: int) -> None:
        """Refuse a request that would wait too long, as a router does once it is in line."""
        timeout_s = self._setup.queue_timeout_s
        bounds = TimeBounds(
            timeout_s or None,
            shed_after_s(self._point.of(request_class), router.relief),
            router.estimate.first_token_s or 0.0,
        )
        error = refusal(router.estimate.wait_s(request_class, ahead), bounds)
        if error is None:
            return
        if error.bound == SHED:
            self._watch.turned_away(request_class)
        self._queue.withdraw(router.name, item)
        self._end(item, self._lost(item, RequestEnd.REJECTED))

    def _wish(self, router: Router, affinity: Affinity, item: SimRequest, kv_tokens: int) -> tuple[str, ...]:
        request = item.request
        trail, preferred = affinity.look(request.token_ids(), b"", request.session, router.records)
        router.wishes[item.request_id] = _Wish(trail, preferred, kv_tokens)
        return preferred

    def _class(self, request: TraceRequest) -> RequestClass:
        return self._default if request.request_class is None else request.request_class

    # --- mail ---------------------------------------------------------------------------------------------------------

    def read(self, router: Router, mail: Mail) -> None:
        """Act on a router's mail."""
        for grant in mail.grants:
            self._granted(router, grant)
        for order in mail.orders:
            item = self._items.get(order.request_id)
            if item is None:
                continue
            if order.kind == "preempt":
                member = self._where(item)
                if member is not None:
                    member.replica.abort(item.request_id, self._loop.now)
                    self.drive(member)
            elif order.kind == "expired":
                item.attempt = ""
                self._take(router, self._queue.release(router.name, item, 0))
                self._end(item, self._lost(item, RequestEnd.REJECTED))

    def _take(self, router: Router, grants: Sequence[Grant]) -> None:
        for grant in grants:
            self._granted(router, grant)

    def _granted(self, router: Router, grant: Grant) -> None:
        item = self._items.get(grant.request_id)
        if item is None or item.attempt == grant.attempt:
            return
        member = self._fleet.members.get(grant.replica_id)
        if member is None:
            self._watch.waits(item, self._class(item.request))
            self._take(router, self._queue.refuse(router.name, grant))
            return
        item.attempt = grant.attempt
        self.busy_at = self._loop.now
        self._watch.runs(item)
        router.started.append((grant.request_id, grant.attempt))
        wish = router.wishes.pop(item.request_id, None)
        if wish is not None and router.affinity is not None:
            router.affinity.granted(wish.trail, wish.preferred, grant.replica_id, wish.kv_tokens)
        if member.fast is not None:
            member.started.append(self._class(item.request))
        if self.bring is not None:
            self.bring(member, item)
            return
        member.replica.start(item, self._loop.now)
        self.drive(member)

    def _where(self, item: SimRequest) -> Member | None:
        for member in self._fleet.members.values():
            if item.request_id in member.replica.running:
                return member
        return None

    # --- steps --------------------------------------------------------------------------------------------------------

    def drive(self, member: Member) -> None:
        """Plan a replica's steps, and schedule their end."""
        replica = member.replica
        ends_at = replica.ends_at
        if ends_at is None:
            ends_at = replica.begin(self._loop.now)
        if ends_at is not None and ends_at != member.due_at:
            member.due_at = ends_at
            self._loop.at(ends_at, self._steps_over, member)

    def _steps_over(self, member: Member) -> None:
        replica = member.replica
        if replica.ends_at != self._loop.now:
            # The plan was cut, and this is the end of the old one.
            return
        member.due_at = None
        end = replica.end()
        if end.report:
            self._queue.beat_replica(replica, self._loop.now, progress=self.yields)
        for item in end.aborted:
            self.again(item)
        for item in end.finished:
            self._finish(item)
        if replica.running:
            self.drive(member)
        elif replica.state is ReplicaState.DRAINING:
            self._drained(member)
        else:
            member.fall_asleep(self._loop.now)

    def _finish(self, item: SimRequest) -> None:
        router, request = self._by_name[item.router], item.request
        now = self._loop.now
        self._take(router, self._queue.release(router.name, item, request.output_tokens))
        outcome = completed(item, self._class(request), now, self._setup)
        self._watch.ended(now, outcome)
        first_at = item.first_token_at
        if first_at is not None and first_at >= item.started_at:
            fresh = max(0, request.prompt_tokens - item.cached_tokens)
            router.estimate.ran(fresh, request.output_tokens, first_at - item.started_at, now - first_at)
        self._end(item, outcome)

    def again(self, item: SimRequest) -> None:
        """Put a request back in line, with its output so far."""
        router = self._by_name[item.router]
        self._watch.waits(item, self._class(item.request))
        self._take(router, self._queue.requeue(router.name, item, item.prior_tokens))

    def _end(self, item: SimRequest, outcome: Outcome) -> None:
        del self._items[item.request_id]
        self._watch.runs(item)
        self._by_name[item.router].wishes.pop(item.request_id, None)
        self._outcome(outcome)

    def _outcome(self, outcome: Outcome) -> None:
        self.busy_at = self._loop.now
        self.outcomes.append(outcome)
        self.ended += 1

    def _lost(self, item: SimRequest, end: RequestEnd) -> Outcome:
        request = item.request
        return Outcome(
            request.number, end, self._class(request), item.arrived_at, request.prompt_tokens, request.output_tokens
        )
