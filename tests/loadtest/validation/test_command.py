"""`penstock simulate --validate` from the command line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from cluster.cli.main import main
from loadtest.plan.profiled import engine_of
from loadtest.profile.stored import read_profile
from loadtest.traces import TraceRequest
from loadtest.validation.flags import FILLING
from loadtest.validation.recorded import FilledIn
from tests.loadtest.validation.test_fit import ENGINE, TRUE, change, record


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs of one engine: a calm one and a busy one."""
    folders = tmp_path / "calm", tmp_path / "busy"
    for folder, every in zip(folders, (0.3, 0.1), strict=True):
        folder.mkdir()
        trace = [TraceRequest(n, every * n, 50 + 97 * n % 1_500, 1 + 31 * n % 120) for n in range(60)]
        record(folder, trace, ENGINE, TRUE)
    return folders


def run(capsys: pytest.CaptureFixture[str], *flags: str | Path) -> tuple[int, str, str]:
    try:
        status = main(["simulate", *map(str, flags)])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, " ".join(captured.err.split())


def test_the_errors_of_every_time_are_told(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--validate", runs[1], "--fit", "1-30", "--json")
    found = json.loads(out)
    assert (0, 30) == (status, found["requests"])
    names = [f"{time}_mean_error" for time in ("ttft", "itl", "tpot", "e2e")]
    assert all(abs(found[name]) < 0.1 for name in names)
    assert found["unqueued_ttft_mean_error"] is None
    assert 1e3 * TRUE.base_s == pytest.approx(found["model"]["base_ms"], rel=0.1)
    status, out, _ = run(capsys, "--validate", runs[1], "--fit", "1-30")
    assert all(word in out for word in ("TTFT", "TPOT", "ITL", "E2E", "30 requests fitted, 30 predicted"))
    assert "a typical engine, because the model and accelerator of the run is not known" in " ".join(out.split())


def test_one_run_predicts_another(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--validate", runs[0], "--fit-on", runs[1], "--json")
    found = json.loads(out)
    assert (0, 60) == (status, found["requests"]), err
    assert abs(found["e2e_mean_error"]) < 0.05
    assert f"fitted on 60 requests of {runs[1]}" in found["notes"]


def test_a_fit_of_another_engine_needs_the_planners_expectation_of_both(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = json.loads((runs[1] / "meta.json").read_text())["engine_kwargs"]
    change(runs[1], engine_kwargs={**kwargs, "model": "meta-llama/Llama-3.1-8B"})
    status, out, err = run(capsys, "--validate", runs[0], "--fit-on", runs[1])
    assert (2, "") == (status, out)
    assert "fit-on must be a run of the same engine where one of the two is not known to the planner" in err
    # Which run is which.
    assert f"{runs[1]} is held to" in " ".join(err.split())
    assert f"{runs[0]} is held to" in " ".join(err.split())
    change(runs[0], engine_kwargs={**kwargs, "model": "Qwen/Qwen3-14B"}, hardware={"device_name": "NVIDIA H100"})
    change(runs[1], hardware={"device_name": "NVIDIA GeForce RTX 4090"})
    status, out, _ = run(capsys, "--validate", runs[0], "--fit-on", runs[1], "--fit", "1-40", "--json")
    assert 0 == status
    assert "carried over in proportion from the planner's expectation of llama-3.1-8b in bf16 on 1 x rtx4090" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-tokens", "40000"), "kv-tokens has no effect: the run tells its own, got 40000"),
        (("--max-model-len", "9000"), "max-model-len has no effect: the run tells its own, got 9000"),
        (("--max-num-seqs", "64"), "max-num-seqs has no effect: the run tells its own, got 64"),
        (("--policy", "penstock"), "policy does not go together with validate, got penstock"),
        (("--affinity",), "affinity does not go together with validate, got True"),
        (("--slo-ttft", "2"), "slo-ttft does not go together with validate, got 2.0"),
        (("--fit", "1-60"), "fit must leave some of the run's 60 requests to predict, got 1-60"),
        (("--gpu", "nope"), "gpu: 'nope' is not in the table"),
    ],
)
def test_a_flag_without_effect_is_refused(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    """Also one whose value is the usual one: the user would take the result for one that follows it."""
    status, out, err = run(capsys, "--validate", runs[0], *flags)
    assert (2, "") == (status, out)
    assert words in err


@pytest.mark.parametrize("flag", ["--fit-on", "--gpu", "--save-profile"])
def test_flags_of_a_validation_need_one(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    status, out, err = run(capsys, "--trace", "sample", flag, "x")
    assert (2, "") == (status, out)
    assert f"{flag[2:]} is for validate: a trace has no measured times" in err


def test_a_fit_becomes_a_profile_to_plan_with(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    kwargs = json.loads((runs[1] / "meta.json").read_text())["engine_kwargs"]
    change(runs[1], engine_kwargs={**kwargs, "model": "Qwen/Qwen3-30B-A3B"}, hardware={"device_name": "NVIDIA H100"})
    status, out, _ = run(capsys, "--validate", runs[1], "--fit", "1-30", "--save-profile", file, "--json")
    model = json.loads(out)["model"]
    engine = engine_of(read_profile(file), {"h100": 2.0})
    steps = engine.steps.steps
    assert 0 == status
    assert ("Qwen/Qwen3-30B-A3B", "h100", 2.0, 40_000) == (engine.model, engine.gpu, engine.price, engine.kv_tokens)
    assert model["base_ms"] == pytest.approx(1e3 * steps.a)
    assert model["experts_ms"] == pytest.approx(1e3 * steps.m)
    assert 128 == steps.experts.total if steps.experts else False
    assert model["overhead_steps"] == pytest.approx(engine.overhead_steps)
    status, _, err = run(capsys, "--validate", runs[1], "--fit", "1-30", "--save-profile", tmp_path / "no" / "x.json")
    assert (2, True) == (status, "cannot be written: No such file or directory" in err)


@pytest.mark.parametrize("model", [{}, {"model": "Qwen/Qwen3-30B-A3B", "enable_expert_parallel": True}])
def test_a_profile_is_of_one_engine(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], model: dict[str, object]
) -> None:
    """Ranks that share experts were planned for with the flags of tensor parallelism."""
    kwargs = json.loads((runs[1] / "meta.json").read_text())["engine_kwargs"]
    change(runs[1], engine_kwargs={**kwargs, "data_parallel_size": 2, **model}, hardware={"device_name": "NVIDIA H100"})
    status, _, err = run(capsys, "--validate", runs[1], "--fit", "1-30", "--save-profile", tmp_path / "x.json")
    assert 2 == status
    assert "save-profile: a profile is of one engine, and the run's has 2 data parallel ranks" in err
    assert not (tmp_path / "x.json").exists()


def test_every_fact_that_a_recorder_may_leave_out_has_a_flag() -> None:
    assert tuple(field.name for field in fields(FilledIn)) == FILLING
