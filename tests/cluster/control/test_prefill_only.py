"""Pools whose work is all prefill: models that embed or classify have no output tokens."""

from __future__ import annotations

import random

import pytest

from cluster.autoscaler.assemble import GroupFacts, assemble
from cluster.autoscaler.meter import Meter
from cluster.autoscaler.router_report import JobWork
from cluster.autoscaler.starts import Starts
from cluster.control.replica_rules import GroupBounds, SlowState
from cluster.control.replica_seconds import best_batch, demand_of
from cluster.control.snapshot import ClassDemand
from cluster.control.step_fit import StepFit
from cluster.control.step_model import Shape, StepSample
from cluster.queue.heartbeats import PoolView
from penstock.models import RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.cluster.control.groups import MODEL, decide, group, long_ago

VECTORS = Shape(prompt_tokens=4_000, output_tokens=0)
POINT = OperatingPoint(standard=ClassSlo(ttft_p99_s=1.0))
BOUNDS = GroupBounds(1, 100)


def arriving(rate: float, **more: object) -> ClassDemand:
    return ClassDemand(RequestClass.STANDARD, rate, VECTORS, **more)  # type: ignore[arg-type]


def test_a_group_asks_for_the_steps_that_its_tokens_fill() -> None:
    demand = demand_of(POINT, group(1, arriving(1.0), step_tokens=8_192))
    assert demand is not None
    # Two groups fill a step of 8,192 tokens, so each pays half of its fixed time.
    tokens = VECTORS.prompt_tokens + 1
    wanted = MODEL.a * tokens / 8_192 + MODEL.b * tokens + MODEL.g * VECTORS.prompt_tokens
    assert pytest.approx(wanted) == demand.work


@pytest.mark.parametrize(("rate", "needed"), [(0.5, 1), (10.0, 3), (40.0, 12)])
def test_replicas_follow_the_rate_of_tokens(rate: float, needed: int) -> None:
    decision = decide(POINT, BOUNDS, group(needed, arriving(rate), step_tokens=8_192), SlowState())
    assert abs(decision.replicas - needed) <= 1


def test_a_pool_gives_replicas_up_when_less_comes() -> None:
    seen = group(8, arriving(0.5), step_tokens=8_192)
    assert decide(POINT, BOUNDS, seen, long_ago(needed=1, work=0.1)).replicas < 8


def test_waiting_groups_count_as_a_backlog() -> None:
    usual = decide(POINT, BOUNDS, group(2, arriving(2.0), step_tokens=8_192), SlowState())
    waits = arriving(2.0, queued=4_000, oldest_wait_s=30.0)
    late = decide(POINT, BOUNDS, group(2, waits, waiting=4_000.0, step_tokens=8_192), SlowState())
    assert late.needed > usual.needed


def test_an_slo_for_the_time_between_tokens_bounds_no_batch() -> None:
    point = OperatingPoint(standard=ClassSlo(ttft_p99_s=1.0, itl_p95_s=0.001))
    assert 256.0 == best_batch(point, group(1, arriving(1.0)), VECTORS)


def test_a_step_model_is_learned_from_prefills_alone() -> None:
    draw, fit = random.Random(3), StepFit()
    for _ in range(600):
        tokens = draw.randint(20, 8_000)
        sequences = max(1, tokens // 40)
        fit.learn([StepSample(MODEL.predict(tokens, tokens) * draw.uniform(0.97, 1.03), tokens, tokens, sequences)])
    assert fit.trusted is not None
    for tokens in (100, 1_000, 4_000, 8_000):
        assert pytest.approx(MODEL.predict(tokens, tokens), rel=0.1) == fit.trusted.predict(tokens, tokens)


def test_items_of_a_job_without_output_tokens_keep_their_own_shape() -> None:
    view = PoolView(0, "run", (), (), (0, 0, 0), (0, 0, 0), 0, None, ())
    job = JobWork(RequestClass.BATCH, items=50, in_flight=0, left_s=100.0, prompt_tokens=900.0)
    seen = assemble(view, Meter(), Starts(), GroupFacts(10.0, 1), None, [job])
    assert [Shape(900.0, 0.0)] == [each.shape for each in seen.demands]
