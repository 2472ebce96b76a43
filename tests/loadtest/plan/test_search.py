"""From a model, a load and a promise to candidates, simulated and ranked."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from rich.console import Console

from cluster.cli.main import main
from cluster.control.step_model import Experts, Shape, StepModel
from cluster.errors import SettingsError
from loadtest.plan import trial
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import load_gpu
from loadtest.plan.engine.points import DEVIATION, FOREIGN, PRIOR
from loadtest.plan.engine.prior import StepPrior
from loadtest.plan.engine.steps import Roofline
from loadtest.plan.option import Engine, Impossible, Layout, Operation, Promise, operate
from loadtest.plan.page import write_html
from loadtest.plan.prices import prices_of
from loadtest.plan.report import Plan, money, notes, show, slo_words
from loadtest.plan.search import Candidate, SimulatedCandidate, engines, on_paper, plan, ranking
from loadtest.plan.traffic import Load, load_of_lengths, steady_load
from loadtest.plan.trial import EngineTimes, Range, Ranges, try_out, without_lulls
from loadtest.plan.what_if import what_ifs
from loadtest.report.origin import origin
from loadtest.simulate.pool.simulation import Simulation
from loadtest.traces import TraceRequest

LOAD = steady_load(4.0, 100, 20, 0.2)
PROMISE = Promise(ttft_p99_s=1.0, itl_p95_s=0.05)


def engine(**values: object) -> Engine:
    made = Engine(
        model="toy",
        gpu="card",
        tensor_parallel=1,
        precision="bf16",
        steps=StepPrior(StepModel(0.02, 2e-5, 1e-8), 0.0),
        error=0.1,
        source="profile",
        kv_tokens=20_000,
        step_limits=(2048, 16),
        context=4096,
        price=2.0,
    )
    return replace(made, **values)  # type: ignore[arg-type]


def run(what: Engine, load: Load = LOAD, promise: Promise = PROMISE) -> Operation:
    operation = operate(what, load, promise)
    assert isinstance(operation, Operation)
    return operation


@pytest.mark.parametrize(
    ("changed", "batch", "binding"),
    [
        ({}, 16, "engine's batch limit"),
        ({"kv_tokens": 800}, 6, "KV cache"),
        ({"steps": StepPrior(StepModel(0.02, 0.002, 0), 0.0), "step_limits": (512, 64)}, None, "ITL SLO"),
    ],
)
def test_the_batch_is_bound_by_what_runs_out_first(changed: dict[str, object], batch: int, binding: str) -> None:
    operation = run(engine(**changed), promise=replace(PROMISE, itl_p95_s=0.4))
    assert binding == operation.binding
    assert batch is None or batch == operation.batch


@pytest.mark.parametrize(
    ("changed", "promise", "why"),
    [
        ({}, Promise(1.0, 0.015), "one sequence alone takes 20.0 ms per token, and the SLO is 15.0 ms"),
        ({}, Promise(0.01, 0.05), "on an idle replica, and the TTFT SLO is 0.01 s"),
        ({"kv_tokens": 100}, PROMISE, "and the KV cache room for 100"),
        ({"context": 100}, PROMISE, "and the context is 100"),
    ],
)
def test_what_cannot_be_says_why(changed: dict[str, object], promise: Promise, why: str) -> None:
    found = operate(engine(**changed), LOAD, promise)
    assert isinstance(found, Impossible)
    assert why in found.why


def test_a_prior_outside_its_calibration_claims_less() -> None:
    inside, _ = engines(load_shape("llama-3.1-70b"), [load_gpu("h100")], ["fp8"], prices={}, parallel=(4,))
    outside, _ = engines(load_shape("llama-3.1-70b"), [load_gpu("a100")], ["int4"], prices={}, parallel=(4,))
    assert (PRIOR.steps, PRIOR.ttft, "prior") == (inside[0].error, inside[0].ttft_error, inside[0].source)
    assert (FOREIGN.steps, FOREIGN.ttft) == (outside[0].error, outside[0].ttft_error)
    assert "prior, outside its calibration" == outside[0].source
    assert PRIOR.steps < FOREIGN.steps
    assert PRIOR.ttft < FOREIGN.ttft


def test_a_model_that_does_not_fit_is_rejected_with_what_is_missing() -> None:
    found, lost = engines(load_shape("llama-3.1-405b"), [load_gpu("h100")], ["bf16"], prices={}, layouts=[Layout()])
    assert [] == found
    assert "8 x h100, bf16" == lost[-1].name
    assert "26.1 GB short" in lost[-1].why


def test_candidates_are_sized_for_the_slowest_likely_engine() -> None:
    (careful,), _ = on_paper([engine(error=0.2)], LOAD, PROMISE)
    (exact,), _ = on_paper([engine(error=0.0)], LOAD, PROMISE)
    slower = math.exp(NormalDist().inv_cdf(PROMISE.confidence) * DEVIATION * 0.2)
    assert careful.operation.rate == pytest.approx(exact.operation.rate / slower, rel=0.1)


@pytest.mark.slow
def test_the_simulated_load_meets_the_step_model() -> None:
    """At almost no load a token takes a step, and the first one a step with the prompt."""
    calm = steady_load(0.1, 100, 20, 0.0)
    seen = try_out(engine(overhead_s=0.1, overhead_steps=0.0), run(engine(), calm), calm, PROMISE, 1)
    assert 0.02 == pytest.approx(seen.itl_mean_s, rel=0.01)
    assert 0.122 == pytest.approx(seen.ttft_mean_s, rel=0.02)
    assert 1.0 == seen.attainment


def test_an_overloaded_replica_does_not_attain() -> None:
    seen = try_out(engine(), run(engine()), steady_load(200.0, 100, 20, 0.2), PROMISE, 1)
    assert seen.attainment < 0.5


@pytest.mark.slow
def test_one_request_an_hour_is_simulated_without_its_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is served as others on idle replicas are; its tokens per second are those of hours."""
    lasted: list[float] = []

    def noted(trace: Sequence[TraceRequest], *of: Any, **more: Any) -> Simulation:
        lasted.append(trace[-1].arrival_s)
        return Simulation(trace, *of, **more)

    monkeypatch.setattr(trial, "Simulation", noted)
    rare, seldom = (steady_load(1 / each_s, 100, 20, 0.0) for each_s in (3600.0, 60.0))
    found = [try_out(engine(), run(engine()), load, PROMISE, 1) for load in (rare, seldom)]

    assert max(lasted) <= 200 * 60.0
    assert found[0].attainment == found[1].attainment == 1.0
    assert pytest.approx(found[1].ttft_p99_s, rel=0.1) == found[0].ttft_p99_s
    assert pytest.approx(20 / 3600, rel=0.3) == found[0].tokens_per_s
    assert pytest.approx(20 / 60, rel=0.3) == found[1].tokens_per_s


