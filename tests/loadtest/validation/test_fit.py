"""The fit finds the model that made a run, and files that are no run are refused by name."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.control.step_model import Experts, StepModel
from cluster.errors import SettingsError, TraceError
from cluster.settings import SimSettings
from loadtest.simulate.engine.replay import replay
from loadtest.simulate.engine.steps import ExpertTimes, StepTimes
from loadtest.traces import TraceRequest
from loadtest.validation.errors import errors
from loadtest.validation.fit import fit, replayed
from loadtest.validation.model import EngineModel, expect
from loadtest.validation.recorded import FilledIn, read_run

TRUE = StepTimes(0.012, 60e-6, 0.15e-6)
ENGINE = SimSettings(kv_tokens=40_000, max_num_seqs=32, max_num_batched_tokens=1024, max_model_len=8_192)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of an engine whose model is known."""
    rnd = random.Random(5)
    trace = [TraceRequest(n, 0.15 * n, rnd.randint(20, 3_000), rnd.randint(1, 300)) for n in range(120)]
    record(tmp_path, trace, ENGINE, TRUE)
    return tmp_path


def record(folder: Path, trace: list[TraceRequest], engine: SimSettings, times: StepTimes) -> None:
    """Write what an engine of this model does with a trace as a recorded run."""
    done = replay(trace, engine, times)
    rows = [
        {
            "input_toks": item.request.prompt_tokens,
            "output_toks": item.request.output_tokens,
            "queued_ts": 500 + item.arrived_at,
            "first_token_ts": 500 + (item.first_token_at or 0.0),
            "last_token_ts": 500 + item.last_token_at,
        }
        for item in done.items
    ]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kwargs = {
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": engine.max_model_len,
    }
    meta = {"engine_kwargs": kwargs, "kv_cache": {"num_gpu_blocks": engine.kv_tokens // 16, "block_size": 16}}
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.slow
def test_the_model_of_a_run_is_found_again(folder: Path) -> None:
    run = read_run(folder)
    expected = expect(run)
    model = fit(run, expected, 1, 60)
    found = model.times
    assert TRUE.base_s == pytest.approx(found.base_s, rel=0.02)
    assert TRUE.per_token_s == pytest.approx(found.per_token_s, rel=0.02)
    assert TRUE.per_kv_token_s == pytest.approx(found.per_kv_token_s, rel=0.1)
    assert model.overhead_s < 0.001
    assert model.overhead_steps < 0.1

    rest = errors(run, expected, model, range(60, 120))
    assert abs(rest.ttft_mean_error) < 0.03
    assert rest.e2e_request_error < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_model_of_a_run_is_found_far_from_where_the_search_begins(tmp_path: Path, seed: int) -> None:
    """At the edge of what the engine carries a small change of the model moves the whole schedule."""
    true = StepTimes(0.03, 150e-6, 0.3e-6)
    engine = SimSettings(kv_tokens=100_000, max_num_seqs=64, max_num_batched_tokens=8_192, max_model_len=8_192)
    rnd = random.Random(seed)
    trace, at = [], 0.0
    for number in range(200):
        trace.append(TraceRequest(number, at, rnd.randint(20, 3_000), rnd.randint(1, 300)))
        at += rnd.expovariate(2)
    record(tmp_path, trace, engine, true)
    run = read_run(tmp_path)

    expected = expect(run)
    rest = errors(run, expected, fit(run, expected, 1, 100), range(100, 200))
    assert abs(rest.ttft_mean_error) < 0.08
    assert abs(rest.e2e_mean_error) < 0.04


def test_errors_are_positive_where_the_prediction_is_too_slow(folder: Path) -> None:
    run = read_run(folder)
    expected = expect(run)
    true = StepModel(TRUE.base_s, TRUE.per_token_s, TRUE.per_kv_token_s)
    slow = errors(run, expected, EngineModel(true.times(1.2)), range(120))
    assert slow.e2e_mean_error > 0.15
    assert slow.tpot_mean_error > 0.15
    assert slow.itl_mean_error > 0.15
    exact = errors(run, expected, EngineModel(true), range(120))
    assert exact.itl_mean_error == pytest.approx(0.0, abs=1e-9)
    assert exact.tpot_p99_error == pytest.approx(0.0, abs=1e-9)
    assert exact.ttft_p99_error == pytest.approx(0.0, abs=1e-9)
    assert exact.ttft_request_error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("meta.json", "{", "is no JSON"),
        ("meta.json", '{"kv_cache": {}}', "engine_kwargs: is missing"),
        ("meta.json", "[]", r"meta\.json: must be one JSON object, got \[\]"),
        ("requests.jsonl", "\n{", r"requests\.jsonl: line 2: is no JSON"),
        ("requests.jsonl", '{"queued_ts": 1}', r"requests\.jsonl: line 1: input_toks: is missing"),
        ("requests.jsonl", "\n[1]", r"requests\.jsonl: line 2: must be one JSON object, got \[1\]"),
        ("requests.jsonl", "", r"requests\.jsonl: has no requests"),
    ],
)
def test_what_is_no_run_is_refused(folder: Path, file: str, text: str, words: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(TraceError, match=words):
        read_run(folder)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("input_toks", 0, "must be a whole number of at least 1, got 0"),
        ("output_toks", 1.5, "must be a whole number of at least 1, got 1.5"),
        ("output_toks", -1, "must be a whole number of at least 1, got -1"),
        ("queued_ts", None, "must be a number of at least 0, got None"),
        ("queued_ts", math.inf, "must be a number of at least 0, got inf"),
        ("first_token_ts", math.nan, "must be a number of at least 0, got nan"),
        ("first_token_ts", None, "must be a number of at least 0, got None"),
        ("first_token_ts", 499.0, r"must be after queued_ts = 500\.3, got 499\.0"),
        ("last_token_ts", 500.31, r"must not be before first_token_ts = 50\d\.\d+, got 500\.31"),
    ],
)
def test_a_wrong_field_of_a_request_is_named(folder: Path, field: str, value: object, words: str) -> None:
    """Some gave errors that are no numbers, some were cut to a whole number, some taken as they were."""
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[2][field] = value
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TraceError, match=rf"requests\.jsonl: line 3: {field}: {words}$"):
        read_run(folder)


