"""Simulation of a load on a number of replicas: the queue's rules, production's batch policy, the simulated engine's
scheduler, and the planner's step times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from cluster.control.step_model import StepModel
from cluster.queue.entries import QueueLimits
from cluster.settings import SimSettings
from deployments.engines.sim import Parts
from loadtest.plan.engine.points import DEVIATION
from loadtest.plan.engine.steady import GroupWaits, waits_of
from loadtest.plan.engine.steps import StepPrior
from loadtest.plan.option import Engine, Operation, Promise, alone_s
from loadtest.plan.traffic import Load
from loadtest.simulate.autoscalers.contract import FastFactory
from loadtest.simulate.autoscalers.penstock import PenstockFast, point_of
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.pool.outcome import Outcome, RequestEnd, SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.setup import Setup, Slo
from loadtest.traces import TraceRequest
from penstock.models import RequestClass

MOST_REPLICAS = 2
"""Replicas simulated at a time, with their part of the load. Few replicas share a queue less well, so this errs on the
safe side."""
LEAST_REQUESTS = 200
LIFETIMES = 6
"""Duration of a trial's load in lifetimes of a mean request in a full batch. The first lifetime fills the batch. A lack
of a few per cent of the replicas shows after several."""
PEAK = 2.0
"""Factor on the mean rate of a recorded load where it is busiest. It bounds the requests of a trial: with more, calmer
times would hide the busiest."""
LULL_S = 60.0
"""Longest lull that is simulated, seconds, or `LIFETIMES` if that is longer. Replicas are idle by then and stay so. A
longer lull would only cost time."""
RANGE = (0.05, 0.95)
"""Ends of the ranges in the distribution of an engine's speed."""
OWN = 0.3
"""Part of the deviation that each term has for itself."""
PER_PROMPT = 1 / 3
"""Time between decisions of a simulated batch policy, as a part of that of a mean prompt alone."""
MANY_REQUESTS = 4000
"""Requests above which one replica stands for all, for as long as before. Two with more would take seconds."""


