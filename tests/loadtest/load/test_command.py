"""`penstock loadtest` around its runs: what it prints, and what is left of a sweep that is cut off."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.cli.main import main
from cluster.errors import GeneratorError
from loadtest.load import command
from loadtest.load.command import _list, _print, _sweep_table
from loadtest.load.results.record import RunRecord
from loadtest.load.results.sweep import Search, SearchPlan, Trial
from loadtest.load.results.tally import Window
from loadtest.load.runner import _PATHS as PATHS
from loadtest.load.schedule.plan import plan
from loadtest.load.schedule.scenario import SCENARIOS, Scenario


def figures(good: int = 100, ttft_s: float = 22.7744) -> dict[str, Any]:
    """Return those of a run of 100 requests, overloaded unless told otherwise."""
    record = RunRecord()
    for second in range(10):
        window = Window(second, last_s=second + 1.0)
        tally = window.of("chat")
        tally.ended = tally.completed = 10
        tally.good, tally.output_tokens = good // 10, 12_345_678
        for times in tally.times.values():
            times.add(ttft_s)
            times.add(10 * ttft_s)
        record.add(window)
    scenario = {"warmup_s": 0.0, "duration_s": 60.0}
    extra = {"scenario": scenario, "failures": [], "target": "h:1", "processes": 1, "interrupted": False}
    return {**record.as_json(10.0), **extra, "attainment": None}


def shown(print_to: Callable[[Console], None], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, emoji=False)
    print_to(console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    return text


def test_no_digit_of_a_run_is_cut_on_a_narrow_screen() -> None:
    found = figures()
    text = shown(lambda console: _print(found, SCENARIOS["smoke"], console))
    times = [f"{1e3 * found['ttft_s'][figure]:,.1f}" for figure in ("p50", "p99")]
    assert 5 == text.count(" / ".join(times))
    assert "all" not in text
    assert "12,345,678 tokens/s" in text


def test_what_a_scenario_and_a_reason_are_called_is_no_markup() -> None:
    found = {**figures(), "errors": {"[/bad]": 3}}
    text = shown(lambda console: _print(found, SCENARIOS["smoke"], console), 200)
    assert "failed: 3 [/bad];" in text


@pytest.mark.parametrize("width", [80, 160])
def test_arrivals_can_be_copied_from_the_list(width: int) -> None:
    text = shown(_list, width)
    for scenario in SCENARIOS.values():
        assert str(scenario.arrivals) in text


# --- a sweep that is cut off ------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], None]:
    """Let so many trials hold up to 4 requests/s, and the next one end with an error."""

    def prepare(count: int, end: BaseException) -> None:
        ran = []

        def run(scenario: Any, *_rest: Any) -> dict[str, Any]:
            ran.append(scenario.rate)
            if len(ran) > count:
                raise end
            return figures(100 if scenario.rate <= 4 else 0)

        monkeypatch.setattr(command, "run_scenario", run)

    return prepare


def sweep(prefix: Path) -> int:
    words = ["--scenario", "smoke", "--duration", "60", "--sweep", "--sweep-repeats", "1", "--target", "127.0.0.1:1"]
    return main(["loadtest", *words, "--report", str(prefix)])


def test_an_interrupted_sweep_says_what_is_known(runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(3, KeyboardInterrupt())
    assert 130 == sweep(tmp_path / "s")
    said = capsys.readouterr()
    assert "interrupted; the report is of the trials that ended" in " ".join(said.err.split())
    sentence = "The search was cut off after 3 trials: 4 requests/s hold the SLO (1 of 1 trial held)"
    assert f"{sentence}; the upper bound is not known" in " ".join(said.out.split())
    found = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert ([4.0, None], False, 3) == (found["interval_rps"], found["ended"], len(found["trials"]))
    assert sentence in (tmp_path / "s.html").read_text(encoding="utf-8")


def test_a_late_trial_that_fails_takes_no_earlier_one_with_it(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(5, GeneratorError("the driver died"))
    assert 1 == sweep(tmp_path / "s")
    said = capsys.readouterr()
    assert said.err.endswith("penstock: the driver died\n")
    assert "4 requests/s hold the SLO" in " ".join(said.out.split())
    found = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert 4.0 == found["knee_rps"] < found["fails_rps"] < 8.0


def test_how_to_search_is_not_said_without_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["loadtest", "--scenario", "smoke", "--sweep-high", "5", "--target", "127.0.0.1:1"])
    assert "--sweep-high says how to search, which only --sweep does" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt(), 130), (GeneratorError("no"), 1)])
def test_a_sweep_without_a_trial_writes_nothing(
    runs: Any, tmp_path: Path, end: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(0, end)
    assert status == sweep(tmp_path / "s")
    assert [] == list(tmp_path.iterdir())
    assert "no trial ended, so there is no report" in capsys.readouterr().err


def test_a_rate_without_all_its_trials_is_no_bound() -> None:
    ran: list[float] = []

    def trial(rate: float, repeat: int) -> Trial:
        ran.append(rate)
        if len(ran) > 4:
            raise KeyboardInterrupt
        return Trial(rate, repeat, rate < 2, True, 9, 10, {})

    search = Search(SearchPlan(1.0, 8.0, repeats=5), trial)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    found = search.so_far()
    assert found.holds is not None
    assert (1.0, None, 4) == (found.holds.rate, found.fails, len(found.trials))

    nothing = Search(SearchPlan(1.0, 8.0), trial)
    with pytest.raises(KeyboardInterrupt):
        nothing.run()
    assert "neither bound is known" in nothing.so_far().sentence()


def test_trials_of_a_sweep_lose_nothing_on_a_narrow_screen() -> None:
    brief = {**figures(), "generator_lag_p99_s": 12.3456}
    knee = Search(SearchPlan(1.0, 2.0, 1), lambda rate, repeat: Trial(rate, repeat, True, True, 9, 10, brief)).run()
    text = shown(lambda console: command.print_table(_sweep_table(knee), console))
    assert "12,345.6" in text
    assert "12,345,678" in text


# --- what comes from a pipe -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--trace", "--lengths"])
def test_what_a_pipe_brings_is_read_before_the_run_and_in_it(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"arrival_s,prompt_tokens,output_tokens\n0,7,3\n1,7,3\n")
    os.close(writer)
    sent: list[list[tuple[int, int]]] = []
    files = []

    def run_scenario(scenario: Scenario, *_: object) -> dict[str, Any]:
        # Locust reads the files by the path that they lead to.
        paths = {name: str(Path(file).resolve()) if (file := getattr(scenario, name)) else "" for name in PATHS}
        files.extend(filter(None, paths.values()))
        sent.extend([(one.prompt_tokens, one.output_tokens) for one in plan(replace(scenario, **paths))] for _ in "ab")
        raise GeneratorError("enough")

    monkeypatch.setattr(command, "run_scenario", run_scenario)
    words = [flag, f"/dev/fd/{reader}", "--duration", "2", "--report", str(tmp_path / "r"), "--target", "127.0.0.1:1"]
    assert 1 == main(["loadtest", *words])
    os.close(reader)
    assert sent[0] == sent[1] != []
    assert {(7, 3)} == set(sent[0])
    assert not Path(files[0]).exists()


def test_a_pipe_without_requests_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    assert 2 == main(["loadtest", "--trace", f"/dev/fd/{reader}", "--target", "127.0.0.1:1"])
    os.close(reader)
    assert "has no requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "1e300"], "rate must be a number of at most 1000000, got 1e+300"),
        (["--duration", "1e300"], "duration_s must be a number of at most 31622400, got 1e+300"),
    ],
)
def test_a_load_that_would_never_end_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(*_: object) -> None:
        raise GeneratorError("begun")

    monkeypatch.setattr(command, "run_scenario", begun)
    monkeypatch.setattr(command, "plan", begun)
    assert 2 == main(["loadtest", "--target", "127.0.0.1:1", *words])
    assert f"penstock: {said}\n" == capsys.readouterr().err
