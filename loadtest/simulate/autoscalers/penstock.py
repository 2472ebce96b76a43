"""Penstock's own policies in the simulator: the production code, with inputs like those of its hosts.

`preemptions` differ: a simulated replica counts them since it started, and a batch snapshot since the last tick. A
policy gets the true step model, times an error if one is asked for. It keeps that model unless it is given a `PoolFit`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from cluster.autoscaler.ahead.foresight import Foresight
from cluster.autoscaler.assemble import MOST_SPREAD
from cluster.autoscaler.meter import ATTAINMENT_LEAST, ATTAINMENT_WINDOW_S
from cluster.control import batch_policy as fast
from cluster.control import replica_policy as slow
from cluster.control.batch_policy import FastBounds, FastState
from cluster.control.replica_policy import SlowDecision
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.snapshot import BatchSnapshot, ClassDemand, GroupSnapshot
from cluster.control.step_fit import StepFit
from cluster.control.step_model import Shape, StepModel, StepSample
from cluster.standby.pool import with_standbys
from cluster.standby.rule import StandbyInput, StandbyLimits, StandbyState, decide_standby
from loadtest.simulate.autoscalers.contract import Arrival, Ended, PoolSnapshot, ReplicaSnapshot, StepColumns
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.setup import Setup, Slo
from penstock.models import ReplicaState, RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Relief

RATE_S = 60.0
"""Time over which rates are averaged, about."""
LENGTHS_S = 300.0
"""The same for output lengths, which are known only at the end."""
NEW_S = 45.0
"""Seconds in which a replica that has started may not have been told yet to stand by."""
_PRIOR = 5.0
"""Weight of the expected output, in requests."""
_STEPS_PER_LOOK = 4
"""Steps that the fit learns from at each look at a replica: a few are enough, because simulated ones do not scatter."""


def point_of(slos: dict[RequestClass, Slo], attainment: float = 0.99) -> OperatingPoint:
    """Return the promise that a run is scored by. A class that is left out is promised nothing."""
    found = {each: ClassSlo(slo.ttft_s, slo.itl_s) for each, slo in slos.items()}
    none = ClassSlo()
    return OperatingPoint(
        found.get(RequestClass.INTERACTIVE, none),
        found.get(RequestClass.STANDARD, none),
        found.get(RequestClass.BATCH, none),
        attainment,
    )


def model_of(setup: Setup, error: float = 0.0) -> StepModel:
    """Return the step model of the simulated engine, with every coefficient too high by the fraction `error`."""
    times = StepTimes.of(setup.engine)
    factor = 1.0 + error
    return StepModel(factor * times.base_s, factor * times.per_token_s, factor * times.per_kv_token_s)


class PoolFit:
    """Fit of the step model to the steps of all replicas of a pool, which share what they learn."""

    def __init__(self, prior: StepModel) -> None:
        self._fit = StepFit(prior)

    @property
    def model(self) -> StepModel | None:
        """Model while it is reliable, else None."""
        return self._fit.trusted

    def learn(self, columns: StepColumns) -> None:
        """Learn from a replica's look."""
        stride = max(1, math.ceil(len(columns.seconds) / _STEPS_PER_LOOK))
        self._fit.learn(_samples(columns)[::stride])


@dataclass(slots=True)
class PenstockLearner:
    """Host of a replica without an ITL SLO: it learns, and its batch limit stays."""

    fit: PoolFit

    def decide(self, snapshot: ReplicaSnapshot) -> int:
        self.fit.learn(snapshot.steps)
        return snapshot.limit


