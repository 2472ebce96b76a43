"""Plans of prompts near the context: what is drawn fits, and many steps are one."""

from __future__ import annotations

import random

import pytest

from deployments.engines.sim import Parts
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.engine.prior import prior
from loadtest.plan.option import Operation, Promise, operate
from loadtest.plan.search import engines
from loadtest.plan.traffic import steady_load
from loadtest.plan.trial import EngineTimes, production, try_out
from loadtest.simulate.engine.steps import StepTimes


def test_no_drawn_request_is_longer_than_the_context() -> None:
    """Servers refuse longer ones. One in a hundred that is refused would break any promise of 99 %."""
    load = steady_load(0.1, 120_000, 800).within(131_072)
    lengths = [each.prompt_tokens + each.output_tokens for each in load.slice(1.0, 2000, seed=3)]
    assert 131_072 >= max(lengths) > 129_000
    assert pytest.approx(120_800, rel=0.01) == sum(lengths) / len(lengths)


def test_lengths_far_from_the_context_are_drawn_as_without_it() -> None:
    load = steady_load(1.0, 1000, 250)
    assert load.slice(1.0, 500, seed=1) == load.within(131_072).slice(1.0, 500, seed=1)


def test_lengths_without_a_spread_need_no_second_draw() -> None:
    load = steady_load(1.0, 1000, 250, 0.0).within(1200)
    assert [1000] * 5 == [each.prompt_tokens for each in load.slice(1.0, 5, seed=1)]


def test_prompts_near_the_context_can_be_promised_in_time() -> None:
    shape = load_shape("llama-3.1-70b")
    load, promise = steady_load(0.1, 120_000, 800).within(shape.context), Promise(60.0, 0.1)
    (engine,), _ = engines(shape, [load_gpu("h100")], ["fp8"], prices={}, parallel=[8], length=load.shape.peak_tokens)
    operation = operate(engine, load, promise)
    assert isinstance(operation, Operation)
    seen = try_out(engine, operation, load, promise, 4, fast=production(engine, load, promise))
    assert seen.attainment >= 0.99


@pytest.mark.parametrize(
    ("model", "precision", "ranks"), [("llama-3.1-70b", "fp8", 4), ("minimax-m2", "fp8", 4), ("kimi-k2.5", "int4", 8)]
)
def test_parts_of_a_prompt_take_as_long_at_once_as_one_by_one_to_the_last_bit(
    model: str, precision: str, ranks: int
) -> None:
    engine, rnd = prior(load_shape(model), load_gpu("h100"), ranks, precision), random.Random(1)
    times = EngineTimes(engine.steps.a, engine.steps.b, engine.steps.g, engine)
    for _ in range(50):
        sequences, kv_tokens = rnd.randint(0, 200), rnd.randint(0, 1_000_000)
        parts = Parts(rnd.randint(1, 256), rnd.randint(1, 8192), rnd.randint(0, 120_000))
        assert StepTimes.fill(times, sequences, kv_tokens, parts) == times.fill(sequences, kv_tokens, parts)
