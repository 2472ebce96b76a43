"""Groups without replicas, to which few requests come, or small ones."""

from __future__ import annotations

import dataclasses
import math

import pytest

from cluster.control.replica_rules import GroupBounds, SlowState
from cluster.control.snapshot import ClassDemand
from cluster.control.step_model import Shape, StepModel
from penstock.models import RequestClass
from tests.cluster.control.groups import POINT, TICK_S, decide, group, names

FAST, SHORT = StepModel(a=0.002, b=1e-6, g=0.0), Shape(prompt_tokens=20, output_tokens=1)
"""A small model of vectors on a GPU: a request takes 30 microseconds of a replica."""
NONE_ALLOWED = GroupBounds(0, 4)


@pytest.mark.parametrize("window_s", [60.0, 3600.0])
def test_a_request_that_was_refused_for_want_of_a_replica_starts_one(window_s: float) -> None:
    """It counts, and does not wait: its router knows no tokenizer, or an alias had a fallback for it."""
    came = ClassDemand(RequestClass.INTERACTIVE, (1.0 - math.exp(-TICK_S / window_s)) / TICK_S, SHORT)
    asleep = dataclasses.replace(group(0, came, arrived_at=10_000.0), model=FAST, kv_usage=0.0)
    made = decide(POINT, NONE_ALLOWED, asleep, SlowState(active_at=1_000.0))
    assert 1 == made.replicas
    assert "work" in names(made)


def test_what_is_left_of_an_average_starts_none() -> None:
    faded = ClassDemand(RequestClass.INTERACTIVE, 1e-12, SHORT)
    asleep = dataclasses.replace(group(0, faded, arrived_at=1_000.0), model=FAST, kv_usage=0.0)
    # A new leader takes the time without one for no time without requests.
    for active_at in (1_000.0, 10_000.0):
        assert 0 == decide(POINT, NONE_ALLOWED, asleep, SlowState(active_at=active_at)).replicas
