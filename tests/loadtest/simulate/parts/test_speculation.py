"""Speculative decoding: tokens per step, and what drafts and their verification cost."""

from __future__ import annotations

import math
import random

import pytest

from cluster.errors import SettingsError
from cluster.settings import SimSettings
from deployments.engines.sim import CoreLimits
from loadtest.simulate.parts.settings import Parts, Speculation, Tier
from loadtest.simulate.parts.speculation import SpeculationTally, SpeculativeCore
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.setup import Death, Setup, Slo
from loadtest.traces import TraceRequest
from penstock.models import RequestClass

ENGINE = SimSettings(
    base_ms=10.0,
    per_token_us=40.0,
    per_kv_token_us=0.0,
    kv_tokens=100_000,
    max_num_seqs=8,
    max_num_batched_tokens=512,
)


def draw_trace(seed: int = 1, requests: int = 120, gap_s: float = 0.1) -> list[TraceRequest]:
    rnd = random.Random(seed)
    return [TraceRequest(n, gap_s * n, rnd.randint(1, 400), rnd.randint(1, 80)) for n in range(requests)]


def simulate(
    trace: list[TraceRequest], what: Speculation | None, engine: SimSettings = ENGINE, **more: object
) -> SimulatedRun:
    return Simulation(trace, Setup(engine, parts=Parts(speculation=what), **more)).run()  # type: ignore[arg-type]


def test_a_draft_that_is_never_accepted_costs_its_time_and_gives_nothing() -> None:
    alone = [TraceRequest(0, 0.0, 100, 41)]
    plain = simulate(alone, None).outcomes[0]
    drafted = simulate(alone, Speculation(3, 0.0, draft_s=0.002, draft_per_sequence_s=0.001)).outcomes[0]
    assert plain.ttft_s == drafted.ttft_s
    step_s = 3 * (0.002 + 0.001) + 3 * 40e-6
    assert pytest.approx(plain.itl_mean_s + step_s) == drafted.itl_mean_s
    assert pytest.approx(plain.e2e_s + 40 * step_s) == drafted.e2e_s


def test_a_free_draft_that_is_never_accepted_changes_nothing() -> None:
    trace = draw_trace()
    plain, drafted = simulate(trace, None), simulate(trace, Speculation(4, 0.0, verify_s=0.0))
    for a, b in zip(plain.outcomes, drafted.outcomes, strict=True):
        assert a.number == b.number
        assert pytest.approx((a.queue_s, a.ttft_s, a.e2e_s, a.itl_p95_s), abs=1e-9) == (
            b.queue_s, b.ttft_s, b.e2e_s, b.itl_p95_s,
        )  # fmt: skip


@pytest.mark.parametrize("draft_tokens", [1, 3, 7])
def test_a_draft_that_is_always_accepted_takes_the_fewest_steps(draft_tokens: int) -> None:
    alone = [TraceRequest(0, 0.0, 50, 60)]
    run = simulate(alone, Speculation(draft_tokens, 1.0, verify_s=0.0), ENGINE.model_copy(update={"per_token_us": 0.0}))
    outcome = run.outcomes[0]
    assert pytest.approx(0.010 * math.ceil(59 / (draft_tokens + 1))) == outcome.e2e_s - outcome.ttft_s
    assert draft_tokens + 1 == run.parts["speculation"]["tokens_per_step"]


def test_a_prompt_waits_for_whole_steps_not_for_tokens() -> None:
    alone, what = [TraceRequest(0, 0.0, 50, 61)], Speculation(4, 1.0, verify_s=0.0)
    without, waits = (simulate(alone, what, overhead_steps=each).outcomes[0] for each in (0.0, 2.0))
    assert pytest.approx(2 * (0.010 + 40e-6)) == waits.ttft_s - without.ttft_s


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
def test_a_step_never_gives_more_than_the_draft_and_one(acceptance: float) -> None:
    what, tally = Speculation(4, acceptance), SpeculationTally()
    core = SpeculativeCore(CoreLimits(8, 256, 4_000, 16), what, 1, tally)
    for number in range(8):
        core.add(f"s{number}", 100)
    seen = set()
    for _ in range(300):
        turn = core.turn()
        seen |= set(core.gained.values())
        assert turn.decoded == len(core.gained)
        for sequence in [each for each in core.gained if core.output_tokens(each) > 200]:
            core.remove(sequence)
            core.add(sequence, 100)
    assert seen <= {1, 2, 3, 4, 5}
    assert (1 in seen, 5 in seen) == (acceptance < 1, acceptance > 0)


