"""The fit finds the model that made a run, and files that are no run are refused by name."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from cluster.errors import TraceError
from cluster.settings import SimSettings
from loadtest.simulate.engine.recorded import read_run
from loadtest.simulate.engine.replay import replay
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.engine.validate import errors, fit
from loadtest.traces import TraceRequest

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
    found = fit(run, 1, 60)
    assert TRUE.base_s == pytest.approx(found.base_s, rel=0.02)
    assert TRUE.per_token_s == pytest.approx(found.per_token_s, rel=0.02)
    assert TRUE.per_kv_token_s == pytest.approx(found.per_kv_token_s, rel=0.1)

    rest = errors(run, found, range(60, 120))
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

    rest = errors(run, fit(run, 1, 100), range(100, 200))
    assert abs(rest.ttft_mean_error) < 0.08
    assert abs(rest.e2e_mean_error) < 0.04


def test_errors_are_positive_where_the_prediction_is_too_slow(folder: Path) -> None:
    run = read_run(folder)
    slow = StepTimes(1.2 * TRUE.base_s, 1.2 * TRUE.per_token_s, 1.2 * TRUE.per_kv_token_s)
    assert errors(run, slow, range(120)).e2e_mean_error > 0.15
    exact = errors(run, TRUE, range(120))
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
        ("engine_kwargs", "max_num_seqs", None, "max_num_seqs: must be a whole number of at least 1, got None"),
        ("engine_kwargs", "max_num_seqs", 9_999, "max_num_seqs: Input should be less than or equal to 4096, got 9999"),
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
    path.write_text(json.dumps({**meta, section: None}))
    with pytest.raises(TraceError, match=rf"meta\.json: {section}: must be a JSON object, got None"):
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