@pytest.mark.parametrize(
    ("section", "field", "value", "words"),
    [
        ("engine_kwargs", "max_num_seqs", None, "max_num_seqs: is missing; say it with --max-num-seqs"),
        (
            "engine_kwargs",
            "max_num_batched_tokens",
            None,
            "max_num_batched_tokens: is missing; say it with --max-num-batched-tokens",
        ),
        ("engine_kwargs", "max_num_seqs", 9_999, "max_num_seqs: must be at most 4096, got 9999"),
        ("engine_kwargs", "max_num_batched_tokens", 8, "max_num_batched_tokens: must be at least max_num_seqs = 32"),
        ("kv_cache", "block_size", 0, "block_size: must be a whole number of at least 1, got 0"),
        ("kv_cache", "num_gpu_blocks", "many", "num_gpu_blocks: must be a whole number of at least 1, got 'many'"),
    ],
)
def test_a_wrong_field_of_an_engine_is_named(folder: Path, section: str, field: str, value: object, words: str) -> None:
    path = folder / "meta.json"
    meta = json.loads(path.read_text())
    meta[section][field] = value
    path.write_text(json.dumps(meta))
    with pytest.raises(TraceError, match=rf"meta\.json: {words}"):
        read_run(folder)
    path.write_text(json.dumps({**meta, section: [1]}))
    with pytest.raises(TraceError, match=rf"meta\.json: {section}: must be a JSON object, got \[1\]"):
        read_run(folder)


def test_a_byte_order_mark_is_no_error(folder: Path) -> None:
    for name in ("meta.json", "requests.jsonl"):
        (folder / name).write_text((folder / name).read_text(), encoding="utf-8-sig")
    assert 120 == len(read_run(folder).trace)