def test_lulls_are_left_out_and_nothing_else() -> None:
    trace = [TraceRequest(number, at, 10, 1) for number, at in enumerate((0.0, 5.0, 100.0, 160.0, 1000.0))]
    shorter, left_out_s = without_lulls(trace, 60.0)

    assert [0.0, 5.0, 65.0, 125.0, 185.0] == [each.arrival_s for each in shorter]
    assert 815.0 == left_out_s


def test_step_times_of_a_trial_are_those_of_the_engine() -> None:
    """Decodes read experts as few tokens do. A prompt's part attends to what is before it, and to half of itself."""
    roofline = Roofline(0.004, 1e-5, 0.005, 2e-5, experts=Experts(8, 2))
    steps = StepPrior(StepModel(0.01, 0.0, 1e-8), 1e-5, roofline, 1e-9)
    times = EngineTimes(0.0, 0.0, 0.0, steps)

    assert [pytest.approx(steps.step(4, 4, kv)) for kv in (104, 108)] == times.run(4, 100, 2)
    assert steps.step(4, 4, 104) == times.with_prompts(4, 0, 4, 104, 104)
    # 4 sequences decode with 104 tokens of context; one computes the second 50 tokens of its 100.
    assert steps.step(5, 54, 104, 50 * (50 + 25)) == pytest.approx(times.with_prompts(4, 1, 54, 104 + 100, 104))


