"""Pages of load tests and sweeps, and what they say in words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main
from loadtest.load.results.comparison import compared
from loadtest.load.results.page import cluster_charts, live_page, run_page
from loadtest.load.results.record import RunRecord, course
from loadtest.load.results.sweep import Search, SearchPlan, Trial
from loadtest.load.results.sweep_page import sweep_page
from loadtest.load.results.tally import Window
from loadtest.load.results.words import load_words, verdict_of
from loadtest.load.schedule.scenario import SCENARIOS, find_scenario, scenario_fields

LOOSE = {"ttft_s": 2.0, "itl_s": 0.1}


def figures(rate: float = 5.0, kinds: tuple[str, ...] = ("chat",), every: int = 1, seconds: int = 40) -> dict[str, Any]:
    """Return those of a run in which a request of each kind ends every so many seconds."""
    record = RunRecord()
    for second in range(seconds):
        window = Window(second, last_s=second + 1.0)
        if second % every == 0:
            for kind in kinds:
                tally = window.of(kind)
                tally.ended = tally.completed = tally.good = 1
                tally.output_tokens = tally.messages = 10
                for times in tally.times.values():
                    times.add(0.02 + second / 1000)
        record.add(window)
    scenario = {**scenario_fields(SCENARIOS["chat"]), "rate": rate, "mix": dict.fromkeys(kinds, 1.0)}
    extra = {"scenario": scenario, "failures": [], "target": "h:1", "processes": 1, "slos": dict.fromkeys(kinds, LOOSE)}
    return {**record.as_json(float(seconds)), **extra}


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_a_page_begins_with_the_verdict_and_its_bounds() -> None:
    page = run_page(figures(), [("ttft_p99<500ms: it was 812 ms", False), ("goodput>0.99", True)])
    text = text_of(page[page.index("<main>") :])
    assert "Broken 1 of 2 bounds broken." in text
    assert text.index("✗ ttft_p99<500ms: it was 812 ms".replace("<", "&lt;")) < text.index("Latency TTFT")
    assert "✓ goodput" in text


def test_a_run_without_bounds_is_judged_by_its_goodput() -> None:
    found = figures()
    assert verdict_of(found, ()).held
    assert "Held 100 % of 40 requests kept the SLO; the bound is 99 %." in text_of(run_page(found))
    missed = {**found, "goodput": 0.9875}
    assert not verdict_of(missed, ()).held
    assert "98.75 %" in verdict_of(missed, ()).text
    assert verdict_of({**found, "requests": 0}, ()).held is None


def test_the_slo_is_a_line_in_the_charts_of_its_times() -> None:
    page = run_page(figures())
    assert 2 == page.count("SLO 2 s")
    assert 2 == page.count("SLO 100 ms")


def test_only_several_kinds_have_a_table_of_all() -> None:
    assert "Times of all" not in run_page(figures())
    page = run_page(figures(kinds=("chat", "rag")))
    assert all(f"Times of {kind}" in page for kind in ("all", "chat", "rag"))


def test_a_load_of_few_requests_has_a_point_in_every_chart_of_latency() -> None:
    """At 0.14 requests a second, a second with a request has no neighbour."""
    found = figures(every=7)
    page = live_page(found)
    assert "Nothing was measured" not in page
    for title in ("TTFT", "ITL", "SLO attainment", "Wait in the queue"):
        chart = page[page.index(f"<b>{title}</b>") :].split("</figure>")[0]
        assert "<use" in chart, title


def test_bins_are_wide_enough_for_requests_and_merge_their_times() -> None:
    windows = {}
    for second in range(300):
        window = windows[second] = Window(second, running=2)
        tally = window.of("all")
        tally.ended = tally.completed = tally.good = 1
        tally.output_tokens = 30
        tally.times["ttft"].add(float(second + 1))
    bins = course(windows)
    assert {5} == {each["seconds"] for each in bins}
    assert 60 == len(bins)
    assert pytest.approx(1.0) == bins[0]["ended"]
    assert (30.0, 2.0) == (bins[0]["output_tokens"], bins[0]["running"])
    assert pytest.approx(3.0, rel=0.01) == bins[0]["ttft_p50_s"]
    assert [] == course({})


def test_replicas_that_start_are_drawn_only_while_some_do() -> None:
    look = {"waiting": 0, "running": 1, "ready": 1, "draining": 0, "batch_limit": 8, "kv_usage": 0.1}
    looks = [{**look, "at_s": at, "starting": starting} for at, starting in enumerate((0, 1, 0, 0))]
    (chart,) = [each for each in cluster_charts(looks) if each.title == "Replicas"]
    ready, starting, draining = chart.series
    assert [1.0] * 4 == list(ready.y)
    assert [1] == starting.lone()
    assert draining.empty


def test_a_load_is_said_in_words() -> None:
    found = figures()
    sent, slo, target = load_words(found)
    assert "Poisson arrivals at 5 requests/s for 60 s, seed 1; all chat." == sent
    assert "SLO of a request: TTFT within 2 s and 95 % of its gaps between tokens within 100 ms." == slo
    assert "Sent to h:1." == target
    every = [load_words({**found, "scenario": scenario_fields(find_scenario(name))})[0] for name in SCENARIOS]
    assert not [text for text in every if "{" in text or "None" in text]
    trace = {"name": "t", "trace": "/x/sample.csv", "scale_rate": 2.0, "duration_s": 600.0, "arrivals": "trace"}
    assert "Replay of sample.csv, 2 times as fast, for 10 min." == load_words({**found, "scenario": trace})[0]


def test_prompts_from_caches_are_said_and_compared() -> None:
    """A second test with the same seed computes none of its prompts, so it is faster whatever was changed."""
    first = {**figures(), "prompt_tokens": 1000, "cached_tokens": 0}
    second = {**first, "cached_tokens": 987}
    assert "98.7 % of the prompt tokens came from prefix caches" in load_words(second)[-1]
    assert not any("caches" in each for each in load_words(first))
    grid = compared(second, first, "first.json").grid
    assert grid is not None
    (row,) = (row for row in grid.rows if row[0] == "Prompt tokens from caches")
    assert ["98.7 %", "0.0 %"] == list(row[1:3])


def test_users_are_named_instead_of_a_scenario_that_did_not_run() -> None:
    found = {**figures(), "users": {"ChatUser": 1}, "user_rate": 0.2}
    assert "1 user (1 ChatUser), each sending 0.2 per second, for 40 s." == load_words(found)[0]


def test_two_runs_are_side_by_side_and_a_different_load_is_said() -> None:
    mine, other = figures(), figures(rate=8.0)
    part = compared(mine, other, "out/before.json")
    assert "Compared with before" == part.title
    assert 5 == len(part.drawn)
    assert all(2 == len(chart.series) for chart in part.charts)
    assert any("requests/s 5 here, 8 there" in text for text in part.text)
    assert not any("The loads differ" in text for text in compared(mine, mine, "x.json").text)
    assert part.grid is not None
    assert "Within the SLO" == part.grid.rows[0][0]
    assert "before" in run_page(mine, compared=[part])


def test_two_files_are_compared_and_nothing_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for file, rate in zip(files, (5.0, 8.0), strict=True):
        file.write_text(json.dumps(figures(rate)))
    prefix = tmp_path / "both"
    assert 0 == main(["loadtest", "--compare", *map(str, files), "--report", str(prefix), "--target", "127.0.0.1:1"])
    assert "Compared with before" in (tmp_path / "both.html").read_text(encoding="utf-8")
    assert 2 == main(["loadtest", "--compare", *map(str, files), str(files[0])])
    assert "compare takes one file, or two, got 3" in capsys.readouterr().err
    assert 2 == main(["loadtest", "--compare", str(tmp_path / "none.json"), "--target", "127.0.0.1:1"])
    assert "none.json cannot be read" in capsys.readouterr().err


def test_the_page_of_a_sweep_has_its_answer_on_top_and_every_trial() -> None:
    brief = {**figures(), "generator_lag_p99_s": 0.001}
    search = Search(SearchPlan(1.0, 8.0, 1), lambda rate, n: Trial(rate, n, rate < 3, True, 9, 10, brief))
    page = sweep_page(scenario_fields(SCENARIOS["chat"]), search.run(), ["goodput>=0.99"], {})
    text = text_of(page)
    assert text.index("requests/s hold the SLO") < text.index("By rate")
    assert "A trial holds with goodput&gt;=0.99." in text
    assert "Poisson arrivals at rising rates for 60 s" in text
    assert "broken" in text
    assert page.count("<figure>") == 5