def test_a_request_that_the_kv_cache_never_held_is_refused(folder: Path) -> None:
    """The engine would wait for room for ever."""
    meta = json.loads((folder / "meta.json").read_text())
    requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    largest = max(each["input_toks"] + each["output_toks"] for each in requests)

    def hold(tokens: int) -> None:
        cache = {"num_kv_tokens": tokens, "block_size": 1}
        (folder / "meta.json").write_text(json.dumps({**meta, "kv_cache": cache}))

    hold(largest - 1)
    run = read_run(folder)
    assert all(item.last_token_at for item in replay(run.trace, run.engine, TRUE).items)
    hold(largest - 2)
    with pytest.raises(TraceError, match=rf"need {largest - 1} tokens of KV cache, but meta.json has {largest - 2}"):
        read_run(folder)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"meta\.json: No such file"):
        read_run(tmp_path)


def change(folder: Path, **sections: object) -> None:
    """Change sections of a run's meta.json. None removes one."""
    path = folder / "meta.json"
    meta = {**json.loads(path.read_text()), **sections}
    path.write_text(json.dumps({name: each for name, each in meta.items() if each is not None}))


def test_a_run_of_an_older_recorder_is_read_with_what_a_flag_tells(folder: Path) -> None:
    """It has no kv_cache, and no number for max_model_len."""
    kwargs = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
    change(folder, kv_cache=None, engine_kwargs={**kwargs, "max_model_len": None})
    with pytest.raises(TraceError, match=r"kv_cache: is missing; say how many tokens fit with --kv-tokens"):
        read_run(folder)
    run = read_run(folder, FilledIn(kv_tokens=50_000))
    assert (50_000, 16) == (run.engine.kv_tokens, run.engine.block_size)
    longest = max(each.prompt_tokens + each.output_tokens for each in run.trace)
    assert longest == run.engine.max_model_len
    assert FilledIn(50_000) == run.told
    assert 9_000 == read_run(folder, FilledIn(50_000, 9_000)).engine.max_model_len


def test_a_cache_that_a_recorder_knew_nothing_of_is_missing(folder: Path) -> None:
    path = folder / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "kv_cache": None}))
    with pytest.raises(TraceError, match=r"kv_cache: is missing; say how many tokens fit with --kv-tokens"):
        read_run(folder)
    assert 50_000 == read_run(folder, FilledIn(kv_tokens=50_000)).engine.kv_tokens


@pytest.mark.parametrize("left", ["missing", "null"])
def test_limits_that_were_left_to_the_engine_are_told_by_flags(folder: Path, left: str) -> None:
    kwargs = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
    limits = ("max_num_seqs", "max_num_batched_tokens")
    rest = {name: value for name, value in kwargs.items() if name not in limits}
    change(folder, engine_kwargs=rest if left == "missing" else {**rest, **dict.fromkeys(limits)})
    told = FilledIn(max_num_seqs=16, max_num_batched_tokens=512)
    run = read_run(folder, told)
    assert (16, 512, told) == (run.engine.max_num_seqs, run.engine.max_num_batched_tokens, run.told)


def test_what_a_run_tells_itself_is_not_filled_in(folder: Path) -> None:
    run = read_run(folder, FilledIn(50_000, 9_000, 16, 512))
    assert (FilledIn(), 40_000, 8_192) == (run.told, run.engine.kv_tokens, run.engine.max_model_len)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pipeline_parallel_size", 2, "must be 1, because stages of a pipeline are not simulated, got 2"),
        ("data_parallel_size", 0, "must be a whole number of at least 1, got 0"),
        ("enable_expert_parallel", "yes", "must be true or false, got 'yes'"),
    ],
)
def test_a_split_that_is_not_simulated_is_refused(folder: Path, name: str, value: object, words: str) -> None:
    """A run of two ranks was read as one engine, and nothing said so."""
    kwargs = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
    change(folder, engine_kwargs={**kwargs, name: value})
    with pytest.raises(TraceError, match=rf"{name}: {words}"):
        read_run(folder)