def test_the_mean_of_tokens_per_step_is_the_sum_of_the_powers_of_the_acceptance() -> None:
    what = Speculation(3, 0.7)
    found = simulate(draw_trace(requests=300), what).parts["speculation"]
    assert 1 + 0.7 + 0.49 + 0.343 == pytest.approx(what.tokens_per_step)
    assert pytest.approx(what.tokens_per_step, rel=0.03) == found["tokens_per_step"]


def test_more_acceptance_is_faster() -> None:
    trace = draw_trace()
    means = [float(simulate(trace, Speculation(4, each)).outcomes.column("e2e_s").mean()) for each in (0, 0.4, 0.8, 1)]
    assert sorted(means, reverse=True) == means


@pytest.mark.parametrize("seed", range(3))
def test_every_request_gets_all_its_tokens_though_replicas_die_and_the_cache_is_full(seed: int) -> None:
    engine = ENGINE.model_copy(update={"kv_tokens": 1_200, "per_kv_token_us": 0.5})
    deaths = tuple(Death(2.0 * n + 0.37 * seed + 1.0) for n in range(4))
    run = simulate(
        draw_trace(seed, gap_s=0.05),
        Speculation(5, 0.6, draft_s=0.001),
        engine,
        replicas=2,
        max_replicas=2,
        min_replicas=2,
        deaths=deaths,
        cold_start_s=1.0,
    )
    assert {"completed"} == {each.end for each in run.outcomes}
    assert sum(each.preemptions for each in run.outcomes) > 0
    for each in run.outcomes:
        # The mean is of as many gaps as there are tokens after the first.
        decode_s = each.itl_mean_s * (each.output_tokens - 1)
        assert pytest.approx(each.e2e_s - each.ttft_s, abs=1e-9) == decode_s


def test_the_distribution_of_gaps_has_the_tokens_that_come_together() -> None:
    trace = draw_trace()
    run = simulate(trace, Speculation(3, 0.8))
    figures = figures_of(run, dict.fromkeys(RequestClass, Slo()))
    gaps = sum(each.output_tokens - 1 for each in run.outcomes)
    decode_s = sum(each.e2e_s - each.ttft_s for each in run.outcomes)
    assert pytest.approx(decode_s / gaps) == figures.itl_s.mean
    assert 0.0 == figures.itl_s.p50


def test_drafts_go_with_tiers_of_the_prefix_cache() -> None:
    rnd = random.Random(2)
    talks = [rnd.randint(0, 5) for _ in range(60)]
    trace = [
        TraceRequest(n, 2.0 * n, 900, 30, block_ids=tuple(range(100 * talk, 100 * talk + 14)), block_tokens=64)
        for n, talk in enumerate(talks)
    ]
    parts = Parts(tiers=(Tier("cpu", 10**6, math.inf),), speculation=Speculation(3, 0.5))
    run = Simulation(trace, Setup(ENGINE.model_copy(update={"kv_tokens": 2_000}), parts=parts)).run()
    assert (60 - len(set(talks))) * 14 * 64 == run.outcomes.column("cached_tokens").sum()
    assert run.parts["speculation"]["tokens_per_step"] > 1.5


@pytest.mark.parametrize(
    ("draft_tokens", "acceptance", "words"),
    [
        (0, 0.5, "draft-tokens must be 1 to 16, got 0"),
        (17, 0.5, "draft-tokens must be 1 to 16, got 17"),
        (1, 1.5, "acceptance must be 0 to 1, got 1.5"),
        (1, math.nan, "acceptance must be 0 to 1, got nan"),
    ],
)
def test_settings_out_of_range_are_refused(draft_tokens: int, acceptance: float, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Speculation(draft_tokens, acceptance)
