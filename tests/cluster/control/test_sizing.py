"""Sizing without a term: the load with all terms is used where the term changes nothing in it."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.control.load_forecast import Check, Need
from cluster.control.replica_policy import TERMS
from cluster.control.replica_rules import SlowState
from cluster.control.sizing import size_group
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from cluster.control.step_model import Shape
from penstock.models import RequestClass
from tests.cluster.control.groups import MODEL, POINT, RULES, SHAPE, TICK_S

AT = 10_000.0
TICKS = 120
MOST = 100


@st.composite
def groups(draw: st.DrawFn) -> tuple[GroupSnapshot, SlowState]:
    """Make a group whose load, lengths and steps may have changed lately."""
    rate, changed = draw(st.floats(0.5, 20.0)), draw(st.sampled_from((30, 100, 112, 116)))
    more, longer = draw(st.sampled_from((1.0, 1.0, 0.3, 3.0, 12.0))), draw(st.sampled_from((1.0, 1.0, 4.0, 8.0)))
    factor = draw(st.sampled_from((1.0, 1.0, 0.8, 1.7)))
    needs, now = [], Need(0.0, 0.0, 0)
    requests, prompt, kept = rate, SHAPE.prompt_tokens, math.exp(-TICK_S / RULES.load.rate_window_s)
    for tick in range(TICKS + 1):
        late = tick >= changed
        prompt = kept * prompt + (1.0 - kept) * SHAPE.prompt_tokens * (longer if late else 1.0)
        requests = kept * requests + (1.0 - kept) * rate * (more if late else 1.0)
        shape = Shape(prompt, SHAPE.output_tokens)
        work = requests * MODEL.gpu_seconds(shape, 64.0)
        now = Need(AT - (TICKS - tick) * TICK_S, work, max(1, round(work)), requests, shape)
        needs.append(now)
    demand = ClassDemand(RequestClass.INTERACTIVE, now.requests, now.shape or SHAPE, draw(st.integers(0, 200)))
    batch = ClassDemand(RequestClass.BATCH, 1.0, SHAPE, draw(st.integers(0, 200)), 0.0, draw(st.floats(1.0, 1e4)))
    running = draw(st.floats(0.0, 500.0))
    seen = GroupSnapshot(at=AT, ready=4, demands=(demand, batch), model=MODEL, running=running, kv_usage=0.3)
    return seen, SlowState(needs=tuple(needs[:-1]), active_at=AT, check=dataclasses.replace(Check(), factor=factor))


@given(found=groups())
def test_a_sizing_without_a_term_is_the_same_with_the_usual_load_at_hand(
    found: tuple[GroupSnapshot, SlowState],
) -> None:
    seen, state = found
    usual = size_group(POINT, seen, state, RULES, MOST).load

    for term in TERMS:
        whole = size_group(POINT, seen, state, RULES, MOST, without=term)
        short = size_group(POINT, seen, state, RULES, MOST, without=term, usual=usual)
        assert dataclasses.replace(whole, steps=()) == dataclasses.replace(short, steps=())


@pytest.mark.parametrize(("term", "looks"), [("growth", 0), ("backlog", 0), ("lengths", 0), ("burst", 1)])
def test_what_changes_nothing_in_the_load_looks_at_no_history(
    monkeypatch: pytest.MonkeyPatch, term: str, looks: int
) -> None:
    """The look takes most of a decision's time, and each term is left out once."""
    now = Need(AT, 2.0, 2, 4.0, SHAPE)
    state = SlowState(needs=tuple(dataclasses.replace(now, at=AT - n * TICK_S) for n in range(TICKS, 0, -1)))
    seen = GroupSnapshot(at=AT, ready=4, demands=(ClassDemand(RequestClass.INTERACTIVE, 4.0, SHAPE),), model=MODEL)
    usual = size_group(POINT, seen, state, RULES, MOST).load
    calls = []
    monkeypatch.setattr("cluster.control.sizing.longer_work", lambda *_: calls.append(term))

    size_group(POINT, seen, state, RULES, MOST, without=term, usual=usual)

    assert looks == len(calls)
