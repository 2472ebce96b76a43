"""The online fit of the step model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.control.step_fit import FitRules, FittedStep, GroupKey, StepFit
from cluster.control.step_model import Experts, StepModel, StepSample

TRUE = StepModel(a=0.013, b=45e-6, g=0.08e-6)
"""About an 8B model on one large GPU."""


def steps(
    model: StepModel, count: int, *, seed: int = 0, noise: float = 0.03, outliers: float = 0.0
) -> Iterator[StepSample]:
    """Make steps of a changing batch, some with a piece of a prompt, some disturbed."""
    draw = random.Random(seed)
    for _ in range(count):
        sequences = draw.randint(1, 64)
        tokens = sequences + (draw.randint(100, 2000) if draw.random() < 0.3 else 0)
        kv = sequences * draw.randint(200, 3000)
        seconds = model.predict(tokens, kv) * draw.lognormvariate(0, noise)
        if draw.random() < outliers:
            seconds *= draw.uniform(5, 50)
        yield StepSample(seconds, tokens, kv, sequences)


def worst_error(fit: StepFit, model: StepModel = TRUE) -> float:
    """Compare predictions with the truth over the range of batches that occur."""
    assert fit.model is not None
    points = [(1, 300), (16, 16_000), (64, 100_000), (1064, 30_000), (2048, 60_000)]
    return max(abs(fit.model.predict(*point) / model.predict(*point) - 1) for point in points)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    a=st.floats(1e-3, 0.05), b=st.floats(5e-6, 2e-4), g=st.floats(1e-8, 2e-7), seed=st.integers(0, 1000),
    outliers=st.sampled_from([0.0, 0.05]),
)  # fmt: skip
def test_coefficients_are_found_again_in_noise_and_outliers(
    a: float, b: float, g: float, seed: int, outliers: float
) -> None:
    model = StepModel(a, b, g)
    fit = StepFit()
    fit.learn(steps(model, 600, seed=seed, outliers=outliers))

    assert worst_error(fit, model) < 0.08
    assert fit.healthy


def test_outliers_are_left_out() -> None:
    fit = StepFit()
    fit.learn(steps(TRUE, 1000, outliers=0.05))

    assert 30 <= fit.rejected <= 80
    assert worst_error(fit) < 0.05


def test_an_engine_that_changes_is_followed() -> None:
    """A regime change is no series of outliers."""
    slower = StepModel(TRUE.a * 2, TRUE.b * 2, TRUE.g * 2)
    fit = StepFit()
    fit.learn(steps(TRUE, 500))
    fit.learn(steps(slower, 400, seed=1))

    assert worst_error(fit, slower) < 0.08
    assert fit.healthy


def test_a_steady_batch_keeps_what_was_learned_before() -> None:
    """Equal steps say nothing about single coefficients, so their ratio stays."""
    fit = StepFit()
    fit.learn(steps(TRUE, 500))
    draw = random.Random(5)
    steady = (StepSample(TRUE.predict(32, 32_000) * draw.lognormvariate(0, 0.05), 32, 32_000, 32) for _ in range(5000))
    fit.learn(steady)

    assert fit.condition > 1000
    assert worst_error(fit) < 0.15


def test_no_coefficient_leaves_its_floor() -> None:
    draw = random.Random(2)
    fit = StepFit(rules=FitRules(a_floor=0.004))
    # The longer the context the shorter the step: nonsense, as a busy machine may make it look.
    fit.learn(StepSample(0.02 / (1 + kv / 1e4) * draw.lognormvariate(0, 0.1), 8, kv) for kv in range(0, 20_000, 50))

    assert fit.model is not None
    assert fit.model.a >= 0.004
    assert min(fit.model.b, fit.model.g) >= 0


def test_a_model_that_predicts_badly_says_so_and_recovers() -> None:
    draw = random.Random(3)
    fit = StepFit()
    fit.learn(StepSample(draw.choice([0.001, 0.01, 0.1]), 8, 800) for _ in range(300))

    assert not fit.healthy
    assert fit.trusted is None
    fit.learn(steps(TRUE, 1500))
    assert fit.healthy
    assert fit.median_error is not None
    assert fit.median_error < 0.1


def test_a_stored_fit_seeds_a_new_one() -> None:
    fit = StepFit()
    fit.learn(steps(TRUE, 300))
    key = str(GroupKey("d" * 64, "h200", 2, "vllm-0.32"))
    stored = fit.fitted(key)
    assert stored is not None
    read = FittedStep.from_json(stored.to_json())

    assert stored == read
    seeded = StepFit(read.model)
    assert seeded.healthy
    assert worst_error(seeded) < 0.05


def test_a_prior_that_is_wrong_is_noticed_and_replaced() -> None:
    fit = StepFit(StepModel(TRUE.a * 3, TRUE.b / 3, TRUE.g))
    fit.learn(steps(TRUE, 400))

    assert worst_error(fit) < 0.05


def test_nothing_is_relied_on_before_enough_samples() -> None:
    fit = StepFit()
    fit.learn(steps(TRUE, 20))

    assert fit.trusted is None
    assert fit.fitted("group") is None


def test_the_experts_term_is_learned_where_there_is_one() -> None:
    experts = Experts(total=128, active=8)
    model = StepModel(0.004, 20e-6, 0.05e-6, m=0.02, experts=experts)
    dense, sparse = StepFit(), StepFit(experts=experts)
    samples = list(steps(model, 1500))
    dense.learn(samples)
    sparse.learn(samples)

    assert worst_error(sparse, model) < 0.08
    assert worst_error(dense, model) > 2 * worst_error(sparse, model)


@pytest.mark.parametrize("text", ["{}", "[]", '{"group": "g", "model": {"a": -1, "b": 0, "g": 0}, "samples": 1}'])
def test_nonsense_is_no_stored_fit(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        FittedStep.from_json(text)
