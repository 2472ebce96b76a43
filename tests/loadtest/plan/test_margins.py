"""Margins of engines that nobody measured: they are told, and measurements take them. Groups on several servers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli.main import main
from loadtest.plan.engine.architectures import load_shape
from loadtest.plan.engine.gpus import Gpu, load_gpu
from loadtest.plan.option import Engine, Layout, Promise
from loadtest.plan.report import Plan, notes
from loadtest.plan.review import Book, EngineGroup
from loadtest.plan.search import Rejected, engines, on_paper
from loadtest.plan.traffic import steady_load
from loadtest.plan.what_if import what_ifs
from tests.loadtest.plan.goals.test_goals import ENGINE, LOAD, PROMISE, candidate

SURE = Promise(2.0, 0.1, 0.97, confidence=0.9)


def groups(number: int, gpu: str = "h100") -> Engine:
    """DeepSeek-V3 with attention by group."""
    (found,), _ = engines(
        load_shape("deepseek-v3"), [load_gpu(gpu)], ["fp8"], prices={}, parallel=[1], layouts=[Layout(data=number)]
    )
    return found


def nothing_else(gpus: Iterable[Gpu], precisions: Iterable[str]) -> tuple[list[Engine], list[Rejected]]:
    return [], []


def test_rows_cross_between_servers_once_per_server_and_not_once_per_expert() -> None:
    """Two bytes there and two back in 58 layers, over the links of all eight accelerators of a server."""
    roofline = groups(16).steps.roofline
    assert roofline is not None
    assert 1.76 * 4 * 7168 * 58 * 15 / 8 / 50e9 == pytest.approx(roofline.exchange_s)
    within = groups(8, "h200").steps.roofline
    assert within is not None
    assert 0.0 == within.exchange_s
    # A rack of NVLink is one server.
    rack = groups(16, "gb200").steps.roofline
    assert rack is not None
    assert 0.0 == rack.exchange_s


def test_a_prompt_that_no_other_group_has_crosses_over_all_links() -> None:
    roofline = groups(16).steps.roofline
    assert roofline is not None
    still = replace(roofline, exchange_s=0.0)
    crossing = roofline.seconds(1000, 1000) - still.seconds(1000, 1000)
    assert 1000 / 16 * roofline.exchange_s == pytest.approx(crossing)


def test_servers_of_groups_compute_prompts_within_what_others_published() -> None:
    """With other kernels for the exchange, balanced experts and overlap, 52,300 tokens/s were published for a server of
    eight H100. An engine without them has less, and not a tenth.
    """
    steps = groups(16).steps
    per_server = 8 * 2000 / steps.step(1, 2000, 0, 2000 * 1000)
    assert 52_300 / 3 < per_server < 52_300


def test_an_engine_that_only_its_margin_rules_out_says_so() -> None:
    """An idle replica takes 4.3 s at a confidence of 90 %, and 1.9 s as predicted."""
    _, (lost,) = on_paper([groups(16)], steady_load(10.0, 4000, 1000), Promise(2.0, 0.1, 0.99))
    assert "a prompt of" in lost.why
    assert (
        "Only the margin makes it so: for a confidence of 90 % steps count as 1.31 times and first tokens as"
        in lost.why
    )
    _, (never,) = on_paper([groups(16)], steady_load(10.0, 4000, 1000), Promise(0.1, 0.1, 0.99))
    assert "margin" not in never.why


def test_a_plan_tells_its_margin() -> None:
    unsure = replace(ENGINE, error=0.16, ttft_error=0.28)
    steps, first = unsure.margin(0.9)
    assert 1.293 == pytest.approx(steps, abs=0.001)
    assert 1.568 == pytest.approx(first, abs=0.001)
    told = notes(Plan("toy", LOAD, SURE, [candidate(unsure, 2)], [], [], []))
    assert (
        "Margin of 2 x card, bf16: for a confidence of 90 % steps count as 1.29 times and first tokens as 1.57 times "
        "as long as predicted." in told
    )


def test_measurements_that_agree_are_a_what_if_where_they_would_change_something() -> None:
    unsure = replace(ENGINE, error=0.5)
    load = replace(LOAD, rate=40.0)
    paper, _ = on_paper([unsure], load, PROMISE)
    made = what_ifs(nothing_else, [candidate(unsure, paper[0].replicas)], load, PROMISE, precisions=[], gpus=[])
    (said,) = [each for each in made if "agree with what is predicted" in each.change]
    assert "three measured points (--points) that agree with what is predicted" == said.change
    assert said.gpus is not None
    assert said.gpus < 2 * paper[0].replicas
    # Nothing is told where nothing would change.
    known = what_ifs(nothing_else, [candidate(ENGINE, 2)], LOAD, PROMISE, precisions=[], gpus=[])
    assert not any("agree" in each.change for each in known)
    spread = replace(unsure, layout=Layout(data=4))
    (of_groups,) = [
        each
        for each in what_ifs(nothing_else, [candidate(spread, 50)], load, PROMISE, precisions=[], gpus=[])
        if "agree" in each.change
    ]
    assert "three load tests (--observe) that agree with what is predicted" == of_groups.change


@pytest.mark.slow
def test_three_load_tests_take_the_margin_of_the_first_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, they only took that of the steps."""
    words = ["plan", "--model", "Qwen/Qwen3-32B", "--tp", "2", "--rate", "2", "--simulate", "1", "--json"]
    words += ["--state-dir", str(tmp_path)]
    assert 0 == main(words)
    before = json.loads(capsys.readouterr().out)
    (planned,) = before["candidates"]
    seen = {"ttft_s": {"mean": planned["predicted"]["ttft_mean_s"]["middle"]}}
    report = tmp_path / "report.json"
    for part in (0.999, 1.0, 1.001):
        seen["itl_s"] = {"mean": part * planned["predicted"]["itl_mean_s"]["middle"]}
        report.write_text(json.dumps(seen))
        assert 0 == main(["plan", "--observe", before["prediction_ids"][0], str(report), "--state-dir", str(tmp_path)])
    capsys.readouterr()
    assert 0 == main(words)
    (after,) = json.loads(capsys.readouterr().out)["candidates"]
    assert (0.17, 0.12) == (planned["ttft_error"], after["ttft_error"])
    assert after["margin"]["first_token"] < planned["margin"]["first_token"]


