"""The comparison of autoscalers: equal attainment, a plan that knows the future, pairs."""

from __future__ import annotations

import argparse
import io
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import loadtest.benchmarks.autoscaler.__main__ as bench
from cluster.terminal.tables import print_table
from loadtest.benchmarks.autoscaler.__main__ import jobs_of, tuned_as_ours
from loadtest.benchmarks.autoscaler.contest import (
    NOWCAST,
    ORACLE,
    POLICIES,
    SAME_HOURS,
    TUNED,
    ContestResult,
    Policy,
    contend,
    same_hours,
)
from loadtest.benchmarks.autoscaler.oracle import _kept, plan
from loadtest.benchmarks.autoscaler.report import paired, rows, table_of
from loadtest.benchmarks.autoscaler.scenarios import (
    ENGINE,
    PEAK_FILL,
    PEAK_REPLICAS,
    SCENARIOS,
    ContestScenario,
    Span,
    case,
    work_of,
)
from loadtest.benchmarks.autoscaler.tuning import cheapest, cheapest_of_all, tune

SPAN = Span(240.0, lead_s=60.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rnd = random.Random(1)
    stamps = (f"2023-11-16 18:{int(at // 60):02}:{at % 60:09.6f}0" for at in (n / 4 for n in range(4 * 700)))
    lines = [f"{stamp},{rnd.randint(200, 2000)},{rnd.randint(50, 300)}" for stamp in stamps]
    (folder / "azure_llm_2023_conv.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return folder


def scenario(name: str) -> ContestScenario:
    return next(each for each in SCENARIOS if each.name == name)


def test_the_busiest_minutes_need_twenty_replicas(data: Path) -> None:
    drawn = case(scenario("azure"), 1, SPAN, data)
    bins = Counter[int]()
    for each in drawn.trace:
        if SPAN.counts(each.arrival_s):
            bins[int((each.arrival_s - SPAN.lead_s) // 120)] += work_of(each, ENGINE)  # type: ignore[assignment]

    assert max(bins.values()) / 120 == pytest.approx(PEAK_FILL * PEAK_REPLICAS, rel=0.15)
    assert [each.number for each in drawn.trace] == list(range(len(drawn.trace)))


def test_a_seed_draws_the_same_load_again_and_another_does_not(data: Path) -> None:
    one, again, other = (case(scenario("step x3"), seed, SPAN, data).trace for seed in (1, 1, 2))

    assert one == again
    assert one != other


def test_the_oracle_orders_a_cold_start_ahead_and_keeps_what_is_wanted_again(data: Path) -> None:
    make, span = scenario("step x3").make, Span(480.0, lead_s=120.0)
    slow, quick = (
        plan(case(ContestScenario("step x3", make, cold_start_s=cold), 1, span, data), 0.9).counts
        for cold in (120.0, 15.0)
    )

    step = int((120 + 0.3 * 480) // 15)
    assert slow[step - 6] > quick[step - 6]
    assert quick[step - 3] < quick[step + 2]
    assert all(one >= other for one, other in zip(slow, quick, strict=True))


def test_the_oracle_has_others_ready_when_replicas_die(data: Path) -> None:
    make, span = scenario("death").make, Span(480.0, lead_s=120.0)
    none, three = (
        plan(case(ContestScenario("death", make, cold_start_s=60.0, deaths=deaths), 1, span, data), 0.9).counts
        for deaths in (0, 3)
    )

    death = int((120 + 0.4 * 480) // 15)
    assert [0, 3, 3, 3, 3, 0] == [three[at] - none[at] for at in range(death - 5, death + 1)]


def test_without_foresight_replicas_are_ordered_when_they_are_needed(data: Path) -> None:
    make, span = scenario("step x3").make, Span(480.0, lead_s=120.0)
    drawn = case(ContestScenario("step x3", make, cold_start_s=60.0, deaths=3), 1, span, data)
    ahead, now = (plan(drawn, 0.9, foresight=foresight).counts for foresight in (True, False))

    step, ahead_of = int((120 + 0.3 * 480) // 15), 4
    assert now[step - 1] < ahead[step - 1]
    # The same replicas, a cold start later; nobody is ordered for the three that are going to die.
    assert [each - 3 for each in ahead[step - 1 : step + 3]] == list(now[step - 1 + ahead_of : step + 3 + ahead_of])
    assert all(one <= other for one, other in zip(now, ahead, strict=True))


def test_without_foresight_a_replica_that_is_wanted_again_soon_is_kept() -> None:
    busy = np.array([0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0], dtype=bool)

    assert [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0] == list(_kept(busy, 2, foresight=False))
    assert [0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0] == list(_kept(busy, 2, foresight=True))


def test_the_cheaper_family_is_the_one_that_is_cheaper_over_all_draws() -> None:
    def family(*runs: tuple[float, float]) -> list[ContestResult]:
        return [
            ContestResult("s", "p", n, 0.0, attained, hours, 0, 1.0, 0, 0.0) for n, (attained, hours) in enumerate(runs)
        ]

    dear, cheap, bad = family((1.0, 5.0), (1.0, 5.0)), family((0.985, 3.0), (0.999, 6.0)), family((0.98, 1), (0.99, 1))

    assert cheap == cheapest_of_all([dear, cheap, bad])
    assert bad == cheapest_of_all([bad, family((0.97, 0.5), (0.97, 0.5))])


def test_the_nowcast_runs_only_where_it_is_named() -> None:
    options = argparse.Namespace(policies=None, scenarios=None, quick=False)

    assert NOWCAST not in bench._chosen(options)[1]
    options.policies = NOWCAST
    assert [ORACLE, NOWCAST] == bench._chosen(options)[1]


def test_the_oracle_may_take_prompts_to_be_needed_at_once(data: Path) -> None:
    span = Span(480.0, lead_s=120.0)
    drawn = case(replace(scenario("length x4/wide batches"), cold_start_s=15.0), 1, span, data)
    spread, first = (plan(drawn, 0.9, prompts_first=first).counts for first in (False, True))

    longer = int((120 + 0.4 * 480) // 15)
    assert sum(first[longer : longer + 8]) > 1.2 * sum(spread[longer : longer + 8])


def test_the_cheapest_of_those_that_attain_enough_is_the_measure() -> None:
    found = [ContestResult("s", "p", 1, 0.0, attained, hours, 0, 1.0, 0, 0.0)
             for attained, hours in ((0.992, 4.0), (0.999, 3.0), (0.989, 1.0), (0.98, 0.5))]  # fmt: skip

    assert 3.0 == cheapest(found).gpu_hours
    assert 1.0 == cheapest(found[2:]).gpu_hours


@pytest.mark.slow
def test_a_fuller_plan_is_cheaper_and_attains_less(data: Path) -> None:
    drawn = case(scenario("azure"), 1, SPAN, data)
    generous, tight = (contend(drawn, POLICIES[ORACLE], dial) for dial in (0.7, 1.4))

    assert generous.attainment > 0.99
    assert tight.gpu_hours < generous.gpu_hours
    assert tight.attainment < generous.attainment


def test_a_dial_is_turned_to_the_cheapest_that_is_enough() -> None:
    asked: list[float] = []

    def serve(dial: float, highest: float = 1.0) -> list[ContestResult]:
        asked.append(dial)
        return [ContestResult("s", "p", 1, dial, min(highest, dial / 10), 1.0, 0, 1.0, 0, 0.0)]

    assert 10 == tune([float(n) for n in range(5, 15)], serve, enough=1.0)
    assert len(asked) <= 5
    assert 6 == tune([3.0, 4.0, 5.0, 6.0], serve)


def test_hours_are_in_percent_of_the_oracle_on_the_same_load() -> None:
    found = rows(
        ContestResult("s", policy, seed, 0.0, 1.0, hours, 0, 1.0, 0, 0.0)
        for policy, seed, hours in ((ORACLE, 1, 2.0), (ORACLE, 2, 4.0), ("penstock", 1, 3.0), ("penstock", 2, 5.0))
    )

    assert [100, 100, 150, 125] == [each["gpu_hours_pct_oracle"] for each in found]
    assert [2, 4, 3, 5] == [each["gpu_hours"] for each in found]
    assert {"scenario", "policy", "seed", "attainment", "gpu_hours_pct_oracle", "reversals", "worst_5min_attainment",
            "batch_tokens"} <= found[0].keys()  # fmt: skip


@pytest.mark.slow
def test_what_goes_before_the_time_that_counts_is_not_counted(data: Path) -> None:
    span = Span(120.0, lead_s=120.0)
    settled = case(scenario("azure"), 1, span, data)
    found = contend(settled, POLICIES["static"], 20.0)
    mixed = case(ContestScenario("even", scenario("death").make, batch_part=0.5), 1, span, data)
    batch = [each for each in mixed.trace if each.request_class and each.request_class.name == "BATCH"]

    assert found.gpu_hours == pytest.approx(20 * 120 / 3600)
    assert settled.trace[0].arrival_s < 10
    assert not span.counts(119.9)
    assert span.counts(120.0)
    # Those of the lead alone would be half of the tokens.
    counted = sum(each.output_tokens for each in batch if span.counts(each.arrival_s))
    assert contend(mixed, POLICIES["static"], 30.0).batch_tokens == counted < 0.8 * sum(b.output_tokens for b in batch)


def test_a_fixed_number_has_the_hours_of_ours_on_the_same_draw(data: Path) -> None:
    """Between two numbers it is their mixture, as if each ran for a part of the time."""
    drawn = case(scenario("step x3"), 1, SPAN, data)
    ours, fixed = contend(drawn, POLICIES["penstock"], 0.0), same_hours(drawn)
    few = int(ours.gpu_hours * 3600 / SPAN.seconds + 1e-6)
    less, more = (contend(drawn, POLICIES["static"], number).attainment for number in (few, few + 1))

    assert SAME_HOURS == fixed.policy
    assert pytest.approx(ours.gpu_hours) == fixed.gpu_hours
    part = fixed.dial - few
    assert 0.0 <= part < 1.0
    assert pytest.approx(less + part * (more - less)) == fixed.attainment


def test_the_table_tells_the_worst_draw() -> None:
    """A mean hides it."""

    def one(policy: str, seed: int, attainment: float) -> ContestResult:
        return ContestResult("on and off", policy, seed, 0.0, attainment, 10.0, 0, 1.0, 0, 0.0)

    found = [one(name, seed, 0.99) for name in (ORACLE, "penstock") for seed in (1, 2, 3)]
    found += [one(SAME_HOURS, seed, value) for seed, value in ((1, 0.97), (2, 0.98), (3, 1.0))]
    out = io.StringIO()
    print_table(table_of("on and off", rows(found)), Console(file=out, width=200))
    row = next(line for line in out.getvalue().splitlines() if SAME_HOURS in line)

    assert "+0.7" in row
    assert "-1.0" in row


def test_pairs_show_what_loads_of_different_size_hide() -> None:
    difference = paired([10.0, 20.0, 30.0, 40.0], [11.0, 21.2, 31.0, 40.8])

    assert difference.mean == pytest.approx(-1.0)
    assert difference.half < 1.0
    assert paired([1.0, 5.0], [3.0, 2.0]).half > 0.5
    assert math.isnan(paired([1.0], [2.0]).half)


def test_classes_without_a_promise_count_as_tokens_only(data: Path) -> None:
    mixed = case(ContestScenario("even", scenario("death").make, batch_part=0.3), 1, Span(60.0, lead_s=0.0), data)
    result = contend(mixed, POLICIES["penstock"], 0.0)

    outputs = sum(
        each.output_tokens for each in mixed.trace if each.request_class and each.request_class.name == "BATCH"
    )
    assert 0 < result.batch_tokens <= outputs


def test_scenarios_that_are_the_same_to_a_policy_are_run_once() -> None:
    names = [each.name for each in SCENARIOS if each.load == "series"]
    jobs = jobs_of(names, ["static", "hpa slots", "penstock"], (1, 2), 60.0, Path())
    shared = {
        policy: sorted(len(job.scenarios) for job in jobs if job.policy == policy) for policy in ("static", "hpa slots")
    }

    assert [len(names)] == shared["static"]
    assert [1, 1, len(names) - 2] == shared["hpa slots"]
    assert len(names) == sum(job.policy == "penstock" for job in jobs)


def test_each_scenario_is_tuned_to_what_ours_reaches_there() -> None:
    names = ["series", "series/cold 420 s", "series/cold 30 s"]
    found = [
        ContestResult(name, "penstock", seed, 0.0, attainment, 1.0, 0, 1.0, 0, 0.0)
        for name, attainment in zip(names, (0.96, 0.92, 0.96), strict=True)
        for seed in (1, 2)
    ]
    static, oracle = (
        next(job for job in jobs_of(names, [policy], (1, 2), 60.0, Path()) if "series" in job.scenarios)
        for policy in ("static", ORACLE)
    )

    parts = {part.scenarios: part.enough for part in tuned_as_ours(static, found)}
    assert {("series", "series/cold 30 s"): 0.96, ("series/cold 420 s",): 0.92} == parts
    assert {static.scenarios: 0.99} == {part.scenarios: part.enough for part in tuned_as_ours(static, [])}
    assert [oracle] == tuned_as_ours(oracle, found)


def test_ours_with_a_dial_is_tuned_to_the_whole_attainment() -> None:
    found = [ContestResult("series", "penstock", 1, 0.0, 0.96, 1.0, 0, 1.0, 0, 0.0)]
    tuned = jobs_of(["series"], [TUNED], (1,), 60.0, Path())

    assert tuned == [part for job in tuned for part in tuned_as_ours(job, found)]
    assert [0.99] == [job.enough for job in tuned]


@pytest.mark.slow
def test_the_dial_of_ours_is_how_full_replicas_are_planned(data: Path) -> None:
    load = case(scenario("azure"), 1, SPAN, data)
    fuller, emptier = (contend(load, POLICIES[TUNED], dial) for dial in (0.95, 0.35))

    assert fuller.gpu_hours < emptier.gpu_hours


def test_a_dial_that_cannot_reach_the_attainment_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[int, float]] = []

    def contend(load: int, policy: Policy, dial: float) -> ContestResult:
        runs.append((load, dial))
        return ContestResult("s", policy.name, load, dial, 0.5 if dial < 3 else 1.0, 1.0, 0, 1.0, 0, 0.0)

    monkeypatch.setattr(bench, "contend", contend)
    found = bench._tuned(Policy("p", (1.0, 2.0, 3.0, 4.0)), [1, 2, 3], 0.99)  # type: ignore[list-item]

    assert [3.0] * 3 == [each.dial for each in found]
    assert [(1, 2.0)] == [each for each in runs if each[1] < 3]


def test_the_table_of_a_scenario_is_whole_on_a_narrow_screen() -> None:
    found = rows(
        ContestResult("s", policy, seed, 0.74, 0.98765, hours, 3, 0.87654, 1_234_567 + seed, 0.0)
        for seed in (1, 2)
        for policy, hours in ((ORACLE, 2.0), ("penstock", 3.0 * seed), ("hpa slots", 12.0))
    )
    console = Console(file=io.StringIO(), width=80)
    print_table(table_of("s", found), console)

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in ("attainment", "reversals", "points", "98.77%", "87.7%", "1,234,568", "-375.0 ±953.3", "hpa slots"):
        assert word in text
