"""The report of a sweep as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.load.results.sweep import Knee, KneeEnd
from loadtest.load.results.words import scenario_words
from loadtest.report.charts import Chart, Rule, Series
from loadtest.report.document import Document, Grid, Part, Tile, Verdict, render
from loadtest.report.origin import shown_origin
from loadtest.report.units import shown_part, shown_time

_TIMES = (("ttft_s", "TTFT p99"), ("itl_s", "ITL p99"), ("e2e_s", "E2E p99"))


def sweep_page(scenario: Mapping[str, Any], knee: Knee, bounds: Sequence[str], origin: Mapping[str, Any]) -> str:
    """Return the report of a sweep.

    Args:
        scenario: fields of the scenario.
        knee: the result.
        bounds: bounds that a trial must hold.
        origin: version, command line, machine and time.
    """
    load = {name: value for name, value in scenario.items() if name != "rate"}
    said = scenario_words({**load, "rate": 1}).replace(" at 1 requests/s", " at rising rates")
    warnings = [] if knee.trusted else ["A generator was the bottleneck in a trial that decided."]
    return render(
        Document(
            str(scenario["name"]),
            "Sweep: the highest rate that holds",
            _verdict(knee),
            [f"{said}, per trial.", f"A trial holds with {' and '.join(bounds)}."],
            warnings,
            _tiles(knee),
            [Part("By rate", charts=_charts(knee)), Part("Trials", grid=_trials(knee))],
            shown_origin(origin),
        )
    )


def _verdict(knee: Knee) -> Verdict:
    said = knee.sentence()
    said = f"{said[0].upper()}{said[1:]}."
    if not knee.ended:
        return Verdict(None, "Cut off", said)
    return Verdict(knee.holds is not None, "Found" if knee.holds is not None else "Nothing holds", said)


def _tiles(knee: Knee) -> list[Tile]:
    def rate(end: KneeEnd | None) -> str:
        return "-" if end is None else f"{end.rate:.4g} per s"

    made = [
        Tile("Highest that held", rate(knee.holds), _votes(knee.holds)),
        Tile("Lowest that did not", rate(knee.fails), _votes(knee.fails)),
        Tile("Confidence in both", shown_part(knee.confidence, 0)),
    ]
    if knee.holds is not None and (at := knee.holds.attainment) is not None:
        made.append(
            Tile("Attainment there", shown_part(at.part), f"95 % sure: {100 * at.low:.1f} to {shown_part(at.high, 1)}")
        )
    return made


def _votes(end: KneeEnd | None) -> str:
    return "" if end is None else f"{end.held} of {end.tried} trials held"


def _charts(knee: Knee) -> list[Chart]:
    rules = [Rule(f"{end.rate:.4g} per s holds", end.rate, across=True) for end in (knee.holds,) if end is not None]

    def by_rate(title: str, unit: str, value: Any) -> Chart:
        made = []
        for held, name in ((True, "held"), (False, "broken")):
            known = [(each.rate, value(each.figures)) for each in knee.trials if each.held is held]
            pairs = [(rate, each) for rate, each in known if each is not None]
            colour: Any = "good" if held else "bad"
            made.append(Series(name, [x for x, _ in pairs], [y for _, y in pairs], "points", colour))
        return Chart(title, unit, made, rules, "requests/s")

    def scaled(value: float | None, scale: float) -> float | None:
        return None if value is None else scale * value

    return [
        *(by_rate(title, "ms", lambda each, name=name: scaled(each[name]["p99"], 1e3)) for name, title in _TIMES),
        by_rate("SLO attainment", "% of requests", lambda each: scaled(each["goodput"], 100.0)),
        by_rate("Throughput", "output tokens/s", lambda each: each["tokens_per_s"]),
    ]


def _trials(knee: Knee) -> Grid:
    head = (
        "requests/s",
        "trial",
        "verdict",
        "within the SLO",
        "tokens/s",
        *(title for _, title in _TIMES),
        "generator lag p99",
    )
    rows, bad = [], set()
    for at, each in enumerate(sorted(knee.trials, key=lambda trial: (trial.rate, trial.repeat))):
        figures = each.figures
        times = [shown_time(figures[name]["p99"]) for name, _ in _TIMES]
        words = [f"{each.rate:.4g}", str(each.repeat + 1), "held" if each.held else "broken"]
        lag = shown_time(figures["generator_lag_p99_s"])
        rows.append([*words, shown_part(figures["goodput"]), f"{figures['tokens_per_s']:,.0f}", *times, lag])
        if not each.held:
            bad.add((at, 2))
    return Grid(head, rows, (2,), frozenset(bad))
