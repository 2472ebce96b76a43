"""Results of load testing tools in the forms that their versions write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.control.step_model import Shape
from cluster.errors import SettingsError
from loadtest.plan.measured.files import OwnPoint, read_own

MS = {"unit": "ms"}
AIPERF = {
    "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
    "output_sequence_length": {"unit": "tokens", "avg": 201.0},
    "inter_token_latency": {**MS, "avg": 12.0},
    "request_throughput": {"unit": "requests/sec", "avg": 12.6},
}
FIRST = {"time_to_first_token": {**MS, "avg": 140.0}}
OLD_CONFIG = {"loadgen": {"concurrency": 32}, "endpoint": {"model_names": ["acme/one"]}}
PHASES = [
    {"name": "warmup", "type": "concurrency", "concurrency": 4, "exclude_from_results": True},
    {"name": "profiling", "type": "concurrency", "concurrency": 32},
]
NEW_CONFIG = {"models": {"strategy": "round_robin", "items": [{"name": "acme/one"}]}, "phases": PHASES}


def read(folder: Path, data: dict[str, Any]) -> OwnPoint:
    """Write a result and read its only point."""
    (folder / "result.json").write_text(json.dumps(data))
    (point,) = read_own(folder / "result.json")
    return point


@pytest.mark.parametrize(
    "data",
    [
        {"records": {**AIPERF, "ttft": {**MS, "avg": 140.0}}, "input_config": OLD_CONFIG},
        {**AIPERF, **FIRST, "input_config": OLD_CONFIG},
        {**AIPERF, **FIRST, "schema_version": "1.0", "input_config": OLD_CONFIG},
        {**AIPERF, **FIRST, "schema_version": "1.4", "aiperf_version": "0.13.0", "input_config": NEW_CONFIG},
    ],
    ids=["0.1", "0.3", "0.6", "0.13"],
)
def test_aiperf_tells_the_same_in_all_its_forms(tmp_path: Path, data: dict[str, Any]) -> None:
    point = read(tmp_path, data)
    assert (Shape(1000.0, 201.0), 32, "acme/one") == (point.shape, point.clients, point.engine.model)
    assert (pytest.approx(0.012), pytest.approx(0.14)) == (point.tpot_s, point.ttft_s)


def test_a_concurrency_beside_a_rate_is_a_cap(tmp_path: Path) -> None:
    """2 requests a second of 2.54 s each are 5 under way, whatever more were allowed."""
    slow = {"request_throughput": {"unit": "requests/sec", "avg": 2.0}}
    capped = {**NEW_CONFIG, "phases": [{"name": "profiling", "type": "poisson", "rate": 2.0, "concurrency": 200}]}
    assert 6 == read(tmp_path, {**AIPERF, **FIRST, **slow, "input_config": capped}).clients
    vllm = {
        "completed": 120, "duration": 60.0, "total_input_tokens": 120_000, "total_output_tokens": 24_120,
        "mean_ttft_ms": 140.0, "mean_tpot_ms": 12.0, "max_concurrency": 200,
    }  # fmt: skip
    assert 5 == read(tmp_path, {**vllm, "request_rate": 2.0}).clients
    assert 120 == read(tmp_path, {**vllm, "request_rate": "inf"}).clients


def test_a_result_of_inference_perf_counts_tokens_and_not_messages(tmp_path: Path) -> None:
    """A published stage: the server sent two messages per token, so the time between messages is half of
    that per token. A request took 7.630 s, of which 0.097 to the first of its 211 tokens.
    """
    stage = {
        "load_summary": {"count": 960, "requested_rate": 16.0, "achieved_rate": 16.002},
        "successes": {
            "count": 960,
            "latency": {
                "request_latency": {"mean": 7.6302}, "time_per_output_token": {"mean": 0.017527},
                "time_to_first_token": {"mean": 0.097458}, "inter_token_latency": {"mean": 0.017588},
            },
            "throughput": {"requests_per_sec": 12.674},
            "prompt_len": {"mean": 218.01}, "output_len": {"mean": 210.96},
        },
    }  # fmt: skip
    point = read(tmp_path, stage)
    assert pytest.approx((7.6302 - 0.0975) / 209.96, rel=1e-3) == point.tpot_s
    assert round(12.674 * 7.6302) == point.clients
    assert Shape(218.01, 210.96) == point.shape


def test_newer_results_of_inference_perf_tell_concurrency_and_cached_tokens(tmp_path: Path) -> None:
    stage = {
        "load_summary": {"count": 100, "achieved_rate": 9.0, "concurrency": 16},
        "successes": {
            "latency": {"request_latency": {"mean": 2.1}, "time_to_first_token": {"mean": 0.1}},
            "prompt_tokens": {"total": 100_000.0, "cached": 25_000.0, "uncached": 75_000.0, "mean": 1000.0},
            "output_len": {"mean": 101.0},
        },
    }
    point = read(tmp_path, stage)
    assert (Shape(1000.0, 101.0, 250.0), 16) == (point.shape, point.clients)
    assert pytest.approx(0.02) == point.tpot_s


@pytest.mark.parametrize(("cached", "each"), [(25_000, 250.0), (0, 0.0), (None, 0.0)])
def test_a_load_test_tells_its_cached_tokens(tmp_path: Path, cached: int | None, each: float) -> None:
    """A step does not compute them."""
    figures: dict[str, Any] = {
        "completed": 100, "seconds": 10.0, "prompt_tokens": 100_000, "output_tokens": 10_100,
        "ttft_s": {"mean": 0.1}, "tpot_s": {"mean": 0.02},
    }  # fmt: skip
    point = read(tmp_path, figures if cached is None else {**figures, "cached_tokens": cached})
    assert (Shape(1000.0, 101.0, each), 21) == (point.shape, point.clients)


def guidellm(**more: Any) -> dict[str, Any]:
    means = {
        "prompt_token_count": 1000.0, "output_token_count": 200.0, "inter_token_latency_ms": 12.0,
        "time_to_first_token_ms": 150.0, "request_concurrency": 31.8,
    }  # fmt: skip
    metrics = {name: {"successful": {"mean": value}, "errored": {"mean": 0.0}} for name, value in means.items()}
    return {"benchmarks": [{"metrics": metrics, **more}]}


LATER = guidellm(config={"backend": {"model": "acme/one"}})


@pytest.mark.parametrize(
    "data",
    [
        guidellm(worker={"backend_model": "acme/one"}),
        LATER,
        {**LATER, "metadata": {"version": 1, "guidellm_version": "0.5.4"}},
        {**LATER, "metadata": {"version": 2, "guidellm_version": "0.8.1"}},
    ],
    ids=["0.2", "0.4", "0.5", "0.8"],
)
def test_guidellm_tells_the_same_in_all_its_forms(tmp_path: Path, data: dict[str, Any]) -> None:
    point = read(tmp_path, data)
    assert (Shape(1000.0, 200.0), 32, "acme/one") == (point.shape, point.clients, point.engine.model)
    assert (pytest.approx(0.012), pytest.approx(0.15)) == (point.tpot_s, point.ttft_s)


def test_metadata_of_vllm_bench_are_texts(tmp_path: Path) -> None:
    result = {
        "completed": 64, "duration": 10.0, "total_input_tokens": 64_000, "total_output_tokens": 6_400,
        "mean_ttft_ms": 140.0, "mean_tpot_ms": 12.0, "max_concurrency": 8, "request_rate": "inf",
        "model_id": "acme/one", "tensor_parallel_size": "2",
    }  # fmt: skip
    assert 2 == read(tmp_path, result).engine.tensor_parallel
    with pytest.raises(SettingsError, match="points of speculative decoding say nothing"):
        read(tmp_path, {**result, "spec_decode_acceptance_length": 2.4})


def test_results_that_vllm_bench_appends_are_points_each(tmp_path: Path) -> None:
    """One a line, as `--append-result` writes a sweep. The second line was "Extra data"."""
    result = {
        "completed": 64, "duration": 10.0, "total_input_tokens": 64_000, "total_output_tokens": 6_400,
        "mean_ttft_ms": 140.0, "mean_tpot_ms": 12.0,
    }  # fmt: skip
    file = tmp_path / "result.json"
    file.write_text("\n".join(json.dumps({**result, "max_concurrency": clients}) for clients in (4, 16, 64)) + "\n")
    assert [4, 16, 64] == [each.clients for each in read_own(file)]
    file.write_text(file.read_text() + "{")
    with pytest.raises(SettingsError, match=r"result\.json cannot be read"):
        read_own(file)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({**guidellm(), "metadata": {"version": 3}}, "metadata.version must be 1 or 2, got 3"),
        ({**AIPERF, **FIRST, "schema_version": "2.0"}, "schema_version must be 1 and a minor one, got '2.0'"),
        ({"successes": {"latency": {}}}, "successes.prompt_tokens.mean must be a number above 0, got None"),
    ],
)
def test_a_form_that_nothing_is_known_of_is_refused_by_its_field(
    tmp_path: Path, data: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        read(tmp_path, data)
