"""What a budget serves, offline work by a deadline, several models on one fleet, vectors, and plans as settings."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from cluster.cli.main import main
from cluster.control.step_model import StepModel
from cluster.errors import SettingsError
from cluster.settings.pools import PoolSettings, TaskKind
from loadtest.plan.engine.steps import StepPrior
from loadtest.plan.goals.budget import affordable, served, why_not
from loadtest.plan.goals.chart import values_of
from loadtest.plan.goals.fleet import also, fleets
from loadtest.plan.goals.offline import PATIENT, offline
from loadtest.plan.goals.settings import pool_of, write
from loadtest.plan.option import Engine, Layout, Operation, Promise, operate
from loadtest.plan.report import Plan, engine_flags, model_words, show
from loadtest.plan.search import Candidate, SimulatedCandidate
from loadtest.plan.traffic import steady_load
from loadtest.plan.trial import Range, Ranges, TrialFigures

LOAD = steady_load(1.0, 100, 40, 0.2)
PROMISE = Promise(2.0, 0.1, 0.97)
ENGINE = Engine(
    model="toy",
    gpu="card",
    tensor_parallel=2,
    precision="bf16",
    steps=StepPrior(StepModel(0.02, 2e-5, 1e-8), 0.0),
    error=0.05,
    source="profile",
    kv_tokens=20_000,
    step_limits=(2048, 16),
    context=4096,
    price=2.0,
)


def run(engine: Engine = ENGINE) -> Operation:
    found = operate(engine, LOAD, PROMISE)
    assert isinstance(found, Operation)
    return found


def test_a_budget_buys_whole_replicas() -> None:
    (found,) = affordable([ENGINE], LOAD, PROMISE, 13.0)
    assert (3, 6, 12.0) == (found.replicas, found.gpus, found.hourly)
    assert [] == affordable([ENGINE], LOAD, PROMISE, 3.9)
    assert ["2 x card, bf16: one replica costs 4 per hour"] == why_not([ENGINE], LOAD, PROMISE, 3.9)
    with pytest.raises(SettingsError, match="budget: card has no price above 0; give --price card=NUMBER"):
        affordable([replace(ENGINE, price=None)], LOAD, PROMISE, 13.0)


def test_an_engine_that_keeps_no_rate_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was left out of the answer without a word."""
    none = TrialFigures(9.0, 9.0, 9.0, 9.0, 0.0, 0.0)
    monkeypatch.setattr("loadtest.plan.goals.budget.try_out", lambda *_, **__: none)
    words = ["--model", "qwen3-8b", "--gpu", "h100", "--tp", "1", "--price", "h100=2", "--budget", "4", "--no-store"]
    assert 3 == main(["plan", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ([], ["1 x h100, bf16: no rate that was tried keeps the SLO"]) == (found["served"], found["rejected"])


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "order"), [([], "the fewest GPUs first"), (["--price", "h100=2"], "the cheapest")])
def test_offline_work_is_listed_by_cost_where_there_are_prices(
    flags: list[str], order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without prices the table called the fewest accelerators the cheapest."""
    words = ["--model", "qwen3-8b", "--gpu", "h100", "--tp", "1", "--requests", "500", "--deadline", "1"]
    assert 0 == main(["plan", *words, *flags])
    assert f"500 requests in 1 hours, {order}" in capsys.readouterr().out


@pytest.mark.slow
def test_outputs_of_one_token_have_no_gaps_that_bound_batches(capsys: pytest.CaptureFixture[str]) -> None:
    """Batches of one kept gaps short that nobody waits for, and took twice the accelerators."""
    words = [
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--tp",
        "1",
        "--rate",
        "5",
        "--draws",
        "1",
        "--no-store",
        "--json",
    ]
    assert 0 == main(["plan", *words, "--output-tokens", "1", "--spread", "0"])
    found = json.loads(capsys.readouterr().out)
    assert (None, 1) == (found["slo"]["itl_p95_s"], found["candidates"][0]["gpus"])
    assert found["candidates"][0]["batch_limit"] > 1


@pytest.mark.slow
def test_more_money_serves_more_and_never_more_than_full_batches() -> None:
    rates = []
    for budget in (4.0, 12.0):
        (candidate,) = affordable([ENGINE], LOAD, PROMISE, budget)
        found = served(candidate, LOAD, PROMISE)
        assert 0 < found.rate <= candidate.replicas * candidate.operation.rate
        rates.append(found.rate)
    assert 2.0 < rates[1] / rates[0] < 4.0


@pytest.mark.slow
def test_offline_work_is_done_in_time_by_as_few_as_can() -> None:
    full = operate(ENGINE.at(0.9), LOAD, PATIENT)
    assert isinstance(full, Operation)
    (plan,), lost = offline([ENGINE], LOAD, 100_000, 3600.0, 0.9)
    assert [] == lost
    assert plan.seconds <= 3600.0
    assert plan.candidate.replicas == pytest.approx(100_000 / full.rate / 3600.0, rel=0.25, abs=1)
    assert plan.cost is not None
    assert plan.candidate.replicas * 2 * 2.0 * plan.seconds / 3600 == pytest.approx(plan.cost)
    (sooner,), _ = offline([ENGINE], LOAD, 100_000, 1800.0, 0.9)
    assert plan.candidate.replicas < sooner.candidate.replicas
    assert [] == offline([ENGINE], LOAD, 10, 0.1, 0.9)[0]


def candidate(engine: Engine, replicas: int) -> SimulatedCandidate:
    one = Range(1.0, 1.0, 1.0)
    return SimulatedCandidate(Candidate(engine, run(engine), replicas), Ranges(*[one] * 6), "", True, 1.0)


def test_a_fleet_is_of_one_kind_and_serves_every_model() -> None:
    cheap, dear = replace(ENGINE, gpu="cheap", price=1.0), replace(ENGINE, gpu="dear", price=3.0)
    planned = {
        "first": [candidate(cheap, 4), candidate(dear, 1)],
        "second": [candidate(dear, 2), candidate(cheap, 2)],
        "third": [candidate(dear, 1), replace(candidate(cheap, 1), holds=False)],
    }
    (only,) = fleets(planned)
    assert ("dear", 8, 24.0) == (only.gpu, only.gpus, only.hourly)
    both = fleets({name: planned[name] for name in ("first", "second")})
    assert [("cheap", 12.0), ("dear", 18.0)] == [(each.gpu, each.hourly) for each in both]


def test_a_fleet_tells_why_an_engine_is_not_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Engines that no number of replicas makes good enough were told nowhere, and the JSON told no reason at all."""
    none = TrialFigures(9.0, 9.0, 9.0, 9.0, 0.0, 0.0)
    monkeypatch.setattr("loadtest.plan.search.try_out", lambda *_, **__: none)
    monkeypatch.setattr("loadtest.plan.trial.try_out", lambda *_, **__: none)
    words = ["--model", "qwen3-8b", "--rate", "1", "--gpu", "h100", "--tp", "1", "--also", "llama-3.1-8b,1,900000,9"]
    assert 3 == main(["plan", *words, "--draws", "1", "--no-store", "--json"])
    found = json.loads(capsys.readouterr().out)
    first, second = found["rejected"]
    assert [] == found["fleets"]
    assert first.startswith("qwen3-8b: 1 x h100, bf16: TTFT SLO: no number up to ")
    assert second.startswith("llama-3.1-8b: 1 x h100, bf16: the longest request has ")


def test_a_rate_of_another_model_has_a_bound() -> None:
    with pytest.raises(SettingsError, match=r"also: the rate of qwen3-8b must be at most 1000000, got 1e\+300"):
        also("qwen3-8b,1e300,500,200", 0.5)


@pytest.mark.parametrize("text", ["qwen3-8b", "qwen3-8b,1,2", "qwen3-8b,a,b,c"])
def test_another_model_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="also must be MODEL,RATE,PROMPT,OUTPUT"):
        also(text, 0.5)


