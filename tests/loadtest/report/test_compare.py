"""The comparison of two runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.errors import SettingsError
from loadtest.report.compare import Measure, comparison, read_report


@pytest.mark.parametrize(
    ("measure", "change"),
    [
        (Measure("TTFT", 0.05, 0.1, "time"), "-50 %, better"),
        (Measure("TTFT", 150.0, 100.0, ",.1f", "ms"), "+50 %, worse"),
        (Measure("tokens", 150.0, 100.0, ",.0f", more_is_better=True), "+50 %, better"),
        (Measure("SLO", 0.98, 0.99, ".2%", more_is_better=True), "-1.00 points, worse"),
        (Measure("TTFT", 100.1, 100.0, ",.1f", "ms"), "equal"),
        (Measure("failed", 3.0, 0.0, ",.0f"), "worse"),
        (Measure("hours", 3.0, 2.0, ",.0f", more_is_better=None), "+50 %"),
        (Measure("ITL", None, 2.0, ",.0f"), "-"),
    ],
)
def test_a_difference_is_said_with_its_direction(measure: Measure, change: str) -> None:
    grid = comparison([measure], "before")
    assert change == grid.rows[0][3]
    assert ("worse" in change) is ((0, 3) in grid.bad)


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "it has no requests"), ("{", "cannot be read"), ('{"x": 1}', "it has no requests")]
)
def test_a_file_that_is_no_report_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_report(str(file), ["requests"], "a load test")