def test_a_slice_of_a_recorded_load_keeps_its_busiest_stretch() -> None:
    calm = [TraceRequest(n, 10.0 * n, 10, 5) for n in range(50)]
    busy = [TraceRequest(50 + n, 500 + 0.1 * n, 20, 5) for n in range(50)]
    load = Load("mixed", 0.2, Shape(15, 5), 25, tuple(calm + busy))
    part = load.slice(1.0, 40, 1)
    assert 40 == len(part)
    assert {20} == {each.prompt_tokens for each in part}
    assert 0.0 == part[0].arrival_s


def test_recorded_lengths_are_drawn_in_pairs(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("num_prefill_tokens,num_decode_tokens\n10,100\n30,300\n")
    load = load_of_lengths(2.0, tmp_path / "l.csv")
    assert (Shape(20, 200), 330) == (load.shape, load.longest)
    part = load.slice(0.5, 400, 1)
    assert {(10, 100), (30, 300)} == {(each.prompt_tokens, each.output_tokens) for each in part}
    assert 1.0 == pytest.approx(400 / part[-1].arrival_s, rel=0.2)


@pytest.mark.parametrize("values", [(0, 1, 1, 0), (1, 0, 1, 0), (1, 1, -1, 0), (1, 1, 1, 4)])
def test_a_load_out_of_range_is_refused(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(SettingsError, match="must be"):
        steady_load(*values)


@pytest.fixture(scope="module")
def planned() -> Plan:
    options = [engine(), engine(gpu="other", price=9.0), engine(gpu="slow", steps=StepPrior(StepModel(1, 0, 0), 0.0))]
    best, rest, lost = plan(options, LOAD, PROMISE, simulated=1, draws=2)
    return Plan("toy", LOAD, PROMISE, best, rest, lost, [])


@pytest.mark.slow
def test_a_plan_ranks_by_cost_and_gives_ranges(planned: Plan) -> None:
    (best,) = planned.planned
    assert planned.feasible
    assert "card" == best.engine.gpu
    assert best.ranges.itl_mean_s.low < best.ranges.itl_mean_s.middle < best.ranges.itl_mean_s.high
    assert ["other"] == [each.engine.gpu for each in planned.on_paper]
    assert ["1 x slow, bf16"] == [each.name for each in planned.rejected]


def test_what_may_miss_the_promise_ranks_behind_what_costs_more_and_keeps_it(planned: Plan) -> None:
    (sure,) = planned.planned
    risky = replace(sure, sure=PROMISE.attainment - 0.2)
    dear = replace(sure, candidate=replace(sure.candidate, replicas=sure.candidate.replicas + 5))

    assert PROMISE.attainment <= sure.sure
    assert [sure, dear, risky] == sorted([risky, dear, sure], key=lambda each: ranking(each, PROMISE, by_cost=True))


def test_money_is_not_compared_with_numbers_of_accelerators(capsys: pytest.CaptureFixture[str]) -> None:
    dear, slower = engine(price=50.0), engine(gpu="unpriced", price=None, tensor_parallel=4)
    found, _ = on_paper([slower, dear], LOAD, PROMISE)
    assert ["card", "unpriced"] == [each.engine.gpu for each in found]
    best, rest, lost = plan([slower, dear], LOAD, PROMISE, simulated=2, draws=1)
    assert ["card", "unpriced"] == [each.engine.gpu for each in best]
    show(Plan("toy", LOAD, PROMISE, best, rest, lost, []), Console(width=200))
    assert "Ranked by number of GPUs: not all of them have a price." in capsys.readouterr().out

    priced = [replace(slower, price=1.0), dear]
    assert ["unpriced", "card"] == [each.engine.gpu for each in on_paper(priced, LOAD, PROMISE)[0]]


def test_prices_go_by_the_names_of_accelerators() -> None:
    assert {"h100": 2.5, "a100-40": 1.0} == prices_of(["h100_sxm=2.5", "A100_40=1"])
    assert {"nvidia-h200": 3.0, "h100": 2.0} == prices_of(["h200=3", "h100=2"], "nvidia-h200")
    assert {"cpu-epyc": 0.5} == prices_of(["CPU-epyc=0.5"], "cpu-epyc")
    for hardware in (None, "cpu-xeon"):
        with pytest.raises(SettingsError, match=r"price: 'cpu-epyc' is no known accelerator; known: .*h100"):
            prices_of(["cpu-epyc=0.5"], hardware)


@pytest.mark.parametrize("words", [["--gpu", "h100"], ["--gpu", "h100,l4"]])
def test_a_price_of_what_is_not_looked_at_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "1", "--prompt-tokens", "64", "--output-tokens", "32", "--draws", "1", "--simulate", "1"]
    model = ["--model", "demo", "--no-store", *load]
    assert 2 == main(["plan", *model, *words, "--price", "a100-40=1", "--price", "h200=2"])
    looked_at = ", ".join([*words[1].split(","), "h200", "b200", "l40s"])
    said = " ".join(capsys.readouterr().err.split())
    assert f"penstock: price: a100-40 is not looked at, only {looked_at}" == said
    assert 0 == main(["plan", *model, *words, "--price", "h200=2"])


def test_cost_per_million_tokens_is_money_over_tokens(planned: Plan) -> None:
    (best,) = planned.planned
    hourly = 2.0 * best.candidate.gpus
    assert hourly / (4.0 * 3600 * 120) * 1e6 == pytest.approx(best.per_million_tokens(LOAD))


def page_of(found: Plan, folder: Path) -> str:
    write_html(folder / "plan.html", found, origin("penstock", ["plan"]))
    return " ".join((folder / "plan.html").read_text().split())


def test_a_plan_is_json_and_a_page_that_shows_what_the_terminal_shows(planned: Plan, tmp_path: Path) -> None:
    data = json.loads(json.dumps(planned.as_json()))
    assert {"low", "middle", "high"} == data["candidates"][0]["predicted"]["ttft_p99_s"].keys()
    page = page_of(replace(planned, currency="USD"), tmp_path)
    assert 3 == page.count('<svg viewBox="0 0 420')
    assert "://" not in page
    (best,) = planned.planned
    assert "Keeps the SLO" in page
    assert slo_words(planned.promise) in page
    assert f">{100 * best.sure:.1f} %<" in page
    assert f"{100 * best.worst:.1f} % at worst<" in page
    assert best.worst <= best.sure
    assert f"{money(best.per_million_tokens(LOAD), 'USD')}<" in page
    assert f"{money(best.candidate.hourly, 'USD')}<" in page
    for text in notes(planned):
        assert text in unescape(page)
    assert "penstock plan" in page


def test_an_infeasible_plan_has_a_page_that_says_so(tmp_path: Path) -> None:
    best, rest, lost = plan([engine()], LOAD, Promise(1.0, 0.001))
    page = page_of(Plan("toy", LOAD, Promise(1.0, 0.001), best, rest, lost, []), tmp_path)
    assert "Infeasible" in page
    assert lost[0].why in unescape(page)


def test_a_plan_loses_nothing_on_a_narrow_screen_and_its_names_are_no_markup(planned: Plan) -> None:
    console = Console(file=io.StringIO(), width=80)
    show(replace(planned, model="my [/model]"), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.startswith("my [/model], ")
    assert "…" not in text
    first = planned.as_json()["candidates"][0]
    assert f"{first['batch_limit']} of {first['step_tokens']}" in text


def test_infeasible_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    best, rest, lost = plan([engine()], LOAD, Promise(1.0, 0.001))
    nothing = Plan("toy", LOAD, Promise(1.0, 0.001), best, rest, lost, [])
    show(nothing, Console(width=200))
    assert not nothing.feasible
    assert "Infeasible" in capsys.readouterr().out


def test_the_infeasible_has_ways_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama-3.1-405b", "--gpu", "h100", "--rate", "0.5", "--state-dir", str(tmp_path)]
    assert 3 == main(["plan", *words, "--slo-itl", "0.2", "--tp", "8", "--json"])
    found = {each["change"]: each["gpus"] for each in json.loads(capsys.readouterr().out)["what_ifs"]}
    assert {"any tensor parallel size", "weights in fp8", "weights in int4", "h200", "b200", "l40s"} == found.keys()
    assert found["weights in fp8"] == 8
    assert found["l40s"] is None


@pytest.mark.slow
def test_other_choices_keep_the_tensor_parallel_size_and_the_kv_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*words: str) -> dict[str, tuple[int | None, str]]:
        model = ["--model", "llama-3.1-70b", "--rate", "1", "--slo-itl", "0.2", "--simulate", "1", "--draws", "1"]
        assert main(["plan", *model, "--state-dir", str(tmp_path), "--json", *words]) in (0, 3)
        changes = json.loads(capsys.readouterr().out)["what_ifs"]
        return {each["change"]: (each["gpus"], each["outcome"]) for each in changes}

    four = found("--tp", "4", "--kv-cache-dtype", "fp8")
    assert all("4 x" in outcome for gpus, outcome in four.values() if gpus is not None)
    none = found("--tp", "1")
    assert none["any tensor parallel size"][0] is not None
    assert all("1 x" in outcome for change, (gpus, outcome) in none.items() if gpus is not None and "any" not in change)


@pytest.mark.parametrize(
    "words",
    [
        ["--limit", "0"], ["--scale-rate", "0"], ["--tp", "0"], ["--draws", "0"], ["--simulate", "0"],
        ["--cold-start", "-1"], ["--html", "/no/such/folder/plan.html"], ["--attainment", "99"], ["--attainment", "1"],
        ["--attainment", "0"], ["--slo-ttft", "nan"], ["--slo-itl", "0"], ["--rate", "nan"], ["--spread", "-1"],
        ["--prompt-tokens", "0"], ["--output-tokens", "inf"], ["--rate", "1e300"], ["--prompt-tokens", "1e12"],
        ["--tp", "5000"], ["--draws", "100000"], ["--slo-ttft", "1e15"], ["--budget", "1e10"], ["--requests", "1e3"],
    ],
)  # fmt: skip
def test_wrong_numbers_and_folders_are_refused_before_anything_is_sized(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["plan", "--model", "demo", "--rate", "1", "--state-dir", str(tmp_path), *words])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert 2 == status
    said = capsys.readouterr().err
    assert words[0].removeprefix("--") in said
    assert words[1] in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--trace", "t.csv", "--rate", "5"],
            "rate: a trace has its own, got 5.0; see scale-rate, rate-factor and limit",
        ),
        (["--trace", "t.csv", "--lengths", "l.csv"], "lengths: a trace has its own, got l.csv"),
        (["--rate", "5", "--limit", "10"], "limit is for traces, got 10 without a trace"),
        (["--rate", "5", "--scale-rate", "2"], "scale-rate is for traces, got 2.0 without a trace"),
    ],
)
def test_flags_that_would_plan_for_another_load_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["plan", "--model", "demo", "--state-dir", str(tmp_path), *words])
    assert f"penstock: {said}" in capsys.readouterr().err