def test_a_fleet_needs_a_first_model_and_names_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["plan", "--rate", "1", "--also", "qwen3-8b,1,2,3", "--no-store"])
    assert "model: must be given; also names further ones" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SettingsError, match="also must begin with a model, got ',1,2,3'"):
        also(",1,2,3", 0.5)
    with pytest.raises(SettingsError, match="also: qwen3-8b: rate must be above 0, got -4"):
        also("qwen3-8b,-4,500,200", 0.5)


def test_a_plan_is_a_pool_and_values_of_the_chart(tmp_path: Path) -> None:
    planned = Candidate(replace(ENGINE, precision="fp8", layout=Layout(pipeline=2)), run(), 3)
    pool = pool_of(planned, PROMISE, "Qwen/Qwen3-32B", cold_start_s=120.0)
    first, second = write(tmp_path / "out", "Qwen/Qwen3-32B", pool, "h100")
    read = tomllib.loads(first.read_text())["pools"]["qwen3-32b"]
    settings = PoolSettings.model_validate(read)
    assert (3, 2, 2) == (settings.replicas, settings.tensor_parallel_size, settings.pipeline_parallel_size)
    assert ("fp8", 16) == (settings.vllm.quantization, settings.vllm.max_num_seqs)
    assert (0.1, 2.0) == (settings.slo.standard.itl_p95_s, settings.slo.interactive.ttft_p99_s)
    assert (1, 6) == (settings.autoscale.min_replicas, settings.autoscale.max_replicas)
    values = yaml.safe_load(second.read_text())
    assert values_of("qwen3-32b", pool, "h100") == values
    workers = values["pools"]["qwen3-32b"]["workers"]
    assert (2, 12) == (workers["min"], workers["max"])
    # The chart refuses a pool without. A pod has one stage of two accelerators.
    assert {"cpu": "8", "memory": "128Gi"} == workers["resources"]["requests"]
    schema = json.loads(Path("k8s/chart/values.schema.json").read_text(encoding="utf-8"))
    pools = schema["properties"]["pools"]["additionalProperties"]["properties"]["workers"]
    assert set(pools["required"]) <= set(workers)