class PenstockFast:
    """Host of one replica's batch policy.

    Args:
        point: the promise.
        model: the step model.
        window_s: seconds of steps that are looked at.
        most_steps: the most of these steps that are used, evenly chosen.
        every: heartbeats per decision.
        fit: learns from the steps, and gives the step model in place of `model`.
    """

    def __init__(
        self,
        point: OperatingPoint,
        model: StepModel,
        window_s: float = 15.0,
        most_steps: int = 100,
        every: int = 1,
        fit: PoolFit | None = None,
    ) -> None:
        self._slo_s = point.itl_p95_s
        self._model = model
        self._fit = fit
        self._window_s, self._most, self._every = window_s, most_steps, every
        self._state = FastState()
        self._looks: deque[tuple[float, list[StepSample]]] = deque()
        """Steps of each look within the window."""
        self._started: deque[tuple[float, int]] = deque()
        self._preemptions = self._ticks = 0

    def decide(self, snapshot: ReplicaSnapshot) -> int:
        if self._fit is not None:
            self._fit.learn(snapshot.steps)
        if self._slo_s is None:
            return snapshot.limit
        self._note(snapshot)
        self._ticks += 1
        if self._ticks % self._every:
            return snapshot.limit
        seen = self._seen(snapshot)
        rules = fast.rules_under(snapshot.relief)
        decision = fast.decide(self._slo_s, FastBounds(1, snapshot.largest_limit), seen, self._state, rules)
        self._state = decision.state
        return decision.limit

    def _note(self, snapshot: ReplicaSnapshot) -> None:
        now = snapshot.now_s
        self._looks.append((now, _samples(snapshot.steps)))
        while self._looks[0][0] < now - self._window_s:
            self._looks.popleft()
        self._started.append((now, snapshot.started.count(RequestClass.INTERACTIVE)))
        while self._started[0][0] < now - RATE_S:
            self._started.popleft()

    def _seen(self, snapshot: ReplicaSnapshot) -> BatchSnapshot:
        steps = list(chain.from_iterable([samples for _, samples in self._looks]))
        stride = max(1, math.ceil(len(steps) / self._most))
        preempted, self._preemptions = snapshot.preemptions - self._preemptions, snapshot.preemptions
        return BatchSnapshot(
            at=snapshot.now_s,
            limit=snapshot.limit,
            running=snapshot.running,
            samples=tuple(steps[::stride]),
            kv_usage=snapshot.kv_usage,
            kv_tokens=snapshot.kv_tokens,
            step_tokens=snapshot.step_tokens,
            preemptions=preempted,
            model=self._model if self._fit is None else self._fit.model,
            interactive_arrivals=sum([count for _, count in self._started]) / RATE_S,
            interactive_running=snapshot.running_by_class.get(RequestClass.INTERACTIVE, 0),
        )


def _samples(columns: StepColumns) -> list[StepSample]:
    rows = zip(columns.seconds, columns.tokens, columns.kv_tokens, columns.sequences, strict=True)
    return list(map(StepSample._make, rows))


@dataclass(slots=True)
class _ClassMeter:
    """Averages of one class, with weights that fall off over time."""

    rate: float = 0.0
    prompt_tokens: float = 0.0
    """Per second, like `rate`."""
    ended: float = 0.0
    ended_prompt: float = 0.0
    output_tokens: float = 0.0
    cached_tokens: float = 0.0
    seen_s: float = 0.0

    def take(self, arrived: Sequence[Arrival], ended: Sequence[Ended], passed_s: float) -> None:
        """Add the arrivals and ends of the last `passed_s`."""
        keep = math.exp(-passed_s / RATE_S)
        self.seen_s += passed_s
        self.rate = keep * self.rate + (1 - keep) / passed_s * len(arrived)
        self.prompt_tokens = keep * self.prompt_tokens + (1 - keep) / passed_s * sum(a.prompt_tokens for a in arrived)
        keep = math.exp(-passed_s / LENGTHS_S)
        self.ended = keep * self.ended + len(ended)
        self.ended_prompt = keep * self.ended_prompt + sum(each.prompt_tokens for each in ended)
        self.output_tokens = keep * self.output_tokens + sum(each.output_tokens for each in ended)
        self.cached_tokens = keep * self.cached_tokens + sum(each.cached_tokens for each in ended)

    @property
    def warm_rate(self) -> float:
        """Rate without the zeros from before the first look."""
        return self.rate / max(1e-9, 1.0 - math.exp(-self.seen_s / RATE_S))

    def shape(self, expected_output: float) -> Shape:
        """Return the mean request."""
        prompt = self.prompt_tokens / self.rate if self.rate > 1e-9 else 1.0
        # Short ones end first, so the first ends alone would make all requests look short.
        output = (_PRIOR * expected_output + self.output_tokens) / (_PRIOR + self.ended)
        return Shape(prompt, output, self.cached_tokens / max(1.0, self.ended_prompt) * prompt)


