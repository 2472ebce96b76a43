"""What follows from the step model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.control.step_model import Experts, Shape, StepModel

MODEL = StepModel(a=0.0177, b=89.7e-6, g=0.083e-6)
"""Llama 8B on an RTX 4090, as fitted to a real vLLM run."""
SHAPE = Shape(prompt_tokens=1000, output_tokens=500, cached_tokens=200)

models = st.builds(
    StepModel, a=st.floats(0, 0.1), b=st.floats(1e-7, 1e-3), g=st.floats(0, 1e-6), m=st.sampled_from([0.0, 0.03]),
    experts=st.sampled_from([None, Experts(64, 6)]),
)  # fmt: skip


def test_itl_is_the_published_formula() -> None:
    batch, prompt, output, cached = 32, 1000, 500, 200
    expected = MODEL.a + MODEL.b * batch * (1 + (prompt - cached) / output) + MODEL.g * batch * (prompt + output / 2)

    assert pytest.approx(expected) == MODEL.itl(batch, SHAPE.mix)


def test_gpu_seconds_are_the_published_formula() -> None:
    batch, prompt, output, cached = 32, 1000, 500, 200
    expected = (
        output * MODEL.a / batch + MODEL.b * (prompt - cached + output) + MODEL.g * (output * prompt + output**2 / 2)
    )

    assert pytest.approx(expected) == MODEL.gpu_seconds(SHAPE, batch)
    assert pytest.approx(1.0) == MODEL.rate(batch, SHAPE) * MODEL.gpu_seconds(SHAPE, batch)


@pytest.mark.parametrize("output", [1, 30, 500])
def test_no_step_computes_more_than_its_budget(output: int) -> None:
    """One that is full takes as long with any batch, and its tokens are all that gets done."""
    shape, budget = Shape(prompt_tokens=4_000, output_tokens=output), 512
    full = MODEL.gpu_seconds(shape, 256.0, budget)

    tokens = shape.prompt_tokens + output
    step_s = tokens * MODEL.predict(budget, budget / shape.mix.tokens * shape.mix.kv_tokens) / budget
    assert pytest.approx(step_s) == full == MODEL.gpu_seconds(shape, 128.0, budget)
    assert full > 1.1 * MODEL.gpu_seconds(shape, 256.0)
    # Where prompts leave room nothing changes.
    assert MODEL.gpu_seconds(SHAPE, 8.0, budget) == MODEL.gpu_seconds(SHAPE, 8.0)


@given(model=models, itl=st.floats(1e-4, 1.0), spread=st.floats(1, 3))
def test_the_batch_for_an_itl_has_that_itl(model: StepModel, itl: float, spread: float) -> None:
    batch = model.batch_for_itl(itl, SHAPE.mix, spread)

    if batch == 0:
        assert model.itl(0, SHAPE.mix) >= itl / spread * (1 - 1e-9)
    elif batch < 1e6:
        assert pytest.approx(itl / spread, rel=1e-3) == model.itl(batch, SHAPE.mix)


@given(model=models, one=st.floats(1e-4, 1.0), other=st.floats(1e-4, 1.0))
def test_a_looser_slo_never_allows_less(model: StepModel, one: float, other: float) -> None:
    low, high = sorted((one, other))

    assert model.batch_for_itl(low, SHAPE.mix) <= model.batch_for_itl(high, SHAPE.mix) * (1 + 1e-9)


def test_an_itl_below_the_constant_is_out_of_reach() -> None:
    assert 0 == MODEL.batch_for_itl(MODEL.a / 2, SHAPE.mix)
    assert float("inf") == StepModel(0.01, 0, 0).batch_for_itl(0.02, SHAPE.mix)
