"""Loads near a model's context, and plans whose first candidates do not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.plan import search
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.option import Promise
from loadtest.plan.search import MORE, Candidate, SimulatedCandidate, engines, plan
from loadtest.plan.traffic import Load, steady_load
from loadtest.plan.trial import Range, Ranges
from loadtest.traces import TraceRequest

NONE = Range(0.0, 0.0, 0.0)


def test_drawn_lengths_near_the_context_keep_their_mean_and_spread_less() -> None:
    """Servers refuse what is longer, so a mean of 120k in a context of 131,072 is one of requests that fit."""
    load = steady_load(0.1, 120_000, 800).within(131_072)
    assert (120_000, 800) == (load.shape.prompt_tokens, load.shape.output_tokens)
    assert 130_000 < load.longest <= 131_072
    assert 0 < load.spread < 0.1
    assert "as the context of 131,072 allows" in load.name


def test_loads_that_fit_and_recorded_ones_stay_as_they_are() -> None:
    short = steady_load(1.0, 1000, 250)
    assert short == short.within(131_072)
    recorded = replace(short, trace=(TraceRequest(0, 0.0, 200_000, 10),), longest=200_010)
    assert recorded == recorded.within(131_072)
    # Even equal requests are too long here: the plan says so of each engine.
    assert 150_800 == steady_load(0.1, 150_000, 800).within(131_072).longest


@pytest.mark.parametrize(("held", "looked_at"), [(None, 1 + MORE), (0, 1), (2, 3)])
def test_where_no_candidate_holds_the_next_ones_are_simulated(
    monkeypatch: pytest.MonkeyPatch, held: int | None, looked_at: int
) -> None:
    seen: list[Candidate] = []

    def simulated(candidate: Candidate, load: Load, promise: Promise, **_: object) -> SimulatedCandidate:
        seen.append(candidate)
        holds = held == len(seen) - 1
        return SimulatedCandidate(candidate, Ranges(*[NONE] * 6), "", holds, float(holds))

    monkeypatch.setattr(search, "simulate", simulated)
    gpus = [load_gpu(name) for name in ("h100", "h200", "b200")]
    found, _ = engines(load_shape("qwen3-8b"), gpus, ["bf16"], prices={})
    best, rest, _ = plan(found, steady_load(1.0, 1000, 250), Promise(), simulated=1)
    assert looked_at == len(best) == len(seen)
    assert len(found) == len(best) + len(rest)
    assert (held is not None) == best[0].holds