def test_splits_are_engines_of_their_own(tmp_path: Path) -> None:
    """Sixteen accelerators in two stages are not sixteen groups."""
    book = Book(tmp_path)
    stages, by_group = (EngineGroup("toy", "card", 16, "fp8", split) for split in ("PP 2", "DP 16, EP"))
    for _ in range(3):
        made = book.predict(stages, {}, {"itl_mean_s": {"low": 0.01, "middle": 0.01, "high": 0.01}})
        book.observe(made, {"itl_s": {"mean": 0.02}})
    shift = book.shift(stages)
    assert shift is not None
    assert 2.0 == pytest.approx(shift.itl)
    assert shift.ttft_error is None
    assert book.shift(by_group) is None
    assert "toy on 16 (PP 2) x card, fp8" == str(stages)


@pytest.mark.slow
def test_observations_count_for_every_goal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that was seen to be three times as slow takes longer offline too."""
    work = ["plan", "--model", "qwen3-32b", "--tp", "2", "--requests", "100000", "--deadline", "24", "--json"]
    work += ["--state-dir", str(tmp_path)]
    assert 0 == main(work)
    (before,) = json.loads(capsys.readouterr().out)["plans"]
    book = Book(tmp_path)
    for _ in range(3):
        group = EngineGroup("qwen3-32b", "h100", 2, "bf16")
        made = book.predict(group, {}, {"itl_mean_s": {"low": 0.01, "middle": 0.01, "high": 0.01}})
        book.observe(made, {"itl_s": {"mean": 0.03}})
    assert 0 == main(work)
    (after,) = json.loads(capsys.readouterr().out)["plans"]
    assert "shifted by 3 observations" in after["source"]
    assert after["replicas"] * after["hours"] > 2 * before["replicas"] * before["hours"]


@pytest.mark.slow
def test_points_are_not_corrected_by_load_tests_of_the_prior(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They measured the same engine, so its slowness would count twice."""
    work = ["plan", "--model", "qwen3-32b", "--gpu", "h100", "--tp", "2", "--requests", "100000", "--deadline", "24"]
    work += ["--json", "--state-dir", str(tmp_path)]
    run: dict[str, object] = {
        "completed": 320,
        "duration": 100.0,
        "total_input_tokens": 320_000,
        "total_output_tokens": 80_000,
    }
    run |= {"max_concurrency": 32, "mean_ttft_ms": 400.0, "mean_tpot_ms": 60.0, "model_id": "Qwen/Qwen3-32B"}
    points = tmp_path / "points.json"
    points.write_text(json.dumps(run))
    assert 0 == main([*work, "--points", str(points)])
    before = json.loads(capsys.readouterr().out)["plans"]
    book = Book(tmp_path)
    for _ in range(3):
        made = book.predict(
            EngineGroup("qwen3-32b", "h100", 2, "bf16"), {}, {"itl_mean_s": {"low": 0.02, "middle": 0.02, "high": 0.02}}
        )
        book.observe(made, {"itl_s": {"mean": 0.06}})
    assert 0 == main([*work, "--points", str(points)])
    assert before == json.loads(capsys.readouterr().out)["plans"]
    assert 0 == main(work)
    (shifted,) = json.loads(capsys.readouterr().out)["plans"]
    assert "shifted by 3 observations" in shifted["source"]