def test_a_plan_tells_engines_the_cache_and_the_floats_that_it_took() -> None:
    """With a cache of 16 bits half of the sequences would fit, and a T4 multiplies no bfloat16."""
    planned = Candidate(replace(ENGINE, gpu="t4", kv_element_bytes=1.0), run(), 1)
    settings = PoolSettings.model_validate(pool_of(planned, PROMISE, "Qwen/Qwen3-32B"))
    assert ("fp8", "float16") == (settings.vllm.kv_cache_dtype, settings.vllm.dtype)
    assert "--kv-cache-dtype fp8 --dtype half" in engine_flags(planned, LOAD)
    assert "dtype" not in engine_flags(Candidate(ENGINE, run(), 1), LOAD)


@pytest.mark.parametrize(
    ("kv_tokens", "longest", "context"),
    [(20_000, 1000, None), (4000, 1000, 3600), (4000, 3900, 3900), (4500, 1000, 4050), (4500, 4096, 4096)],
)
def test_an_engine_has_a_context_that_its_cache_has_room_for(kv_tokens: int, longest: int, context: int | None) -> None:
    """Engines start with no other: Llama-3.1-8B on one L4 has room for a quarter of its 131,072 tokens."""
    planned, load = Candidate(replace(ENGINE, kv_tokens=kv_tokens), run(), 1), replace(LOAD, longest=longest)
    settings = PoolSettings.model_validate(pool_of(planned, PROMISE, "Qwen/Qwen3-32B", longest=longest))
    assert context == settings.vllm.max_model_len
    assert (f"--max-model-len {context}" in engine_flags(planned, load)) is (context is not None)


def test_an_engine_is_told_of_a_context_that_it_would_not_take_by_itself() -> None:
    """Phi-4-mini takes 4,096 tokens where nobody tells it more, and would refuse prompts that were planned for."""
    engine = replace(ENGINE, kv_tokens=300_000, context=131_072, untold_context=4096)
    assert (None, 9000) == (engine.context_for(4000), engine.context_for(9000))


def test_an_engine_is_told_to_quantise_what_is_published_in_16_bits() -> None:
    """The settings said so, and the flags on the page and in the JSON did not."""
    planned = Candidate(replace(ENGINE, precision="fp8", native="bf16"), run(), 1)
    assert "--quantization fp8" in engine_flags(planned, LOAD)
    for native in ("fp8", ""):
        published = replace(planned, engine=replace(planned.engine, native=native))
        assert "--quantization" not in engine_flags(published, LOAD)


