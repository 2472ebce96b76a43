"""The competing policies, each with its one dial, and one run of one of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cluster.autoscaler.ahead.foresight import REFERENCE, Foresight
from cluster.control.replica_rules import SlowRules
from cluster.control.settings import ControlMode
from cluster.forecast.pool_forecast import PoolForecast
from cluster.standby.rule import StandbyLimits
from loadtest.benchmarks.autoscaler.courses import Course, record_of
from loadtest.benchmarks.autoscaler.oracle import ReplicaSchedule, plan
from loadtest.benchmarks.autoscaler.scenarios import PEAK_REPLICAS, Case, ContestScenario, true_model, work_of
from loadtest.simulate.autoscalers.baselines import Hpa, HpaMetric, RayServe
from loadtest.simulate.autoscalers.contract import FastPolicy, SlowPolicy
from loadtest.simulate.autoscalers.imitations import Dynamo, Wva
from loadtest.simulate.autoscalers.penstock import (
    PenstockFast,
    PenstockLearner,
    PenstockSlow,
    PoolFit,
    model_of,
    penstock_slow,
)
from loadtest.simulate.pool.outcome import Outcomes, RequestEnd
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from penstock.models import RequestClass

STATIC, ORACLE, NOWCAST = "static", "oracle", "nowcast"
SAME_HOURS = "static, same hours"
"""Number of replicas that costs what Penstock did on the same draw. Between two numbers it is that mixture of both runs
which has the same hours."""
PRESENT = "penstock present"
"""Penstock without the record of what came before."""
TUNED = "penstock tuned"
"""Penstock with a dial of its own, as the other policies have."""
STANDBYS = ((1.0, 0), (0.3, 0), (0.1, 0), (0.1, 4))
"""Price of standbys, and the fewest of them."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One competing policy. Dials go from the cheapest setting to the most generous."""

    name: str
    dials: tuple[float, ...] = ()
    """Settings to choose from; empty if there is nothing to tune."""
    slow: Callable[[Case, float], SlowPolicy | None] = lambda _case, _dial: None
    fast: bool = False
    model: bool = False
    """Whether it gets a step model."""
    waits: bool = True
    """Whether it starts replicas, so that the cold start matters."""
    on_request: bool = False
    """Whether it runs only if it is named."""
    standby_price: float | None = None
    """Price of its standbys, as part of that of a replica; None for none. Hours in which one sleeps count by it."""
    standby_least: int = 0

    def sees(self, scenario: ContestScenario) -> tuple[object, ...]:
        """Return everything that its runs depend on. Where this is equal, the runs are equal."""
        return (
            scenario.load,
            scenario.engine,
            scenario.slo,
            scenario.deaths,
            scenario.batch_part,
            scenario.cold_start_s if self.waits or scenario.deaths else None,
            scenario.model_error if self.model else None,
        )


def _hpa(metric: HpaMetric) -> Callable[[Case, float], SlowPolicy]:
    return lambda _, dial: Hpa(metric, dial)


def _model(case: Case) -> Dynamo:
    model = model_of(case.setup, case.scenario.model_error)
    engine = case.setup.engine
    return Dynamo(model, float(engine.max_num_seqs), step_tokens=engine.max_num_batched_tokens)


def _present(case: Case, dial: float) -> PenstockSlow:
    rules = SlowRules(fill=dial) if dial else None
    return penstock_slow(case.setup, case.point, error=case.scenario.model_error, rules=rules)


def _penstock(case: Case, dial: float) -> SlowPolicy:
    """Make the policy with the record of what came before, where that is known."""
    policy, course = _present(case, dial), case.course
    if course is not None:
        policy.foresight = Foresight(case.scenario.name, ControlMode.ACTIVE, forecast=_record(case, course))
        policy.began_at = course.at - case.span.lead_s
    return policy


