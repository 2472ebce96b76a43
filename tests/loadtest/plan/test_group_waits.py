"""Groups that share experts step together: each waits for the prompts of the others, on paper and in a simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cluster.control.step_model import Shape
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.engine.steady import GroupWaits, itl_of, waits_of
from loadtest.plan.option import Engine, Layout, Operation, Promise, itl_p95, operate
from loadtest.plan.search import engines
from loadtest.plan.traffic import steady_load
from loadtest.plan.trial import EngineTimes, times_of, try_out


def spread(groups: int, gpu: str = "b200") -> Engine:
    """DeepSeek-V3 with attention by group."""
    (found,), _ = engines(
        load_shape("deepseek-v3"), [load_gpu(gpu)], ["fp8"], prices={}, parallel=[1], layouts=[Layout(data=groups)]
    )
    return found


def test_a_step_is_as_long_as_its_own_length_says() -> None:
    waits = GroupWaits(parts_per_s=20.0, part_s=0.015)
    found = waits.longer(0.03)
    assert 0.03 + 0.015 * (1 - math.exp(-20.0 * found)) == pytest.approx(found, rel=1e-4)
    assert 0.03 < found < 0.045


def test_without_prompts_nobody_waits_and_with_many_each_step_has_one() -> None:
    assert 0.03 == GroupWaits(0.0, 0.015).longer(0.03)
    assert 0.045 == pytest.approx(GroupWaits(1e6, 0.015).longer(0.03))


def test_an_engine_without_groups_waits_for_none() -> None:
    (alone,), _ = engines(
        load_shape("deepseek-v3"), [load_gpu("b200")], ["fp8"], prices={}, parallel=[8], layouts=[Layout()]
    )
    assert waits_of(alone.steps, 16, Shape(2000, 800), 512, 1.0) is None


@pytest.mark.parametrize(("gpu", "groups", "rate"), [("h100", 16, 0.5), ("b200", 8, 5.0)])
def test_a_simulated_group_is_as_slow_as_on_paper(gpu: str, groups: int, rate: float) -> None:
    """It took 31 to 40 % less when each group ran as if it were alone."""
    engine, load, promise = spread(groups, gpu), steady_load(rate, 2000, 800), Promise(15.0, math.inf, 0.99, 0.2)
    operation = operate(engine.at(0.9), load, promise)
    assert isinstance(operation, Operation)
    # By Little's law a group has its requests of a lifetime under way.
    batch = 1.0
    for _ in range(50):
        lifetime = 800 * itl_of(engine.steps, batch, load.shape, operation.step_tokens)
        batch = load.rate / groups * lifetime
    seen = try_out(engine, operation, load, promise, 1)
    assert itl_of(engine.steps, batch, load.shape, operation.step_tokens) == pytest.approx(seen.itl_mean_s, rel=0.2)


def test_runs_of_steps_wait_as_single_ones_do() -> None:
    engine, load = spread(8), steady_load(5.0, 2000, 800)
    operation = operate(engine, load, Promise(15.0, math.inf, 0.99, 0.2))
    assert isinstance(operation, Operation)
    times = times_of(engine, operation, load, 1)
    assert isinstance(times, EngineTimes)
    assert times.waits is not None
    single = [times.with_prompts(4, 0, 4, kv, kv) for kv in (1004, 1008, 1012)]
    assert single == pytest.approx(times.run(4, 1000, 3), rel=1e-12)
    assert single[0] > replace(times, waits=None).one(4, 1004)


def test_gaps_are_those_of_prompts_of_any_group() -> None:
    """A prompt in one step of a hundred of a group is one in eight of those of all."""
    steps, shape, batch = spread(8).steps, Shape(400, 800), 8
    decode = steps.step(batch, batch, batch * shape.mix.kv_tokens)
    assert decode < itl_p95(steps, batch, shape, 512)
    lone = replace(steps, roofline=replace(steps.roofline, groups=1)) if steps.roofline else steps
    assert lone.step(batch, batch, batch * shape.mix.kv_tokens) == itl_p95(lone, batch, shape, 512)