def test_ranks_with_experts_are_one_engine_with_the_limits_of_all(folder: Path) -> None:
    kwargs = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
    change(folder, engine_kwargs={**kwargs, "data_parallel_size": 2, "enable_expert_parallel": True})
    run = read_run(folder)
    expected = expect(run)
    limits = expected.limits(run.engine)
    assert (1, 2) == (expected.lanes, expected.merged)
    assert (64, 2_048, 80_000) == (limits.max_num_seqs, limits.max_num_batched_tokens, limits.kv_tokens)


def test_ranks_of_a_dense_model_are_engines_beside_each_other(folder: Path) -> None:
    """With twice the engines nothing waits as long as on one."""
    kwargs = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
    change(folder, engine_kwargs={**kwargs, "data_parallel_size": 2, "model": "meta-llama/Llama-3.1-8B"})
    run = read_run(folder)
    expected = expect(run, "h100")
    done = replayed(run, expected, EngineModel(StepModel(TRUE.base_s, TRUE.per_token_s, TRUE.per_kv_token_s)))
    assert (2, 1) == (expected.lanes, expected.merged)
    assert {0, 1} == set(done.served_by)
    assert len(run.trace) == sum(1 for item in done.items if item.last_token_at)
    one = replay(run.trace, run.engine, TRUE)
    assert sum(item.last_token_at for item in done.items) < sum(item.last_token_at for item in one.items)


def test_a_known_engine_is_held_to_what_the_planner_expects(folder: Path) -> None:
    kwargs = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
    change(folder, engine_kwargs={**kwargs, "model": "Qwen/Qwen3-30B-A3B"}, hardware={"device_name": "NVIDIA H100"})
    expected = expect(read_run(folder))
    assert (128, 8) == (expected.model.steps.experts.total, expected.model.steps.experts.active)  # type: ignore[union-attr]
    assert 0 < expected.model.steps.m < 0.05
    assert 0 < expected.model.overhead_s < 0.1
    assert "qwen3-30b-a3b in bf16 on 1 x h100" in expected.why
    with pytest.raises(SettingsError, match="gpu has no effect: the run tells NVIDIA H100, got l4"):
        expect(read_run(folder), "l4")


@pytest.mark.slow
def test_the_experts_of_a_run_are_found_again(tmp_path: Path) -> None:
    """Small and large batches tell the reads of experts from the fixed time of a step."""
    true = ExpertTimes(0.004, 40e-6, 0.05e-6, 0.012, Experts(128, 8))
    rnd, trace, at = random.Random(2), list[TraceRequest](), 0.0
    for number in range(150):
        trace.append(TraceRequest(number, at, rnd.randint(20, 800), rnd.randint(1, 200)))
        at += rnd.expovariate(1 + number / 10)
    record(tmp_path, trace, ENGINE, true)
    kwargs = json.loads((tmp_path / "meta.json").read_text())["engine_kwargs"]
    change(tmp_path, engine_kwargs={**kwargs, "model": "Qwen/Qwen3-30B-A3B"}, hardware={"device_name": "NVIDIA H100"})
    run = read_run(tmp_path)
    expected = expect(run)
    model = fit(run, expected, 1, 100)
    rest = errors(run, expected, model, range(100, 150))
    alone = model.steps.predict(1, 500)
    assert abs(rest.tpot_mean_error) < 0.03
    assert abs(rest.ttft_mean_error) < 0.15
    assert true.one(1, 500) == pytest.approx(alone, rel=0.1)


def test_the_fit_of_another_engine_is_carried_over_in_proportion() -> None:
    def model(factor: float) -> EngineModel:
        return EngineModel(StepModel(0.01 * factor, 50e-6 * factor, 0.1e-6 * factor), 0.02, 1.0)

    theirs = replace(model(1), steps=StepModel(0.02, 50e-6, 0.05e-6), overhead_steps=0.5)
    found = model(3).scaled(theirs, model(1))
    assert (0.06, 150e-6, 0.15e-6, 0.02, 0.5) == pytest.approx(found.values)