def held(candidate: Candidate, replicas: int) -> SimulatedCandidate:
    """A candidate as a simulation would have it."""
    one = Range(1.0, 1.0, 1.0)
    return SimulatedCandidate(replace(candidate, replicas=replicas), Ranges(*[one] * 6), "", True, 1.0)


def test_what_ifs_change_one_thing_each() -> None:
    shape, h100, h200 = load_shape("llama-3.1-70b"), load_gpu("h100"), load_gpu("h200")
    prices = {"h100": 2.0, "h200": 3.0}
    load = steady_load(5.0, 1000, 250)
    listed = partial(engines, shape, prices=prices)
    base = on_paper(listed([h100], ["bf16"])[0], load, Promise())[0][0]
    planned = [held(base, base.replicas)]
    found = what_ifs(listed, planned, load, Promise(), precisions=["bf16", "fp8"], gpus=[h100, h200])
    assert ["weights in fp8", "h200", "ITL SLO of 150 ms", "spot accelerators at 40% of the price"] == [
        each.change for each in found
    ]
    assert found[0].hourly is not None
    assert base.hourly is not None
    assert found[0].hourly < base.hourly


def test_what_ifs_do_not_contradict_what_was_simulated() -> None:
    """The simulation needed three times the replicas of the paper. So do the rough ones, a looser SLO never needs more,
    and what is in the table is taken from there.
    """
    shape, h100, h200, b200 = (load_shape("llama-3.1-70b"), *(load_gpu(each) for each in ("h100", "h200", "b200")))
    load = steady_load(20.0, 1000, 250)
    listed = partial(engines, shape, prices={})
    base, other = (on_paper(listed([gpu], ["fp8"])[0], load, Promise())[0][0] for gpu in (h100, h200))
    paper = on_paper(listed([b200], ["fp8"])[0], load, Promise())[0][0]
    planned = [held(base, 3 * base.replicas), held(other, 7 * other.replicas)]
    found = {
        each.change: each
        for each in what_ifs(listed, planned, load, Promise(), precisions=["fp8"], gpus=[h100, h200, b200])
    }
    assert (7 * other.gpus, True) == (found["h200"].gpus, found["h200"].simulated)
    assert found["b200"].gpus is not None
    assert paper.gpus < found["b200"].gpus <= 3 * paper.gpus + 8
    assert found["ITL SLO of 150 ms"].gpus is not None
    assert found["ITL SLO of 150 ms"].gpus <= 3 * base.gpus


