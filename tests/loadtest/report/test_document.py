"""The page of a report."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from loadtest.report.charts import Chart, Series
from loadtest.report.document import Document, Grid, Part, Tile, Verdict, render
from loadtest.report.origin import origin, shown_origin

CSS = files("loadtest.report").joinpath("page.css").read_text(encoding="utf-8")
COLOURS = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", CSS))
TEXT, LEAST_TEXT = ("ink", "soft", "good", "bad", "warn"), 4.5
LINES, LEAST_LINE = ("s1", "s2", "s3", "s4"), 3.0


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_and_lines_have_the_contrast_of_wcag_aa(scheme: int) -> None:
    of = {name: pair.split(", ")[scheme] for name, pair in COLOURS.items()}
    found = {(name, ground): contrast(of[name], of[ground]) for ground in ("paper", "card") for name in (*TEXT, *LINES)}
    assert {pair: round(value, 2) for pair, value in found.items()
            if value < (LEAST_LINE if pair[0] in LINES else LEAST_TEXT)} == {}  # fmt: skip


def document(**fields: object) -> Document:
    values = {"title": "a <b>", "kind": "Load test", "verdict": Verdict(False, "Broken", "1 of 2.", [("x<1", False)])}
    return Document(**{**values, **fields})  # type: ignore[arg-type]


def test_a_page_fits_a_phone_needs_no_script_and_escapes_names() -> None:
    grid = Grid(("", "p99"), [["TTFT <i>", "5 ms"]], bad=frozenset({(0, 1)}))
    page = render(document(parts=[Part("Times", grid=grid)], tiles=[Tile("TTFT", "5 ms")]))
    assert '<meta name="viewport" content="width=device-width' in page
    assert "<script" not in page
    assert "://" not in page
    assert "a &lt;b&gt;" in page
    assert "TTFT &lt;i&gt;" in page
    assert '<td class="bad">5 ms</td>' in page
    assert page.index("Broken") < page.index("Times")


def test_a_chart_without_values_is_named_and_not_drawn() -> None:
    empty, full = (
        Chart("Queue", "ms", [Series("p50", [0], [float("nan")])]),
        Chart("TTFT", "ms", [Series("a", [0], [1])]),
    )
    page = render(document(parts=[Part("Charts", charts=[empty, full])]))
    assert 1 == page.count("<figure>")
    assert "Nothing was measured for: Queue." in page


def test_a_running_page_fetches_itself_again() -> None:
    assert "<script>" in render(document(refresh_s=5))


def test_a_report_says_where_it_comes_from() -> None:
    shown = dict(shown_origin(origin("penstock", ["loadtest", "--report", "my file"])))
    assert "penstock loadtest --report 'my file'" == shown["Command"]
    assert shown["Version"].startswith("Penstock 0.")
    assert "cores" in shown["Machine"]
    assert shown["Date"].endswith(" UTC")
    assert [] == shown_origin({})
