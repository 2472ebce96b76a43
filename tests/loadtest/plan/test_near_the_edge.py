"""Loads near a model's context, and plans whose first candidates do not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.control.step_model import Shape
from loadtest.plan import search
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.option import Impossible, Layout, Operation, Promise, alone_s, operate, shape_within
from loadtest.plan.search import MORE, Candidate, SimulatedCandidate, engines, plan
from loadtest.plan.traffic import Load, steady_load
from loadtest.plan.trial import Range, Ranges, seconds_apart, try_out
from loadtest.traces import TraceRequest

NONE = Range(0.0, 0.0, 0.0)


def test_drawn_lengths_near_the_context_keep_their_mean_and_spread_less() -> None:
    """Servers refuse what is longer, so a mean of 120k in a context of 131,072 is one of requests that fit."""
    load = steady_load(0.1, 120_000, 800).within(131_072)
    assert (120_000, 800) == (load.shape.prompt_tokens, load.shape.output_tokens)
    assert 130_000 < load.longest <= 131_072
    assert 0 < load.spread < 0.1
    assert "as the context of 131,072 allows" in load.name


def test_loads_that_fit_only_get_a_bound_and_recorded_ones_stay_as_they_are() -> None:
    short = steady_load(1.0, 1000, 250)
    assert replace(short, most=131_072) == short.within(131_072)
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


@pytest.mark.parametrize("replicas", [1, 40])
def test_a_prompt_that_is_late_alone_is_late_with_any_number_of_replicas(replicas: int) -> None:
    """The simulation says so too: the requests whose prompt is longer miss the SLO on idle replicas."""
    (engine, *_), _ = engines(load_shape("llama-3.1-8b"), [load_gpu("h100")], ["bf16"], prices={}, parallel=[1])
    load, promise = steady_load(0.02, 20_000, 50), Promise(2.0, 0.2)
    late = operate(engine, load, promise)
    assert isinstance(late, Impossible)
    enough = operate(engine, load, replace(promise, ttft_p99_s=30.0))
    assert isinstance(enough, Operation)
    seen = try_out(engine, replace(enough, step_tokens=8192), load, promise, replicas)
    assert seen.attainment < promise.attainment


def test_a_prompt_that_is_late_alone_is_told_at_once_with_its_time_and_what_helps() -> None:
    shape = load_shape("llama-3.1-70b")
    load = steady_load(0.5, 120_000, 800).within(shape.context)
    found, _ = engines(shape, [load_gpu("h100")], ["fp8"], prices={}, parallel=[8], length=load.shape.peak_tokens)
    simulated, on_paper, lost = plan(found, load, Promise())
    assert ([], []) == (simulated, on_paper)
    floor = alone_s(found[0].careful, shape_within(load, 0.99), 8192)
    assert f"alone takes {floor:.2f} s on an idle replica, and the TTFT SLO is 2.00 s" in lost[0].why
    assert f"more replicas do not help; a TTFT SLO of more than {floor:.2f} s, more GPUs per replica" in lost[0].why


def test_the_prompts_that_may_be_late_do_not_count() -> None:
    """With 80 % to be in time, the prompt that four in five do not exceed is what must be."""
    (engine, *_), _ = engines(load_shape("llama-3.1-8b"), [load_gpu("h100")], ["bf16"], prices={}, parallel=[1])
    load = steady_load(0.1, 20_000, 100)
    between = (alone_s(engine, shape_within(load, part), 8192) for part in (0.8, 0.99))
    promise = Promise(sum(between) / 2, 0.2)
    assert isinstance(operate(engine, load, promise), Impossible)
    assert isinstance(operate(engine, load, replace(promise, attainment=0.8)), Operation)


def test_steps_in_which_a_prompt_alone_is_late_are_not_chosen() -> None:
    """Small steps would keep the gaps, and no number of replicas the time to a first token."""
    (engine, *_), _ = engines(load_shape("llama-3.1-8b"), [load_gpu("h100")], ["bf16"], prices={}, parallel=[1])
    load = steady_load(0.1, 20_000, 400, 0.0)
    fast, slow = (alone_s(engine, load.shape, budget) for budget in (8192, 128))
    found = operate(engine, load, Promise((fast + slow) / 2, 0.012))
    assert isinstance(found, Operation)
    assert alone_s(engine, load.shape, found.step_tokens) <= (fast + slow) / 2


def test_recorded_prompts_count_as_they_are() -> None:
    trace = tuple(TraceRequest(at, 1.0 * at, 100 * (at + 1), 10) for at in range(100))
    load = Load("recorded", 1.0, Shape(5050, 10), 10_010, trace)
    assert (9900, 5000) == (load.prompt_within(0.99), load.prompt_within(0.5))
    drawn = steady_load(1.0, 1000, 10)
    assert drawn.prompt_within(0.5) < 1000 < drawn.prompt_within(0.9) < drawn.prompt_within(0.99)


def test_the_policy_decides_each_second_unless_prompts_take_many() -> None:
    """Plans for usual prompts are the same to the bit as with a decision each second."""
    shape = load_shape("llama-3.1-70b")
    (engine,), _ = engines(shape, [load_gpu("h100")], ["fp8"], prices={}, parallel=[8], layouts=[Layout()])
    apart = [seconds_apart(engine, steady_load(0.1, prompt, 800)) for prompt in (1000, 8000, 32_000, 120_000)]
    assert [1, 1, 1] == apart[:3]
    assert apart[3] == int(alone_s(engine, steady_load(0.1, 120_000, 800).shape, 8192) / 3) > 1