@dataclass(slots=True)
class PenstockSlow:
    """Host of the replica policy. Its attainment counts recent ends, and requests refused for lack of room."""

    point: OperatingPoint
    bounds: GroupBounds
    model: StepModel | None
    largest: int
    """Batch limit that the engines were started with."""
    rules: SlowRules = field(default_factory=SlowRules)
    expected_output: float = 256.0
    fit: PoolFit | None = None
    """Source of the step model in place of `model`. The hosts of batch policies teach it."""
    fast: bool = False
    """Whether batch policies move the replicas' limits."""
    foresight: Foresight | None = None
    """Forecast with what came before the run; None where the present alone counts."""
    began_at: float = 0.0
    """Time of the forecast's clock at the run's beginning, seconds."""
    last: SlowDecision | None = None
    limits: StandbyLimits = field(default_factory=StandbyLimits)
    """Standbys of the pool."""
    _standby: StandbyState = field(default_factory=StandbyState)
    _state: SlowState = field(default_factory=SlowState)
    _at: float | None = None
    _meters: dict[RequestClass, _ClassMeter] = field(default_factory=dict)
    _ended: deque[tuple[float, bool]] = field(default_factory=deque)
    _spread: float = 1.0
    _arrived_at: float | None = None
    _first: Sequence[Arrival] = ()
    """Arrivals of the first look, for the next one."""

    def decide(self, snapshot: PoolSnapshot) -> int:
        if self._at is None:
            # The first look covers an unknown time: a request within no time would be a high rate.
            self._at, self._first = snapshot.now_s, snapshot.arrived
            return snapshot.desired
        if self._first:
            snapshot = replace(snapshot, arrived=[*self._first, *snapshot.arrived])
            self._first = ()
        passed = max(1.0, snapshot.now_s - self._at)
        self._at = snapshot.now_s
        self._take(snapshot, passed)
        seen = self._foreseen(replace(self._seen(snapshot), tick_s=passed))
        self.last = slow.decide(self.point, self.bounds, seen, self._state, self.rules, explain=False)
        self._state = self.last.state
        if self.limits.most:
            room = self.bounds.largest - self.last.replicas
            facts = StandbyInput(snapshot.now_s, self.last.replicas, snapshot.cold_start_s, room)
            self._standby = decide_standby(self.limits, facts, self._standby).state
        return self.last.replicas

    def _foreseen(self, seen: GroupSnapshot) -> GroupSnapshot:
        if self.foresight is None:
            return seen
        last = [replace(need, at=self.began_at + need.at) for need in self._state.needs[-1:]]
        return self.foresight.look(self.point, seen, last)

    @property
    def standby(self) -> int:
        """Standbys of the last decision."""
        return self._standby.standby

    @property
    def relief(self) -> Relief:
        """Relief of the last decision."""
        return Relief.NONE if self.last is None else self.last.relief

    def _take(self, snapshot: PoolSnapshot, passed_s: float) -> None:
        if snapshot.arrived:
            self._arrived_at = snapshot.now_s
        classes = {each.request_class for each in snapshot.arrived} | set(snapshot.waiting)
        for each in classes | self._meters.keys():
            meter = self._meters.setdefault(each, _ClassMeter())
            meter.take(
                [arrival for arrival in snapshot.arrived if arrival.request_class is each],
                [ended for ended in snapshot.ended if ended.request_class is each],
                passed_s,
            )
        for done in snapshot.ended:
            slo = self.point.of(done.request_class)
            if not slo.empty:
                self._ended.append((done.at_s, self._met(slo, done)))
        # As routers count: a request that is refused for lack of room is a miss.
        refused = [each for each in snapshot.turned_away if not self.point.of(each).empty]
        self._ended.extend((snapshot.now_s, False) for _ in refused)
        while self._ended and self._ended[0][0] < snapshot.now_s - ATTAINMENT_WINDOW_S:
            self._ended.popleft()
        spreads = [done.itl_p95_s / done.itl_mean_s for done in snapshot.ended if done.itl_mean_s > 0]
        if spreads:
            self._spread += 0.2 * (max(1.0, sum(spreads) / len(spreads)) - self._spread)

    @staticmethod
    def _met(slo: ClassSlo, done: Ended) -> bool:
        in_time = slo.ttft_p99_s is None or done.ttft_s <= slo.ttft_p99_s
        return in_time and (slo.itl_p95_s is None or done.itl_p95_s <= slo.itl_p95_s)

    def _seen(self, snapshot: PoolSnapshot) -> GroupSnapshot:
        states = Counter(each.state for each in snapshot.replicas)
        ready = [each for each in snapshot.replicas if each.state is ReplicaState.READY]
        serving = [each for each in snapshot.replicas if each.state is not ReplicaState.STARTING]
        met = sum(good for _, good in self._ended)
        seen = GroupSnapshot(
            at=snapshot.now_s,
            ready=len(ready),
            arrived_at=self._arrived_at,
            starting=states[ReplicaState.STARTING],
            draining=states[ReplicaState.DRAINING],
            demands=tuple(self._demand(each, meter, snapshot) for each, meter in sorted(self._meters.items())),
            model=self.model if self.fit is None else self.fit.model,
            spread=min(MOST_SPREAD, self._spread),
            live_batch=statistics.median(each.limit for each in ready) if self.fast and ready else None,
            max_sequences=self.largest,
            step_tokens=max((each.step_tokens for each in snapshot.replicas), default=0),
            kv_tokens=max((each.kv_tokens for each in snapshot.replicas), default=0),
            # Those that an engine has not begun hold a slot too. They wait for no replica.
            running=sum(each.running + each.waiting for each in serving),
            waiting=sum(snapshot.waiting.values()),
            kv_usage=sum([each.kv_usage for each in ready]) / max(1, len(ready)),
            cold_start_s=snapshot.cold_start_s,
            attainment=met / len(self._ended) if len(self._ended) >= ATTAINMENT_LEAST else None,
        )
        new = sum(each.age_s <= snapshot.cold_start_s + NEW_S for each in ready)
        return with_standbys(seen, states[ReplicaState.STANDBY], new, self._standby)

    def _demand(self, request_class: RequestClass, meter: _ClassMeter, snapshot: PoolSnapshot) -> ClassDemand:
        return ClassDemand(
            request_class,
            meter.warm_rate,
            meter.shape(self.expected_output),
            snapshot.waiting.get(request_class, 0),
            snapshot.oldest_wait_s.get(request_class, 0.0),
        )


def penstock_slow(
    setup: Setup, point: OperatingPoint, *, error: float = 0.0, rules: SlowRules | None = None
) -> PenstockSlow:
    """Return the host of the replica policy for a simulated pool."""
    return PenstockSlow(
        point,
        GroupBounds(setup.min_replicas, setup.max_replicas),
        model_of(setup, error),
        setup.engine.max_num_seqs,
        rules or SlowRules(),
        float(setup.expected_output_tokens),
        limits=setup.standby,
    )