def _record(case: Case, course: Course) -> PoolForecast:
    """Return the record of the time before a load, at the load's own scale."""
    span, engine = case.span, case.setup.engine
    unit = true_model(engine).gpu_seconds(REFERENCE, float(engine.max_num_seqs), engine.max_num_batched_tokens)
    works = [work_of(each, engine) / unit for each in case.trace]
    moments = range(-int(span.lead_s), int(span.seconds))
    expected = statistics.fmean(course.rate(float(moment)) for moment in moments)
    per_rate = sum(works) / span.whole_s / expected
    return record_of(course, per_rate, statistics.fmean(works), case.setup.cold_start_s, case.seed)


def _oracle(prompts_first: bool) -> Policy:
    dials = (1.3, 1.25, 1.2, 1.15, 1.1, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
    return Policy(ORACLE, dials, lambda case, dial: plan(case, dial, prompts_first=prompts_first))


def _nowcast(prompts_first: bool) -> Policy:
    dials = (1.05, 1.0, 0.95, 0.92, 0.89, 0.86, 0.83, 0.8, 0.77, 0.74, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3)
    return Policy(
        NOWCAST,
        dials,
        lambda case, dial: plan(case, dial, prompts_first=prompts_first, foresight=False),
        on_request=True,
    )


ORACLES = (_oracle(False), _oracle(True))
"""Families of the oracle's plans. The cheapest plan counts."""
NOWCASTS = (_nowcast(False), _nowcast(True))
"""Families of the nowcast's plans. The one that is cheaper over all draws counts, because it does not know its draw."""
_FILLS = (0.95, 0.85, 0.75, 0.68, 0.62, 0.56, 0.5, 0.45, 0.4, 0.35, 0.3)
"""Values of a pool's `autoscale.fill`, which the other policies leave at its default."""
_COUNTS = tuple(float(n) for n in range(12, 34, 2))
POLICIES: Mapping[str, Policy] = {
    each.name: each
    for each in (
        ORACLES[0],
        NOWCASTS[0],
        Policy(STATIC, _COUNTS, waits=False),
        Policy(SAME_HOURS, waits=True, fast=True, model=True, on_request=True),
        Policy("hpa queue", (32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25), _hpa(HpaMetric.QUEUE)),
        Policy("hpa kv", (0.6, 0.52, 0.46, 0.4, 0.35, 0.3, 0.25, 0.2), _hpa(HpaMetric.KV)),
        Policy("hpa slots", (1.0, 0.92, 0.86, 0.8, 0.74, 0.68, 0.6, 0.5, 0.4, 0.3, 0.2), _hpa(HpaMetric.SLOTS)),
        Policy("ray", (), lambda _, __: RayServe()),
        Policy(
            "ray tuned",
            (32.0, 26.0, 20.0, 16.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 5.0),
            lambda _, dial: RayServe(dial),
        ),
        Policy(
            "dynamo-like",
            (1.1, 1.0, 0.92, 0.84, 0.76, 0.68, 0.58, 0.48),
            lambda case, dial: replace(_model(case), target=dial),
            model=True,
        ),
        Policy("wva-like", (0.8, 0.7, 0.6, 0.5, 0.42, 0.35, 0.28, 0.2), lambda _, dial: Wva(dial)),
        Policy("penstock-fast", _COUNTS, fast=True, model=True, waits=False),
        Policy("penstock-slow", (), _penstock, model=True),
        Policy("penstock", (), _penstock, fast=True, model=True),
        Policy(PRESENT, (), _present, fast=True, model=True, on_request=True),
        Policy(TUNED, _FILLS, _penstock, fast=True, model=True),
        *(
            Policy(
                f"standby {price:g}" + (f", {least} at least" if least else ""),
                (),
                _penstock,
                fast=True,
                model=True,
                on_request=True,
                standby_price=price,
                standby_least=least,
            )
            for price, least in STANDBYS
        ),
    )
}
"""All policies. The oracle comes first, because the others are measured by it."""
FIRST_FILL = 0.9
COUNTED = (STATIC, "penstock-fast")
"""Policies whose dial is a number of replicas."""


@dataclass(frozen=True, slots=True)
class ContestResult:
    """Outcome of one run."""

    scenario: str
    policy: str
    seed: int
    dial: float
    attainment: float
    gpu_hours: float
    reversals: int
    worst_5min_attainment: float
    batch_tokens: int
    """Output tokens of completed requests of class BATCH."""
    cpu_s: float


def _fast(case: Case, policy: Policy, slow: SlowPolicy | None) -> Callable[[], FastPolicy] | None:
    """Make the host of the replicas' side. It corrects a wrong model from measured steps, as production does.

    The right model has nothing to learn.
    """
    model = model_of(case.setup, case.scenario.model_error)
    fit = PoolFit(model) if case.scenario.model_error else None
    if isinstance(slow, PenstockSlow):
        slow.fit, slow.fast = fit, policy.fast
    if policy.fast:
        # The engine is 25 times as slow as the engines that the loop's times are meant for.
        return lambda: PenstockFast(case.point, model, window_s=120.0, most_steps=40, every=1, fit=fit)
    if isinstance(slow, PenstockSlow) and fit is not None:
        return lambda: PenstockLearner(fit)
    return None


def same_hours(case: Case) -> ContestResult:
    """Let fixed numbers serve a load at the cost of Penstock's own run on it."""
    ours = contend(case, POLICIES["penstock"], 0.0)
    count = ours.gpu_hours / (case.span.seconds / 3600)
    few = math.floor(count + 1e-6)
    less = contend(case, POLICIES[STATIC], few)
    if count - few < 1e-6:
        return replace(less, policy=SAME_HOURS, dial=count)
    more = contend(case, POLICIES[STATIC], few + 1)
    part = count - few

    def mixed(one: float, other: float) -> float:
        return one + part * (other - one)

    return replace(
        less,
        policy=SAME_HOURS,
        dial=count,
        attainment=mixed(less.attainment, more.attainment),
        gpu_hours=mixed(less.gpu_hours, more.gpu_hours),
        worst_5min_attainment=min(less.worst_5min_attainment, more.worst_5min_attainment),
        batch_tokens=round(mixed(less.batch_tokens, more.batch_tokens)),
        cpu_s=ours.cpu_s + less.cpu_s + more.cpu_s,
    )


def contend(case: Case, policy: Policy, dial: float) -> ContestResult:
    """Let a policy serve a load. The time before the counted one lets each policy settle."""
    # Each policy begins with the number of replicas needed then.
    price = 1.0
    if policy.standby_price is not None:
        price = policy.standby_price
        limits = StandbyLimits(policy.standby_least, PEAK_REPLICAS, price)
        case = replace(case, setup=replace(case.setup, standby=limits))
    setup = replace(case.setup, replicas=plan(case, FIRST_FILL).counts[0])
    slow = policy.slow(case, dial)
    if policy.name in COUNTED:
        setup = replace(setup, replicas=int(dial), min_replicas=int(dial))
    if isinstance(slow, ReplicaSchedule):
        setup = replace(setup, replicas=slow.counts[0])
    run = Simulation(case.trace, setup, fast=_fast(case, policy, slow), slow=slow).run()
    span = case.span
    counted = [each for each in run.outcomes if span.counts(each.arrival_s)]
    promised = replace(run, outcomes=Outcomes(each for each in counted if each.request_class is not RequestClass.BATCH))
    figures = figures_of(promised, dict.fromkeys(RequestClass, case.scenario.slo))
    return ContestResult(
        case.scenario.name,
        policy.name,
        case.seed,
        dial,
        figures.attainment,
        run.fleet.hours(span.whole_s, span.lead_s) - (1.0 - price) * run.fleet.asleep_hours(span.whole_s, span.lead_s),
        run.fleet.reversals(run.replicas_at_first, span.whole_s, span.lead_s),
        figures.worst_5min_attainment,
        sum(
            each.output_tokens
            for each in counted
            if each.request_class is RequestClass.BATCH and each.end is RequestEnd.COMPLETED
        ),
        run.cpu_s,
    )
