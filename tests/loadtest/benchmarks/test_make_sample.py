"""The trace that ships with the package."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from loadtest.benchmarks.make_sample import SECONDS, lines
from loadtest.traces import read_trace, trace_file
from loadtest.traces.sample import NAME, SAMPLE


def test_the_sample_is_what_its_maker_draws() -> None:
    assert "\n".join(lines()) + "\n" == SAMPLE.read_text(encoding="utf-8")


def test_its_lengths_are_those_that_were_published() -> None:
    trace = read_trace(SAMPLE)
    assert pytest.approx(1020, rel=0.1) == median(each.prompt_tokens for each in trace)
    assert pytest.approx(129, rel=0.1) == median(each.output_tokens for each in trace)
    assert 0.9 * SECONDS < trace[-1].arrival_s < SECONDS
    assert 15_000 > SAMPLE.stat().st_size


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(SAMPLE) == trace_file(NAME)
    assert "other.csv" == trace_file("other.csv")
    (tmp_path / NAME).write_text("x")
    assert NAME == trace_file(NAME)
