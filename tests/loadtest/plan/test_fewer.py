"""How near a plan is to one replica less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.control.step_model import StepModel
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.engine.prior import StepPrior
from loadtest.plan.fewer import LEVELS, MOST, confidence_with
from loadtest.plan.option import Engine, Layout, Operation, Promise, operate, rate_of
from loadtest.plan.report import Plan, notes
from loadtest.plan.search import engines, plan
from loadtest.plan.traffic import steady_load
from loadtest.plan.trial import production, try_out

PROMISE = Promise(1.0, 0.08)
ENGINE = Engine(
    model="toy",
    gpu="card",
    tensor_parallel=1,
    precision="bf16",
    steps=StepPrior(StepModel(0.02, 2e-4, 1e-8), 0.0),
    error=0.25,
    source="prior",
    kv_tokens=20_000,
    step_limits=(2048, 16),
    context=4096,
)


def operation_of(engine: Engine, rate: float) -> Operation:
    found = operate(engine.careful, steady_load(rate, 100, 20, 0.2), PROMISE)
    assert isinstance(found, Operation)
    return found


@pytest.mark.slow
def test_the_confidence_is_that_of_the_slowest_engine_that_one_replica_less_serves() -> None:
    operation = operation_of(ENGINE, 1.0)
    most = rate_of(ENGINE.steps, operation.batch, steady_load(1.0, 100, 20).shape, operation.step_tokens)
    load = steady_load(0.85 * most, 100, 20, 0.2)

    def serves(level: float) -> bool:
        slow = ENGINE.at(level)
        fast = production(slow, load, PROMISE)
        kept = try_out(slow, operation, load, PROMISE, 1, fast=fast).attainment >= PROMISE.attainment
        return kept and load.rate <= rate_of(slow.steps, operation.batch, load.shape, operation.step_tokens)

    found = confidence_with(1, ENGINE, operation, load, PROMISE)
    assert [level <= found for level in LEVELS] == [serves(level) for level in LEVELS]
    assert LEVELS[0] <= found < PROMISE.confidence


def test_a_rate_that_no_likely_engine_serves_has_no_confidence() -> None:
    operation = operation_of(ENGINE, 1.0)
    assert 0.0 == confidence_with(1, ENGINE, operation, steady_load(10 * operation.rate, 100, 20, 0.2), PROMISE)


@pytest.mark.slow
def test_a_plan_tells_how_near_it_is_to_one_replica_less() -> None:
    load = steady_load(1.3 * operation_of(ENGINE, 1.0).rate, 100, 20, 0.2)
    (best,), rest, lost = plan([ENGINE], load, PROMISE, draws=1)
    assert best.holds
    assert 2 == best.candidate.replicas
    assert best.with_one_less is not None
    told = Plan("toy", load, PROMISE, [best], rest, lost, [])
    assert best.with_one_less == told.as_json()["candidates"][0]["confidence_with_one_less"]
    (said,) = (text for text in notes(told) if "would be enough" in text)
    assert said.startswith("1 replica of 1 x card, bf16 would be enough with a confidence ")
    many = replace(best, with_one_less=0.6)
    assert any(
        "a confidence of 60 %, where 90 % were asked for" in text for text in notes(replace(told, planned=[many]))
    )
    assert not any("ends with the slowest" in text for text in notes(told))
    groups = replace(best, candidate=replace(best.candidate, engine=replace(best.engine, layout=Layout(data=8))))
    assert any("ends with the slowest" in text for text in notes(replace(told, planned=[groups])))


@pytest.mark.slow
def test_one_replica_has_none_less_and_many_are_not_looked_at() -> None:
    (one,), _, _ = plan([ENGINE], steady_load(0.5, 100, 20, 0.2), PROMISE, draws=1)
    assert (1, None) == (one.candidate.replicas, one.with_one_less)
    load = steady_load((MOST + 3) * operation_of(ENGINE, 1.0).rate, 100, 20, 0.2)
    (many,), _, _ = plan([ENGINE], load, PROMISE, draws=1)
    assert many.candidate.replicas > MOST
    assert many.with_one_less is None


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "tokens_per_s"), [("h100", 5103), ("l40s", 1207)])
def test_the_load_of_a_submission_of_one_is_near_one(gpu: str, tokens_per_s: float) -> None:
    """MLPerf, Llama-3.1-8B: the most that one accelerator held, which the prior takes to be near what it can."""
    load, promise = steady_load(tokens_per_s / 73, 778, 73), Promise(2.0, float("inf"), 0.99, 0.1)
    options, _ = engines(
        load_shape("llama-3.1-8b"), [load_gpu(gpu)], ["fp8"], prices={}, parallel=[1], length=851, layouts=[Layout()]
    )
    (best,), _, _ = plan(options, load, promise, draws=1)
    assert (2, True) == (best.candidate.replicas, best.holds)
    assert best.with_one_less is not None
    assert 0.2 <= best.with_one_less < 0.9
