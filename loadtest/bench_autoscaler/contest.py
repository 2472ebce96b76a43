"""Who competes, with which one dial, and one run of one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cluster.models import RequestClass
from loadtest.bench_autoscaler.oracle import plan
from loadtest.bench_autoscaler.scenarios import Case
from loadtest.simulate.baselines import Hpa, HpaMetric, RayServe
from loadtest.simulate.figures import figures_of
from loadtest.simulate.imitations import Dynamo, Wva
from loadtest.simulate.outcome import End
from loadtest.simulate.penstock import PenstockFast, model_of, penstock_slow
from loadtest.simulate.policies import SlowPolicy
from loadtest.simulate.simulation import Simulation

STATIC, ORACLE = "static", "oracle"


@dataclass(frozen=True, slots=True)
class Policy:
    """Is a contestant. Dials go from the cheapest setting to the most generous."""

    name: str
    dials: tuple[float, ...] = ()
    """Settings to choose from; none has nothing to tune."""
    slow: Callable[[Case, float], SlowPolicy | None] = lambda _case, _dial: None
    fast: bool = False


def _hpa(metric: HpaMetric) -> Callable[[Case, float], SlowPolicy]:
    return lambda _, dial: Hpa(metric, dial)


def _model(case: Case) -> Dynamo:
    model = model_of(case.setup, case.scenario.model_error)
    return Dynamo(model, float(case.setup.engine.max_num_seqs))


def _penstock(case: Case, _: float) -> SlowPolicy:
    return penstock_slow(case.setup, case.point, error=case.scenario.model_error)


POLICIES: Mapping[str, Policy] = {
    each.name: each
    for each in (
        Policy(ORACLE, (1.15, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6), lambda case, dial: plan(case, dial)),
        Policy(STATIC, tuple(float(n) for n in range(12, 34))),
        Policy("hpa queue", (32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25), _hpa(HpaMetric.QUEUE)),
        Policy("hpa kv", tuple(p / 100 for p in range(60, 10, -4)), _hpa(HpaMetric.KV)),
        Policy("hpa slots", tuple(p / 100 for p in range(110, 35, -6)), _hpa(HpaMetric.SLOTS)),
        Policy("ray", (), lambda _, __: RayServe()),
        Policy("ray tuned", (14.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0), lambda _, dial: RayServe(dial)),
        Policy(
            "dynamo-like",
            tuple(p / 100 for p in range(120, 35, -8)),
            lambda case, dial: replace(_model(case), target=dial),
        ),
        Policy("wva-like", tuple(p / 100 for p in range(80, 14, -6)), lambda _, dial: Wva(dial)),
        Policy("penstock-fast", tuple(float(n) for n in range(12, 34)), fast=True),
        Policy("penstock-slow", (), _penstock),
        Policy("penstock", (), _penstock, fast=True),
    )
}
"""The oracle comes first: others are measured by it."""
COUNTED = (STATIC, "penstock-fast")
"""Their dial is a number of replicas."""


@dataclass(frozen=True, slots=True)
class Result:
    """Is one run's outcome."""

    scenario: str
    policy: str
    seed: int
    dial: float
    attainment: float
    gpu_hours: float
    reversals: int
    worst_5min_attainment: float
    batch_tokens: int
    """Output of class BATCH that was completed."""
    cpu_s: float


def contend(case: Case, policy: Policy, dial: float) -> Result:
    """Let a policy serve a load."""
    setup = case.setup
    slow = policy.slow(case, dial)
    if policy.name in COUNTED:
        setup = replace(setup, replicas=int(dial), min_replicas=int(dial))
    if policy.name == ORACLE:
        setup = replace(setup, replicas=plan(case, dial).counts[0])
    fast = None
    if policy.fast:
        model = model_of(setup, case.scenario.model_error)
        # The engine is 25 times as slow as the one that the loop's times are meant for.
        fast = lambda: PenstockFast(case.point, model, window_s=120.0, most_steps=40, every=10)  # noqa: E731
    run = Simulation(case.trace, setup, fast=fast, slow=slow).run()
    promised = replace(run, outcomes=[each for each in run.outcomes if each.request_class is not RequestClass.BATCH])
    figures = figures_of(promised, dict.fromkeys(RequestClass, case.scenario.slo))
    return Result(
        case.scenario.name,
        policy.name,
        case.seed,
        dial,
        figures.attainment,
        figures.replica_hours,
        figures.reversals,
        figures.worst_5min_attainment,
        sum(
            each.output_tokens
            for each in run.outcomes
            if each.request_class is RequestClass.BATCH and each.end is End.COMPLETED
        ),
        run.cpu_s,
    )