def test_what_ifs_shrink_as_the_simulation_did() -> None:
    """A simulation that needed fewer replicas than the paper said stood beside more of a better accelerator. None is
    below what serves the rate at all.
    """
    shape, h100, h200 = load_shape("qwen3-8b"), load_gpu("h100"), load_gpu("h200")
    load = steady_load(10_000.0, 1000, 250)
    listed = partial(engines, shape, prices={}, parallel=[1])
    base, other = (on_paper(listed([gpu], ["bf16"])[0], load, Promise())[0][0] for gpu in (h100, h200))
    for part, least in ((0.9, 0), (0.2, math.ceil(load.rate / other.operation.rate))):
        simulated = math.ceil(part * base.replicas)
        found = {
            each.change: each.gpus
            for each in what_ifs(listed, [held(base, simulated)], load, Promise(), precisions=[], gpus=[h100, h200])
        }
        assert found["h200"] == max(least, math.ceil(simulated / base.replicas * other.replicas))


def test_what_ifs_are_scaled_as_replicas_of_their_size_were() -> None:
    """One L40S was said to be enough in bursts that were simulated as too much for one H100, and not for a pair."""
    shape, h100, l40s = load_shape("qwen3-8b"), load_gpu("h100"), load_gpu("l40s")
    load = steady_load(2.0, 1000, 250)
    listed = partial(engines, shape, prices={})
    two, one = (on_paper(listed([h100], ["bf16"], parallel=[ranks])[0], load, Promise())[0][0] for ranks in (2, 1))
    assert (1, 1) == (two.replicas, one.replicas)
    (found,) = (
        each
        for each in what_ifs(listed, [held(two, 1), held(one, 2)], load, Promise(), precisions=[], gpus=[h100, l40s])
        if each.change == "l40s"
    )
    assert (2, "2 replicas of 1 x l40s, bf16") == (found.gpus, found.outcome)