@pytest.mark.slow
def test_a_plan_tells_of_a_context_that_is_cut_and_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "Qwen/Qwen3-32B", "--gpu", "h100", "--tp", "1", "--rate", "0.1", "--draws", "1", "--no-store"]
    assert 0 == main(["plan", *words, "--json", "--apply", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    room = int(0.9 * found["candidates"][0]["kv_tokens"])
    assert room < 40_960
    assert f"--max-model-len {room}" in found["candidates"][0]["engine_flags"]
    assert room == tomllib.loads((tmp_path / "pool.toml").read_text())["pools"]["qwen3-32b"]["vllm"]["max_model_len"]
    assert {"version", "command", "machine", "at"} == set(found["origin"])
    assert 0 == main(["plan", *words])
    told = " ".join(capsys.readouterr().out.split())
    assert f"Context of 1 x h100, bf16: {room:,} tokens (--max-model-len) of the model's 40,960" in told


@pytest.mark.parametrize(
    ("model", "task"),
    [("Qwen/Qwen3-Embedding-8B", TaskKind.EMBED), ("Qwen/Qwen3-8B", TaskKind.EMBED), ("BAAI/bge-m3", TaskKind.AUTO)],
)
def test_a_plan_for_vectors_is_a_pool_that_embeds(model: str, task: TaskKind) -> None:
    """A model that can generate too would do that, and refuse each text. One that only reads tells what it does."""
    planned, promise = Candidate(ENGINE, run(), 1), Promise(2.0, math.inf)
    assert task is PoolSettings.model_validate(pool_of(planned, promise, model, vectors=True)).task
    assert TaskKind.AUTO is PoolSettings.model_validate(pool_of(planned, promise, model)).task
    assert engine_flags(planned, replace(LOAD, vectors=True)).startswith("--runner pooling ")
    assert "--runner" not in engine_flags(planned, LOAD)


@pytest.mark.parametrize(
    ("model", "changed", "said"),
    [
        ("qwen3-32b", {}, "'qwen3-32b' is a short name; give the hub id"),
        ("llama-3.1-8b-instruct", {}, "'llama-3.1-8b-instruct' is a short name"),
        ("DeepSeek-R1-0528", {}, "'DeepSeek-R1-0528' is a short name"),
        ("Qwen/Qwen3-32B", {"layout": Layout(data=8)}, "no setting for attention data parallelism"),
        ("Qwen/Qwen3-32B", {"precision": "int4"}, "is published in bf16, and no engine makes int4 of it"),
    ],
)
def test_what_a_pool_cannot_be_is_said(model: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        pool_of(Candidate(replace(ENGINE, **changed), run(), 1), PROMISE, model)


def test_an_autoscaler_may_go_as_far_as_settings_take() -> None:
    pool = pool_of(Candidate(ENGINE, run(), 600), PROMISE, "Qwen/Qwen3-32B", cold_start_s=120.0)
    assert 1024 == pool["autoscale"]["max_replicas"]


def test_what_is_beyond_the_bounds_of_a_pools_settings_is_named() -> None:
    planned = Candidate(ENGINE, run(), 2000)
    slow = replace(PROMISE, itl_p95_s=100.0)
    said = r"^apply: no pool can be so: replicas: must be at most 1024, got 2000; "
    with pytest.raises(SettingsError, match=said) as caught:
        pool_of(planned, slow, "Qwen/Qwen3-32B")
    assert "slo.standard.itl_p95_s: must be at most 60, got 100.0" in str(caught.value)


def test_a_file_is_no_model_for_an_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"apply: .*config.json' is a file; give the folder that the engine shall"):
        pool_of(Candidate(ENGINE, run(), 1), PROMISE, str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "10", "--rate", "3"], "rate: with a budget it is what the plan looks for, got 3"),
        (["--requests", "10"], "requests and deadline belong together"),
        (["--deadline", "1", "--requests", "10", "--rate", "2"], "rate: offline work has none, got 2"),
        (["--budget", "10", "--also", "x,1,2,3"], "budget and also: give one of them"),
        (["--budget", "10", "--apply", "out"], "apply has no effect with budget"),
        (["--embeddings", "--rate", "3", "--slo-tpot", "0.1"], "slo-tpot: embeddings have no output tokens"),
        (
            ["--embeddings", "--rate", "3", "--also", "llama-3.1-8b,1,2,200"],
            "also: embeddings have no output tokens, so OUTPUT must be 1, got 200 of llama-3.1-8b",
        ),
        (["--rate", "3", "--pp", "2", "--dp", "8"], "pp and dp: give one of them"),
        (["--budget", "9", "--price", "h100=2", "--price", "h200=3"], "price: h200 is not looked at, only h100"),
        (["--requests", "9", "--deadline", "1", "--price", "h200=3"], "price: h200 is not looked at, only h100"),
        (["--rate", "3", "--also", "llama-3.1-8b,1,2,3", "--price", "h200=3"], "price: h200 is not looked at"),
        (["--rate", "3", "--points-of", "h100,1,bf16"], "points-of says what points are of; give points"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["plan", "--model", "qwen3-8b", "--no-store", *words])
    assert said in " ".join(capsys.readouterr().err.split())


def test_an_encoder_needs_the_flag_for_embeddings(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["plan", "--model", "BAAI/bge-m3", "--no-store", "--rate", "3"])
    assert "reads texts and generates none; add --embeddings" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_embeddings_are_planned_by_their_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "BAAI/bge-m3", "--embeddings", "--gpu", "l4", "--tp", "1", "--rate", "50", "--slo-ttft", "0.5"]
    assert 0 == main(
        ["plan", *words, "--prompt-tokens", "300", "--simulate", "1", "--draws", "1", "--no-store", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert (1.0, None, None) == (found["load"]["output_tokens"], found["slo"]["itl_p95_s"], found["slo"]["tpot_s"])
    assert found["candidates"][0]["attainment_when_sure"] >= 0.99
    assert "--runner pooling" in found["candidates"][0]["engine_flags"]
    assert not any("SLO" in each["change"] for each in found["what_ifs"])


@pytest.mark.slow
def test_other_goals_say_what_they_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """The model, the requests, the SLO and the confidence, as a plan has them."""
    words = ["plan", "--gpu", "h100", "--tp", "2", "--price", "h100=2.5", "--no-store"]
    assert 0 == main([*words, "--model", "Qwen/Qwen3-32B-AWQ", "--requests", "1000", "--deadline", "1"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Qwen3-32B-AWQ (planned as qwen3-32b), requests of 1000 + 250 tokens; sure to 90 %")
    assert "What is known of the engines' speed: prior" in said


@pytest.mark.parametrize("lengths", [["--prompt-tokens", "100000", "--output-tokens", "1000"], ["--lengths", "sample"]])
def test_other_goals_say_what_is_special_about_their_requests(
    lengths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A cache that serves nine tenths of each prompt, and a narrower spread, were told nowhere."""
    words = ["plan", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "h100", "--price", "h100=2", "--budget", "1"]
    assert 3 == main([*words, *lengths, "--prefix-hit", "0.9", "--no-store"])
    said = " ".join(capsys.readouterr().out.split())
    assert "tokens, 90% of each prompt in the prefix cache" in said
    assert ("as the context of 131,072 allows; TTFT" in said) == ("--prompt-tokens" in lengths)


def test_a_model_is_told_as_asked_and_as_known() -> None:
    assert "qwen3-32b" == model_words("Qwen/Qwen3-32B", "qwen3-32b")
    assert "bge-m3 (planned as xlm-roberta-large)" == model_words("BAAI/bge-m3", "xlm-roberta-large")
    assert "toy" == model_words("", "toy")
    assert "llama" == model_words(".", "llama")


def test_vectors_have_no_gaps_between_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    silent, load = Promise(2.0, math.inf, 0.97), steady_load(1.0, 100, 1, 0.2)
    # Texts of one token, such as those of a classification, are texts.
    show(Plan("toy", load, PROMISE, [candidate(ENGINE, 1)], [], [], []), Console(width=200))
    assert "tokens/s" in capsys.readouterr().out
    show(Plan("toy", replace(load, vectors=True), silent, [candidate(ENGINE, 1)], [], [], []), Console(width=200))
    head = capsys.readouterr().out
    assert "vectors/s" in head
    assert "ITL" not in head
    show(Plan("toy", LOAD, PROMISE, [candidate(ENGINE, 1)], [], [], []), Console(width=200))
    assert "ITL p95 ms" in capsys.readouterr().out
