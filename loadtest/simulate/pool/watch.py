"""Observation of a simulated pool: snapshots for policies, samples for the timeline."""

from __future__ import annotations

from collections import Counter

from loadtest.simulate.autoscalers.contract import Arrival, Ended, PoolSnapshot, ReplicaSnapshot, StepColumns
from loadtest.simulate.engine.replica import SimRequest
from loadtest.simulate.pool.fleet import Fleet, Member
from loadtest.simulate.pool.outcome import Outcome, Sample
from loadtest.simulate.setup import Setup
from penstock.models import ReplicaState, RequestClass


class PoolWatch:
    """What the leader would hear from routers between two looks."""

    def __init__(self, setup: Setup, fleet: Fleet, *, told: bool) -> None:
        """`told`: whether anybody looks at the pool. What arrives and ends is kept for the next look only."""
        self._setup = setup
        self._told = told
        self._fleet = fleet
        self._waiting: dict[str, tuple[RequestClass, float]] = {}
        self._arrived: list[Arrival] = []
        self._ended: list[Ended] = []
        self._turned_away: list[RequestClass] = []
        self.samples: list[Sample] = []

    def arrived(self, now: float, request_class: RequestClass, prompt_tokens: int) -> None:
        if self._told:
            self._arrived.append(Arrival(now, request_class, prompt_tokens))

    def turned_away(self, request_class: RequestClass) -> None:
        """Note a request that was refused because there was no room."""
        if self._told:
            self._turned_away.append(request_class)

    def waits(self, item: SimRequest, request_class: RequestClass) -> None:
        self._waiting[item.request_id] = (request_class, item.arrived_at)

    def runs(self, item: SimRequest) -> None:
        """Note that a request has left the line."""
        self._waiting.pop(item.request_id, None)

    def ended(self, now: float, outcome: Outcome) -> None:
        """Note a request that was completed."""
        if not self._told:
            return
        self._ended.append(
            Ended(
                now,
                outcome.request_class,
                outcome.prompt_tokens,
                outcome.cached_tokens,
                outcome.output_tokens,
                outcome.ttft_s,
                outcome.itl_p95_s,
                outcome.itl_mean_s,
            )
        )

    def of_replica(self, member: Member, now: float, *, steps: bool = False) -> ReplicaSnapshot:
        """Return a snapshot of a replica. With `steps` it has the steps since the last such look."""
        replica = member.replica
        core = replica.sync(now)
        columns, started, by_class = StepColumns(), [], Counter[RequestClass]()
        if steps:
            started, member.started = member.started, []
            by_class.update(self._class(item) for item in replica.running.values())
            log, since = replica.log, member.steps_seen - replica.log.dropped
            columns = StepColumns(
                log.seconds[since:],
                log.sequences[since:],
                log.tokens[since:],
                log.kv_tokens[since:],
                log.decoded[since:],
            )
            member.steps_seen = len(log)
        return ReplicaSnapshot(
            member.name,
            now,
            member.state,
            now - member.created_at,
            replica.windows.sequences,
            self._setup.engine.max_num_seqs,
            core.running,
            core.waiting,
            core.kv_usage,
            replica.windows.kv_tokens,
            self._setup.engine.max_num_batched_tokens,
            replica.preemptions,
            columns,
            by_class,
            started,
            member.relief,
        )

    def _class(self, item: SimRequest) -> RequestClass:
        request_class = item.request.request_class
        return self._setup.default_class if request_class is None else request_class

    def of_pool(self, now: float) -> PoolSnapshot:
        """Return a snapshot of the pool, with the arrivals and ends since the last look."""
        arrived, self._arrived = self._arrived, []
        ended, self._ended = self._ended, []
        turned_away, self._turned_away = self._turned_away, []
        oldest: dict[RequestClass, float] = {}
        for request_class, at in self._waiting.values():
            oldest[request_class] = max(oldest.get(request_class, 0.0), now - at)
        return PoolSnapshot(
            now,
            self._fleet.desired,
            self._setup.cold_start_s,
            tuple(self.of_replica(member, now) for member in self._fleet.members.values()),
            Counter(request_class for request_class, _ in self._waiting.values()),
            oldest,
            arrived,
            ended,
            turned_away,
        )

    def sample(self, now: float) -> None:
        fleet = self._fleet
        ready = [member.replica for member in fleet.members.values() if member.state is ReplicaState.READY]
        self.samples.append(
            Sample(
                now,
                len(ready),
                fleet.count(ReplicaState.STARTING),
                fleet.count(ReplicaState.DRAINING),
                fleet.desired,
                sum(replica.windows.sequences for replica in ready),
                sum(len(member.replica.running) for member in fleet.members.values()),
                len(self._waiting),
                sum([replica.sync(now).kv_usage for replica in ready]) / max(1, len(ready)),
            )
        )
