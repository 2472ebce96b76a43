"""Charts as pictures."""

from __future__ import annotations

import math
import re

import pytest

from loadtest.report.charts import Chart, RangeChart, RangeRow, Rule, Series, distribution
from loadtest.report.draw import clock, keys_of, svg_of

NAN = math.nan


def ticks(svg: str) -> list[str]:
    return re.findall(r">([-\d.,:]+)</text>", svg)


def line(*values: float) -> Series:
    return Series("ttft", list(range(len(values))), list(values))


def test_values_without_neighbours_are_found() -> None:
    assert [0, 3, 8] == line(5, NAN, NAN, 6, NAN, 7, 8, NAN, 1).lone()


def test_a_value_without_neighbours_is_drawn() -> None:
    """A line through gaps would be invisible: at low rates a chart was empty."""
    values = [NAN] * 60
    values[30] = 20.0
    drawn = svg_of(Chart("TTFT", "ms", [line(*values)], x_axis="clock"))
    without = svg_of(Chart("TTFT", "ms", [line(*([NAN] * 29), 20.0, 20.0, *([NAN] * 29))], x_axis="clock"))
    assert 1 == drawn.count("<use") - without.count("<use")


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(51.0, "0:10"), (13.0, "0:05"), (600.0, "2:00"), (3 * 3600.0, "0:30:00")],
)
def test_times_have_round_ticks(seconds: float, wanted: str) -> None:
    found = ticks(svg_of(Chart("x", "ms", [Series("a", [0.0, seconds], [1.0, 846.0])], x_axis="clock")))
    assert wanted in found or wanted.removeprefix("0:") in found
    values = [float(each.replace(",", "")) for each in found if ":" not in each]
    assert all(each % 50 == 0 for each in values), values


def test_a_bound_is_drawn_and_named_and_one_far_above_is_named() -> None:
    near = Chart("TTFT", "ms", [line(80.0, 90.0)], [Rule("SLO 100 ms", 100.0)])
    far = Chart("TTFT", "ms", [line(8.0, 9.0)], [Rule("SLO 2 s", 2000.0)])
    assert ["SLO 100 ms"] == [name for name, _, _ in keys_of(near)]
    assert ["SLO 2 s, beyond the chart"] == [name for name, _, _ in keys_of(far)]
    assert "100" in ticks(svg_of(near))
    assert max(float(each) for each in ticks(svg_of(far))) <= 10


def test_a_picture_takes_its_colours_from_the_page_and_has_ids_of_its_own() -> None:
    one, other = (svg_of(Chart(name, "ms", [line(1, 2), line(2, 3)])) for name in ("a", "b"))
    assert "#0" not in one
    assert "var(--s1)" in one
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (one, other)]
    assert not ids[0] & ids[1]
    used = set(re.findall(r"#([\w]+)", one))
    assert used <= ids[0]


def test_names_are_no_markup() -> None:
    svg = svg_of(Chart("<b>", 'm"s', [Series("$_$ <i>", [0, 1], [1, 2])], x_name="<u> $_$"))
    assert "<b>" not in svg
    assert "<u>" not in svg


def test_rows_of_equal_value_lie_below_each_other_and_the_axis_begins_near_them() -> None:
    rows = [RangeRow("2 of 1 x h100", 900.0, 950.0, 1000.0), RangeRow("1 of 2 x h100", 900.0, 950.0, 1000.0)]
    svg = svg_of(RangeChart("TTFT p99", "ms", rows))
    assert min(float(each.replace(",", "")) for each in ticks(svg)) > 800
    heights = {float(each) for each in re.findall(r"translate\([-\d.]+ ([-\d.]+)\)[^>]*>(?:[^<]*)of", svg)}
    assert all(row.name in svg for row in rows)
    assert len(heights) != 1


def test_ranges_far_apart_have_decades() -> None:
    """One candidate that collapses would leave the others no room on a line."""
    rows = [RangeRow("calm", 150.0, 160.0, 200.0), RangeRow("lost", 150.0, 900.0, 146_400.0)]
    assert {"1,000", "100,000"} <= set(ticks(svg_of(RangeChart("TTFT p99", "ms", rows))))


def test_a_distribution_of_a_wide_range_has_decades() -> None:
    chart = distribution("TTFT", [("all", [(0.01, 0.0), (0.1, 0.5), (5.0, 1.0)]), ("none", [])])
    assert ("log", ["all"]) == (chart.x_axis, [each.name for each in chart.series])
    assert {"100", "1,000"} <= set(ticks(svg_of(chart)))


def test_hours_are_shown_when_there_are_some() -> None:
    assert ["0:05", "10:00", "1:01:05"] == [clock(each) for each in (5, 600, 3665)]
