"""Candidates are simulated with the policies that run in production."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.control.step_model import Shape, StepModel
from loadtest.plan.elastic import ROOM, elastic, followed
from loadtest.plan.engine.prior import StepPrior
from loadtest.plan.option import Engine, Layout, Operation, Promise, operate
from loadtest.plan.report import said
from loadtest.plan.search import Candidate
from loadtest.plan.traffic import Load, recorded_load, steady_load
from loadtest.plan.trial import production, try_out
from loadtest.plan.what_if import autoscaled
from loadtest.traces import TraceRequest

ENGINE = Engine(
    model="toy",
    gpu="card",
    tensor_parallel=1,
    precision="bf16",
    steps=StepPrior(StepModel(0.005, 0.0015, 1e-8), 0.0),
    error=0.0,
    source="profile",
    kv_tokens=100_000,
    step_limits=(2048, 64),
    context=4096,
    price=2.0,
    overhead_s=0.0,
    overhead_steps=0.0,
)


def operation(load: Load, promise: Promise) -> Operation:
    found = operate(ENGINE, load, promise)
    assert isinstance(found, Operation)
    return found


def test_the_fast_loop_saves_the_slo_of_an_engine_slower_than_planned() -> None:
    """A limit held fixed would be too large for it."""
    promise, load = Promise(600.0, 0.05), steady_load(60.0, 4, 100, 0.0)
    planned, slower = operation(load, promise), ENGINE.scaled(1.8, 1.8, 1.8)
    fixed = try_out(slower, planned, load, promise, 1)
    moved = try_out(slower, planned, load, promise, 1, fast=production(slower, load, promise))
    assert fixed.attainment < 0.3
    assert moved.attainment > 0.8
    assert moved.itl_mean_s <= 0.05 < fixed.itl_mean_s


@pytest.mark.slow
def test_the_way_and_prepared_steps_are_in_the_time_to_first_token() -> None:
    promise, load = Promise(10.0, 0.2), steady_load(0.2, 50, 20, 0.0)
    bare = try_out(ENGINE, operation(load, promise), load, promise, 1)
    far = replace(ENGINE, overhead_s=0.3, overhead_steps=2.0)
    seen = try_out(far, operation(load, promise), load, promise, 1)
    assert bare.ttft_mean_s + 0.3 + 2 * bare.itl_mean_s == pytest.approx(seen.ttft_mean_s)
    assert seen.attainment == 1.0
    assert 0.0 == try_out(far, operation(load, promise), load, replace(promise, ttft_p99_s=0.3), 1).attainment


def write_trace(path: Path, seconds: int) -> Path:
    """A request per second, and ten times as many in the middle third."""
    times = [float(at) for at in range(seconds)]
    times += [at / 9 for at in range(3 * seconds, 6 * seconds)]
    lines = [f"{at:.3f},50,100" for at in sorted(times)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    return path


@pytest.mark.slow
def test_the_autoscaler_needs_fewer_replicas_than_the_peak(tmp_path: Path) -> None:
    promise, load = Promise(30.0, 0.05), recorded_load(write_trace(tmp_path / "load.csv", 300))
    seen = elastic(Candidate(ENGINE, operation(load, promise), 2), load, promise, cold_start_s=20.0)
    assert 300 + 900 == seen.requests
    assert 1.0 <= seen.mean < seen.most <= ROOM * 2
    assert seen.attainment > 0.6


@pytest.mark.parametrize("split", [Layout(pipeline=4), Layout(data=4)])
def test_replicas_of_several_batches_are_followed_with_all_of_them(tmp_path: Path, split: Layout) -> None:
    """One batch of each stood for the replica, with the whole load: four times as many replicas, and late requests."""
    promise = Promise(30.0, 0.05)
    load = recorded_load(write_trace(tmp_path / "load.csv", 100))
    alone = elastic(Candidate(ENGINE, operation(load, promise), 4), load, promise, cold_start_s=5.0)
    four = replace(ENGINE, layout=split)
    wide = recorded_load(write_trace(tmp_path / "load.csv", 100), factor=4.0)
    seen = elastic(Candidate(four, operation(wide, promise), 4), wide, promise, cold_start_s=5.0)
    assert (alone.mean, alone.most) == (seen.mean, seen.most)
    assert alone.attainment == seen.attainment


@pytest.mark.slow
def test_a_plan_for_a_trace_says_what_the_autoscaler_would_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "load.csv", 60)
    words = ["--model", "llama-3.1-8b", "--gpu", "h100", "--tp", "1", "--price", "h100=2", "--trace", str(trace)]
    assert 0 == main(["plan", *words, "--draws", "1", "--simulate", "1", "--no-store", "--cold-start", "5", "--json"])
    (last,) = [each for each in json.loads(capsys.readouterr().out)["what_ifs"] if each["simulated"]]
    assert "autoscaled, cold start 5 s" == last["change"]
    assert "replicas on average" in last["outcome"]
    assert 2.0 == pytest.approx(last["hourly"])


def test_a_day_is_followed_to_its_end() -> None:
    """Six hours of a request a second, then six with ten times as many: the mean is not that of the beginning. A fixed
    number is planned for the busy hours, so following the load never takes more.
    """
    calm = [TraceRequest(n, float(n), 50, 100) for n in range(6 * 3600)]
    busy = [TraceRequest(n, 6 * 3600 + n / 10, 50, 100) for n in range(6 * 36_000)]
    load = Load("day", 5.5, Shape(50, 100), 150, tuple(calm + busy))
    promise = Promise(30.0, 0.05)
    base = Candidate(ENGINE, operation(load, promise), 11)
    seen = followed(base, load, 180.0)
    assert 11 == seen.most
    # Two where a tenth of the work is; all of them from a cold start before the busy hours on.
    assert (11 + 2) / 2 == pytest.approx(seen.mean, rel=0.03)
    what = autoscaled(base, load, promise, 180.0)
    assert not what.simulated
    assert "over 12.0 hours" in what.outcome


def test_nothing_is_said_of_a_trace_that_is_shorter_than_ten_cold_starts() -> None:
    load = Load("short", 1.0, Shape(50, 100), 150, tuple(TraceRequest(n, float(n), 50, 100) for n in range(600)))
    promise = Promise(30.0, 0.05)
    what = autoscaled(Candidate(ENGINE, operation(load, promise), 2), load, promise, 180.0)
    assert what.gpus is None
    assert "less than 10 cold starts" in what.outcome
    # It is not that it can't be.
    assert said(what).startswith("autoscaled, cold start 180 s: unknown: the trace lasts 599 s")
