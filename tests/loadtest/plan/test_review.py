"""Predictions beside what happened."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.control.step_model import StepModel
from cluster.errors import SettingsError
from loadtest.plan.engine.steps import StepPrior
from loadtest.plan.option import Engine
from loadtest.plan.review import Book, EngineGroup, figures_in
from loadtest.plan.verbs.plan import with_history

KIND = EngineGroup("toy", "card", 2)
PREDICTED = {"itl_mean_s": {"low": 0.009, "middle": 0.010, "high": 0.011}}


def report(itl_s: float) -> dict[str, object]:
    return {"ttft_s": {"p50": 0.1}, "itl_s": {"mean": itl_s}}


def test_error_bias_and_coverage_are_of_what_was_observed(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for seen in (0.010, 0.0125, 0.0125):
        book.observe(book.predict(KIND, {}, PREDICTED), report(seen))
    figure = book.review()[KIND]["itl_mean_s"]
    assert (3, pytest.approx(0.2), pytest.approx(-0.2)) == (figure.count, figure.median_error, figure.bias)
    assert 1 / 3 == pytest.approx(figure.coverage)
    assert 0.2 == pytest.approx(book.error(KIND))


def test_observations_shift_the_middle_and_do_not_only_widen(tmp_path: Path) -> None:
    """An engine twice as slow as predicted is twice as slow, not uncertain by a half."""
    book = Book(tmp_path)
    for seen in (0.019, 0.020, 0.021):
        book.observe(book.predict(KIND, {}, PREDICTED), report(seen))
    shift = book.shift(KIND)
    assert shift is not None
    assert (2.0, 3) == (pytest.approx(shift.itl), shift.count)
    assert 1 / 30 == pytest.approx(shift.error, rel=0.01)


def test_a_shifted_prediction_that_was_right_leaves_the_shift(tmp_path: Path) -> None:
    book = Book(tmp_path)
    doubled = {"itl_mean_s": {"low": 0.018, "middle": 0.020, "high": 0.022}}
    for _ in range(3):
        book.observe(book.predict(KIND, {}, doubled, shifted=(2.0, 2.0)), report(0.020))
    shift = book.shift(KIND)
    assert shift is not None
    assert 2.0 == pytest.approx(shift.itl)


def test_precisions_are_engines_of_their_own(tmp_path: Path) -> None:
    book, fp8 = Book(tmp_path), EngineGroup("toy", "card", 2, "fp8")
    for _ in range(3):
        book.observe(book.predict(fp8, {}, PREDICTED), report(0.020))
    assert book.shift(fp8) is not None
    assert book.shift(KIND) is None
    assert "toy on 2 x card, fp8" == str(fp8)


@pytest.mark.parametrize("measured", ["profile", "3 points"])
def test_what_was_measured_is_not_corrected_once_more(tmp_path: Path, measured: str) -> None:
    """Load tests showed an engine to be twice as slow as the prior. Its points and its profile tell that already, and
    were planned as four times as slow.
    """
    book = Book(tmp_path)
    engine = Engine(
        "toy", "card", 2, "bf16", StepPrior(StepModel(0.02, 2e-5, 1e-8), 0.0), 0.1, "prior", 20_000, (2048, 16), 4096
    )
    for _ in range(3):
        book.observe(book.predict(EngineGroup("toy", "card", 2, "bf16"), {}, PREDICTED), report(0.020))
    assert 2.0 == pytest.approx(with_history(engine, book).shifted[0])
    known = replace(engine, measured=measured)
    assert known == with_history(known, book)
    assert f"toy on 2 x card, bf16 (by {measured})" == str(EngineGroup("toy", "card", 2, "bf16", measured=measured))
    for _ in range(3):
        kind = EngineGroup("toy", "card", 2, "bf16", measured=measured)
        book.observe(book.predict(kind, {}, PREDICTED), report(0.011))
    assert 1.1 == pytest.approx(with_history(known, book).shifted[0])


def test_too_few_observations_say_nothing(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.observe(book.predict(KIND, {}, PREDICTED), report(0.02))
    assert book.error(KIND) is None
    assert book.error(EngineGroup("toy", "card", 4)) is None


def test_only_the_last_observations_count(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for seen in [0.1] * 20 + [0.010] * 20:
        book.observe(book.predict(KIND, {}, PREDICTED), report(seen))
    assert 0.0 == pytest.approx(book.review()[KIND]["itl_mean_s"].median_error)


def test_a_report_may_have_its_figures_under_summary() -> None:
    data = {"summary": {"ttft_s": {"mean": 0.2, "p99": 0.5}, "itl_s": {"p95": 0.03}, "tokens_per_s": 12}}
    assert {"ttft_mean_s": 0.2, "ttft_p99_s": 0.5, "itl_p95_s": 0.03, "tokens_per_s": 12.0} == figures_in(data)


def test_messages_of_several_tokens_do_not_pass_for_tokens() -> None:
    report = {"itl_s": {"mean": 0.05, "p95": 0.08}, "tpot_s": {"mean": 0.01}, "output_tokens": 500, "messages": 100}
    assert {"itl_mean_s": 0.01} == figures_in(report)
    assert {"itl_mean_s": 0.05, "itl_p95_s": 0.08} == figures_in({**report, "messages": 500})


@pytest.mark.parametrize("wrong", [{}, {"ttft_s": 3}, {"itl_s": {"mean": None}}, {"tokens_per_s": True}])
def test_a_report_without_figures_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    book = Book(tmp_path)
    with pytest.raises(SettingsError, match="the report has none of"):
        book.observe(book.predict(KIND, {}, PREDICTED), wrong)


def test_an_unknown_prediction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no prediction has the id 'p9'"):
        Book(tmp_path).observe("p9", report(0.1))


def test_a_report_counts_once(tmp_path: Path) -> None:
    """One load test noted three times stood for three, and its error for nearly nothing."""
    book = Book(tmp_path)
    first, second = (book.predict(KIND, {}, PREDICTED) for _ in range(2))
    book.observe(first, report(0.02))
    with pytest.raises(SettingsError, match=f"a report with these figures was noted for {first} before"):
        book.observe(first, report(0.02))
    book.observe(first, report(0.021))
    book.observe(second, report(0.02))
    assert 3 == book.review()[KIND]["itl_mean_s"].count


def test_a_report_of_another_load_is_refused(tmp_path: Path) -> None:
    book = Book(tmp_path)
    plan_id = book.predict(KIND, {"rate": 40.0, "prompt_tokens": 100.0, "output_tokens": 50.0}, PREDICTED)
    sent = {"requests": 400, "completed": 400, "seconds": 10.0, "prompt_tokens": 44_000, "output_tokens": 18_000}
    assert {"itl_mean_s": 0.01} == book.observe(plan_id, report(0.01) | sent)
    with pytest.raises(SettingsError, match=r"not of p1: its rate is 4, planned were 40"):
        book.observe(plan_id, report(0.01) | sent | {"seconds": 100.0})
    with pytest.raises(SettingsError, match=r"its output_tokens is 450, planned were 50"):
        book.observe(plan_id, {"summary": report(0.01) | sent | {"output_tokens": 180_000}})
    # So few may come at three times the rate by chance.
    few = {"requests": 5, "completed": 5, "seconds": 0.05, "prompt_tokens": 500, "output_tokens": 250}
    book.observe(plan_id, report(0.0101) | few)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "plans.jsonl").write_text('{"kind": "prediction"}\n')
    with pytest.raises(SettingsError, match=r"plans.jsonl:1 is no prediction"):
        Book(tmp_path).review()


def test_a_state_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Neither a file in its place nor a folder in the place of its file ends in a traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"^state-dir: .*/file/plans\.jsonl cannot be read: Not a directory$"):
        Book(tmp_path / "file").predict(KIND, {}, PREDICTED)
    (tmp_path / "link").symlink_to("nowhere/there")
    with pytest.raises(SettingsError, match=r"^state-dir: .*/link/plans\.jsonl cannot be written: File exists$"):
        Book(tmp_path / "link").predict(KIND, {}, PREDICTED)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "plans.jsonl").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match=r"^state-dir: .*/text/plans\.jsonl cannot be read: .* invalid start byte$"):
        Book(tmp_path / "text").review()
    (tmp_path / "plans.jsonl").mkdir()
    with pytest.raises(SettingsError, match=r"^state-dir: .*/plans\.jsonl cannot be read: Is a directory$"):
        Book(tmp_path).review()


def test_the_commands_note_and_review(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_id = Book(tmp_path).predict(KIND, {}, PREDICTED)
    (tmp_path / "report.json").write_text(json.dumps(report(0.0105)), encoding="utf-8-sig")
    state = ["--state-dir", str(tmp_path), "--json"]
    assert 0 == main(["plan", "--observe", plan_id, str(tmp_path / "report.json"), *state])
    assert {"itl_mean_s": 0.0105} == json.loads(capsys.readouterr().out)["seen"]
    assert 0 == main(["plan", "--review", *state])
    (row,) = json.loads(capsys.readouterr().out)
    assert (2, 1.0) == (row["tensor_parallel"], row["figures"]["itl_mean_s"]["coverage"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rate", "1"], "give --model, --profile"),
        (["--model", "llama-3.1-8b"], "give --rate or --trace"),
        (["--model", "nobody/none-1b", "--rate", "1"], "no known model"),
        (["--model", "llama-3.1-8b", "--rate", "1", "--gpu", "abacus"], "'abacus' is not in the table"),
        (["--model", "llama-3.1-8b", "--rate", "1", "--precision", "fp3"], "precision must be one of"),
        (["--model", "llama-3.1-8b", "--rate", "1", "--price", "h100"], "price must be GPU=NUMBER"),
        (["--profile", "/nowhere.json", "--rate", "1"], "cannot be read"),
        (["--profile", "/nowhere.json", "--model", "demo", "--rate", "1"], "--model says what to look for"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["plan", "--no-store", *flags])
    assert message in " ".join(capsys.readouterr().err.split())
