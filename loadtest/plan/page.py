"""A plan as one self-contained HTML page. It has all that the terminal shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.plural import counted
from loadtest.plan.report import Plan, engine_flags, money, notes, said, slo_words, span
from loadtest.plan.search import SimulatedCandidate, priced
from loadtest.plan.trial import Range, Ranges
from loadtest.report.charts import RangeChart, RangeRow, Rule
from loadtest.report.document import Document, Grid, Part, Tile, Verdict, render
from loadtest.report.origin import shown_origin
from loadtest.report.units import shown_bound

_HEAD = (
    "replicas", "GPUs", "batch", "TTFT p99, ms", "ITL p95, ms", "tokens/s", "SLO met, when sure", "cost per hour",
    "per M tokens", "bound by",
)  # fmt: skip
_OF_VECTORS = tuple("vectors/s" if name == "tokens/s" else name for name in _HEAD if name != "ITL p95, ms")
"""Columns for embeddings: a vector comes with its first token, and nothing is between it and the next."""


def write_html(path: Path, plan: Plan, origin: Mapping[str, str]) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    parts = [
        Part("Candidates, the best first", notes(plan), charts=_charts(plan), grid=_grid(plan)),
        Part(
            "Flags of the engines",
            items=[f"{_name(each)}: {engine_flags(each.candidate, plan.load)}" for each in plan.planned],
        ),
        Part("What if", items=[said(what, plan.currency) for what in plan.what_ifs]),
        Part("Cannot be", items=[f"{lost.name}: {lost.why}" for lost in plan.rejected]),
    ]
    document = Document(
        plan.title,
        "Capacity plan",
        _verdict(plan),
        [f"Load: {plan.load.name}.", f"SLO: {slo_words(plan.promise)} of requests."],
        tiles=_tiles(plan),
        parts=[part for part in parts if part.items or part.charts],
        origin=shown_origin(origin),
    )
    path.write_text(render(document), encoding="utf-8")


def _verdict(plan: Plan) -> Verdict:
    if not plan.feasible:
        return Verdict(False, "Infeasible", "Nothing that was looked at keeps this SLO.")
    best = plan.planned[0]
    cost = "" if best.candidate.hourly is None else f", {money(best.candidate.hourly, plan.currency)} per hour"
    gpus = counted(best.candidate.gpus, "GPU")
    replicas = counted(best.candidate.replicas, "replica")
    return Verdict(True, "Keeps the SLO", f"{replicas} of {best.engine.name}: {gpus}{cost}.")


def _tiles(plan: Plan) -> list[Tile]:
    if not plan.planned:
        return []
    best, load = plan.planned[0], plan.load
    ranges, candidate = best.ranges, best.candidate
    sure = f"{plan.promise.confidence:.0%}".replace("%", " %")
    made = [
        Tile("GPUs", str(candidate.gpus), _name(best)),
        Tile(
            f"SLO met, {sure} sure",
            f"{best.sure:.1%}".replace("%", " %"),
            f"{best.worst:.1%}".replace("%", " %") + " at worst",
            bad=best.sure < plan.promise.attainment,
        ),
        Tile("TTFT p99", f"{span(ranges.ttft_p99_s, 1e3)} ms", f"SLO {shown_bound(plan.promise.ttft_p99_s)}"),
        *_between_tokens(plan, ranges),
        Tile("Throughput", f"{span(ranges.tokens_per_s, 1)} {_unit(plan)}"),
    ]
    if candidate.hourly is not None:
        per_million = money(best.per_million_tokens(load), plan.currency)
        made.insert(1, Tile("Cost per hour", money(candidate.hourly, plan.currency), f"{per_million} per M tokens"))
    return made


def _unit(plan: Plan) -> str:
    return "tokens/s" if _texts(plan) else "vectors/s"


def _texts(plan: Plan) -> bool:
    return not plan.load.vectors


def _between_tokens(plan: Plan, ranges: Ranges) -> list[Tile]:
    """Return the times between tokens that have a bound."""
    figures = (
        ("ITL p95", ranges.itl_p95_s, plan.promise.itl_p95_s),
        ("TPOT, mean", ranges.itl_mean_s, plan.promise.tpot_s),
    )
    return [
        Tile(name, f"{span(value, 1e3)} ms", f"SLO {shown_bound(bound)}")
        for name, value, bound in figures
        if math.isfinite(bound)
    ]


def _grid(plan: Plan) -> Grid:
    rows, bad = [], set()
    head = _HEAD if _texts(plan) else _OF_VECTORS
    for at, each in enumerate(plan.planned):
        ranges, candidate = each.ranges, each.candidate
        rows.append(
            (
                _name(each),
                str(candidate.gpus),
                f"{candidate.operation.batch} of {candidate.operation.step_tokens}",
                span(ranges.ttft_p99_s, 1e3),
                *([span(ranges.itl_p95_s, 1e3)] if _texts(plan) else []),
                span(ranges.tokens_per_s, 1),
                f"{each.sure:.1%}".replace("%", " %"),
                money(candidate.hourly, plan.currency),
                money(each.per_million_tokens(plan.load), plan.currency),
                each.binding,
            )
        )
        if each.sure < plan.promise.attainment:
            bad.add((at, head.index("SLO met, when sure")))
        if not each.holds:
            bad.add((at, len(head) - 1))
    return Grid(head, rows, (len(head) - 1,), frozenset(bad))


def _charts(plan: Plan) -> list[RangeChart]:
    by_cost = priced(each.candidate for each in plan.planned)

    def ranges(title: str, unit: str, of: Callable[[SimulatedCandidate], Range], bound_s: float) -> RangeChart:
        rows = [
            RangeRow(_name(each), 1e3 * of(each).low, 1e3 * of(each).middle, 1e3 * of(each).high)
            for each in plan.planned
            if math.isfinite(of(each).high)
        ]
        rules = [Rule(f"SLO {shown_bound(bound_s)}", 1e3 * bound_s)] if math.isfinite(bound_s) else []
        return RangeChart(title, unit, rows, rules)

    costs = [(each, each.candidate.rank(by_cost=by_cost)[0]) for each in plan.planned]
    unit = f"{plan.currency} per hour".strip() if by_cost else "GPUs"
    if not costs:
        return []
    sizes = [RangeRow(_name(each), cost, cost, cost) for each, cost in costs]
    made = [
        RangeChart("Cost" if by_cost else "Size", unit, sizes),
        ranges("TTFT p99", "ms", lambda each: each.ranges.ttft_p99_s, plan.promise.ttft_p99_s),
    ]
    if _texts(plan):
        made.append(ranges("ITL p95", "ms", lambda each: each.ranges.itl_p95_s, plan.promise.itl_p95_s))
    return made


def _name(each: SimulatedCandidate) -> str:
    return f"{each.candidate.replicas} of {each.engine.name}{', KV starved' if each.engine.starved else ''}"