@dataclass(frozen=True, slots=True)
class EngineTimes(StepTimes):
    """Step times of an engine whose steps are more than a line: reads that hide arithmetic, experts, attention."""

    engine: StepPrior = field(default_factory=lambda: StepPrior(StepModel(0.0, 0.0, 0.0), 0.0))
    waits: GroupWaits | None = None
    """Waits for prompts of other groups, in steps that have none of their own."""

    def times(self, factor: float) -> EngineTimes:
        waits = self.waits and replace(self.waits, part_s=factor * self.waits.part_s)
        return replace(self, engine=self.engine.times(factor, factor, factor), waits=waits)

    def one(self, tokens: int, kv_tokens: int) -> float:
        seconds = self.engine.step(tokens, tokens, kv_tokens)
        return seconds if self.waits is None else self.waits.longer(seconds)

    def with_prompts(self, decoded: int, filled: int, tokens: int, kv_tokens: int, decode_kv_tokens: int) -> float:
        prompt = tokens - decoded
        if not filled or prompt <= 0:
            return self.one(decoded, kv_tokens)
        # Of several parts the mean counts: each attends to what is before it and to half of itself.
        before = max(0.0, (kv_tokens - decode_kv_tokens) / filled - prompt / filled / 2)
        return self.engine.step(decoded + filled, tokens, decode_kv_tokens, prompt * before, alone=prompt)

    def fill(self, sequences: int, kv_tokens: int, parts: Parts) -> list[float]:
        # As `with_prompts` has it, to the last bit. All steps have the same tokens, so what they cost counts once.
        turns, share, computed = parts
        tokens, number = sequences + share, np.arange(1, turns + 1)
        steps, roofline = self.engine.steps, self.engine.roofline
        attended = share * np.maximum(0.0, computed + number * share - share / 2)
        seconds = steps.a + steps.b * tokens + steps.g * (kv_tokens + number * sequences)
        if steps.experts is not None:
            seconds = seconds + steps.m * steps.experts.share_read(tokens)
        seconds = seconds + self.engine.request_s * (sequences + 1) + self.engine.attention_s * attended
        found: list[float] = (seconds + (roofline.seconds(tokens, share) if roofline else 0.0)).tolist()
        return found

    def run(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        slope, fixed = self.engine.steps.g, self.engine.step(sequences, sequences, 0)
        last = kv_tokens + sequences * steps
        seconds = [fixed + slope * kv for kv in range(kv_tokens + sequences, last + 1, sequences)]
        return seconds if self.waits is None else [self.waits.longer(each) for each in seconds]


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Figures of a trial. Times in seconds."""

    ttft_mean_s: float
    ttft_p99_s: float
    itl_mean_s: float
    itl_p95_s: float
    """Of all gaps between tokens, as a load test counts them."""
    tokens_per_s: float
    """Output tokens of all replicas."""
    attainment: float
    """Part of the requests that kept both SLOs. For ITL a request's own 95th percentile counts."""


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a figure. 90 % of the likely speeds of the engine give a value between `low` and `high`."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        """Return the range of draws that reach from its one end to the other."""
        return cls(min(values), float(np.median(values)), max(values))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Figures of a trial as ranges."""

    ttft_mean_s: Range
    ttft_p99_s: Range
    itl_mean_s: Range
    itl_p95_s: Range
    tokens_per_s: Range
    attainment: Range

    @classmethod
    def of(cls, trials: Sequence[TrialFigures]) -> Ranges:
        """Return the ranges of several trials."""
        return cls(
            Range.of([each.ttft_mean_s for each in trials]),
            Range.of([each.ttft_p99_s for each in trials]),
            Range.of([each.itl_mean_s for each in trials]),
            Range.of([each.itl_p95_s for each in trials]),
            Range.of([each.tokens_per_s for each in trials]),
            Range.of([each.attainment for each in trials]),
        )


def times_of(engine: Engine, operation: Operation, load: Load, replicas: int) -> StepTimes:
    """Return an engine's step times for a load that so many replicas serve."""
    model = engine.steps.for_shape(load.shape)
    if engine.steps.roofline is None and model.experts is None:
        return StepTimes(model.a, model.b, model.g)
    rate = load.rate / (replicas * engine.lanes)
    waits = waits_of(engine.steps, operation.batch, load.shape, operation.step_tokens, rate)
    return EngineTimes(model.a, model.b, model.g, engine.steps, waits)


def production(engine: Engine, load: Load, promise: Promise, every: int | None = None) -> FastFactory:
    """Return the batch policy as production has it, with this engine's step model.

    Args:
        engine: of each replica.
        load: its mean request sets the step model.
        promise: the SLO that the policy holds.
        every: seconds between its decisions; None for one, or more where a prompt takes many.
    """
    point = point_of(_slos(promise))
    model = engine.steps.for_shape(load.shape)
    apart = seconds_apart(engine, load) if every is None else every
    return lambda: PenstockFast(point, model, every=apart)


def seconds_apart(engine: Engine, load: Load) -> int:
    """Return the seconds between decisions of a simulated batch policy. Where a prompt takes many, a batch changes as
    slowly, and decisions each second would take most of a trial's time.
    """
    return max(1, int(PER_PROMPT * alone_s(engine, load.shape, engine.step_limits[0])))


def _slos(promise: Promise) -> dict[RequestClass, Slo]:
    return dict.fromkeys(RequestClass, Slo(promise.ttft_p99_s, promise.policy_itl_s))


def try_out(
    engine: Engine,
    operation: Operation,
    load: Load,
    promise: Promise,
    replicas: int,
    *,
    seed: int = 1,
    fast: FastFactory | None = None,
) -> TrialFigures:
    """Simulate a load on a number of replicas.

    Args:
        engine: of each replica.
        operation: the limits of each replica.
        load: of all replicas.
        promise: the SLO that attainment is counted against.
        replicas: how many. Of more than a few, some stand for all with their part of the load.
        seed: of the random draws.
        fast: moves the batch limits below the operation's; None keeps them there.
    """
    lanes = replicas * engine.lanes
    some = min(lanes, MOST_REPLICAS if LIFETIMES * operation.batch * MOST_REPLICAS <= MANY_REQUESTS else 1)
    share = some / lanes
    lull_s = max(LULL_S, LIFETIMES * operation.batch / operation.rate)
    trace, left_out_s = without_lulls(load.slice(share, _count(operation, load, some, share), seed), lull_s)
    setup = setup_of(engine, operation, load, promise, some, seed=seed)
    # A batch of one leaves a policy nothing to decide.
    moves = fast if operation.batch > 1 else None
    run = Simulation(trace, setup, fast=moves, times=times_of(engine, operation, load, replicas)).run()
    return _seen(run, engine, promise, lanes / some, left_out_s)


def without_lulls(trace: Sequence[TraceRequest], most_s: float) -> tuple[list[TraceRequest], float]:
    """Let each request come at most `most_s` after the one before. Return the requests and the seconds left out."""
    shorter, left_out_s, before_s = [], 0.0, 0.0
    for each in trace:
        left_out_s += max(0.0, each.arrival_s - before_s - most_s)
        before_s = each.arrival_s
        shorter.append(replace(each, arrival_s=each.arrival_s - left_out_s))
    return shorter, left_out_s


def _count(operation: Operation, load: Load, some: int, share: float) -> int:
    """Return the requests that a trial needs to show the effect of a number of replicas."""
    # By Little's law a full batch is what comes within a lifetime, at the rate that replicas can serve.
    rate = share * load.rate * (PEAK if load.trace else 1.0)
    there = min(float(operation.batch * some), rate * operation.batch / operation.rate)
    return max(LEAST_REQUESTS, math.ceil(LIFETIMES * there))


def setup_of(
    engine: Engine, operation: Operation, load: Load, promise: Promise, replicas: int, *, seed: int = 1
) -> Setup:
    """Return the setup of a simulated cluster with this number of replicas."""
    return Setup(
        engine=SimSettings(
            max_num_seqs=operation.batch,
            max_num_batched_tokens=max(operation.step_tokens, operation.batch),
            kv_tokens=engine.kv_tokens,
            max_model_len=max(16, min(engine.context, engine.kv_tokens)),
        ),
        replicas=replicas,
        min_replicas=replicas,
        max_replicas=replicas,
        limits=QueueLimits(),
        expected_output_tokens=max(1, round(load.shape.output_tokens)),
        slo=Slo(promise.ttft_p99_s, promise.policy_itl_s),
        prefix_cache=load.shares_prefixes,
        seed=seed,
    )


def ttft_of(each: Outcome, engine: Engine) -> float:
    """Return a simulated request's TTFT plus what the simulator leaves out: the way to the replica and back, and the
    steps prepared in advance.
    """
    first, steps = engine.steps.first, engine.steps
    around = engine.overhead_s + engine.overhead_steps * each.itl_mean_s
    own = steps.prompt_work_s(max(0, each.prompt_tokens - each.cached_tokens))
    # What is known of a first token is about one that waits for nobody.
    alone = around + each.itl_mean_s + first.prefill * own
    return each.ttft_s + around + (first.prefill - 1) * own + (first.scale - 1) * alone


def attains(each: Outcome, engine: Engine, promise: Promise) -> bool:
    """Return whether a simulated request kept the promise."""
    in_time = each.end is RequestEnd.COMPLETED and ttft_of(each, engine) <= promise.ttft_p99_s
    return in_time and each.itl_p95_s <= promise.itl_p95_s and each.itl_mean_s <= promise.tpot_s


def _seen(run: SimulatedRun, engine: Engine, promise: Promise, factor: float, left_out_s: float) -> TrialFigures:
    outcomes = run.outcomes
    lifetimes = [each.e2e_s for each in outcomes if each.end is RequestEnd.COMPLETED]
    # The first requests meet replicas that are still filling.
    last = max(each.arrival_s for each in outcomes)
    begin = min(0.2 * last, fmean(lifetimes) if lifetimes else 0.0)
    counted = [each for each in outcomes if each.arrival_s >= begin]
    done = [each for each in counted if each.end is RequestEnd.COMPLETED]
    if not done:
        return TrialFigures(float("inf"), float("inf"), float("inf"), float("inf"), 0.0, 0.0)
    ttft = [ttft_of(each, engine) for each in done]
    gaps = [each for each in done if each.output_tokens > 1]
    span = left_out_s + max(last - begin, max(each.arrival_s + each.e2e_s for each in done) - last, 1e-9)
    tokens = sum(each.output_tokens for each in done)
    return TrialFigures(
        fmean(ttft),
        float(np.percentile(ttft, 99)),
        sum([each.itl_mean_s * each.output_tokens for each in gaps]) / max(1, sum(each.output_tokens for each in gaps)),
        figures_of(run, _slos(promise)).itl_s.p95 or 0.0,
        factor * tokens / span,
        sum(attains(each, engine, promise) for each in counted) / len(counted),
    )


def ranges(
    engine: Engine,
    operation: Operation,
    load: Load,
    promise: Promise,
    replicas: int,
    *,
    draws: int,
    seed: int = 1,
) -> Ranges:
    """Simulate production's batch policy with step times drawn from their likely values. Each draw has its own
    arrivals.
    """
    rnd = random.Random(seed)
    trials = []
    for number, quantile in enumerate(_quantiles(draws)):
        drawn = engine.at(quantile)
        # Terms err together for the most part, and a little each for itself.
        a, b, g = (math.exp(rnd.gauss(0.0, OWN * DEVIATION * engine.error)) for _ in range(3))
        drawn = drawn.scaled(a, b, g)
        fast = production(drawn, load, promise)
        trials.append(try_out(drawn, operation, load, promise, replicas, seed=seed + number, fast=fast))
    return Ranges.of(trials)


def _quantiles(draws: int) -> list[float]:
    """Return places in the distribution of the engine's speed: the ends of the range, and as many between as there are
    draws for.
    """
    low, high = RANGE
    if draws == 1:
        return [0.5]
    return [low + (high - low) * number / (draws - 1) for number in range(draws)]
