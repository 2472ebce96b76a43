"""Output of a plan: as a table, as JSON, and as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape as as_it_is
from rich.table import Table
from rich.text import Text

from cluster.plural import counted
from cluster.terminal.tables import add_columns, print_table
from loadtest.plan.option import Promise
from loadtest.plan.search import Candidate, Rejected, SimulatedCandidate, priced
from loadtest.plan.traffic import Load
from loadtest.plan.trial import Range
from loadtest.plan.what_if import WhatIf
from loadtest.report.page import page
from loadtest.report.svg import Mark, frontier_chart


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of `penstock plan`."""

    model: str
    load: Load
    promise: Promise
    planned: Sequence[SimulatedCandidate]
    """Simulated candidates, the best first."""
    on_paper: Sequence[Candidate]
    """Candidates that were not simulated."""
    rejected: Sequence[Rejected]
    what_ifs: Sequence[WhatIf]

    @property
    def feasible(self) -> bool:
        """Whether any candidate keeps the promise."""
        return any(each.holds for each in self.planned)

    def as_json(self) -> dict[str, Any]:
        """Return the data of `--json`. Times are in seconds, costs in the currency of the prices."""
        return {
            "model": self.model,
            "load": {"name": self.load.name, "rate": self.load.rate, **asdict(self.load.shape)},
            "slo": asdict(self.promise),
            "feasible": self.feasible,
            "candidates": [_planned(each, self.load) for each in self.planned],
            "on_paper": [_paper(each) for each in self.on_paper],
            "rejected": [asdict(each) for each in self.rejected],
            "what_ifs": [asdict(each) for each in self.what_ifs],
        }


def _paper(each: Candidate) -> dict[str, Any]:
    engine, operation = each.engine, each.operation
    return {
        "gpu": engine.gpu,
        "tp": engine.tensor_parallel,
        "precision": engine.precision,
        "replicas": each.replicas,
        "gpus": each.gpus,
        "batch_limit": operation.batch,
        "step_tokens": operation.step_tokens,
        "kv_tokens": engine.kv_tokens,
        "kv_starved": engine.starved,
        "source": engine.source,
        "error": engine.error,
        "binding": operation.binding,
        "cost_per_hour": each.hourly,
    }


def _planned(each: SimulatedCandidate, load: Load) -> dict[str, Any]:
    return {
        **_paper(each.candidate),
        "binding": each.binding,
        "holds": each.holds,
        "predicted": asdict(each.ranges),
        "cost_per_million_tokens": each.per_million_tokens(load),
        "cost_per_million_output_tokens": each.per_million_tokens(load, output_only=True),
    }


def show(plan: Plan, console: Console) -> None:
    promise = plan.promise
    console.print(
        f"[bold]{as_it_is(plan.model)}[/], {as_it_is(plan.load.name)}; TTFT p99 {promise.ttft_p99_s:g} s, "
        f"ITL p95 {1e3 * promise.itl_p95_s:g} ms for {promise.attainment:.1%}",
        highlight=False,
    )
    if not plan.feasible:
        console.print("[red]Infeasible:[/] nothing that was looked at keeps this SLO.", highlight=False)
    if plan.planned:
        print_table(_table(plan), console)
        sources = sorted({f"{e.engine.source} (step times within {e.engine.error:.0%})" for e in plan.planned})
        console.print(
            "Batch: sequences of tokens per step. Ranges hold 90 % of what is known of the engines' speed: "
            f"{as_it_is('; '.join(sources))}. Replicas are enough for an engine that is as much slower.",
            highlight=False,
        )
    compared = [*(each.candidate for each in plan.planned), *plan.on_paper]
    if any(each.hourly is not None for each in compared) and not priced(compared):
        console.print("Ranked by number of GPUs: not all of them have a price.", highlight=False)
    for what in plan.what_ifs:
        console.print(as_it_is(f"  what if {_said(what)}"), highlight=False)
    for lost in plan.rejected:
        console.print(f"  [dim]cannot be: {as_it_is(f'{lost.name}: {lost.why}')}[/]", highlight=False)


def _said(what: WhatIf) -> str:
    source = "simulated" if what.simulated else "on paper"
    cost = "" if what.hourly is None else f", {what.hourly:.2f}/h"
    text = "infeasible" if what.gpus is None else f"{counted(what.gpus, 'GPU')}{cost}"
    return f"{what.change}: {text}: {what.outcome} ({source})"


def _table(plan: Plan) -> Table:
    table = Table(title="Candidates, the best first")
    names = ("replicas", "batch", "TTFT p99 ms", "ITL p95 ms", "tokens/s", "SLO met,\nat worst", "cost", "bound by")
    add_columns(table, *names, words=("replicas", "cost", "bound by"))
    for each in plan.planned:
        r, candidate = each.ranges, each.candidate
        met = f"{r.attainment.low:.1%}"
        starved = ", KV starved" if each.engine.starved else ""
        hourly, tokens = _money(candidate.hourly), _money(each.per_million_tokens(plan.load))
        cost = "-" if candidate.hourly is None else f"{hourly}/h, {tokens} per M tokens"
        table.add_row(
            Text(f"{candidate.replicas} of {each.engine.name}{starved}: {counted(candidate.gpus, 'GPU')}"),
            f"{candidate.operation.batch} of {candidate.operation.step_tokens}",
            _span(r.ttft_p99_s, 1e3),
            _span(r.itl_p95_s, 1e3),
            _span(r.tokens_per_s, 1),
            met if r.attainment.low >= plan.promise.attainment else f"[red]{met}[/]",
            cost,
            Text(each.binding, "" if each.holds else "red"),
        )
    return table


def _span(value: Range, factor: float) -> str:
    low, high = factor * value.low, factor * value.high
    if not math.isfinite(high):
        return "-"
    return f"{low:,.0f}-{high:,.0f}" if high >= 10 else f"{low:.1f}-{high:.1f}"


def _money(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def write_html(path: Path, plan: Plan) -> None:
    """Write a self-contained page.

    Raises:
        OSError: the file cannot be written.
    """
    title = f"{plan.model}: {plan.load.name}"
    rows = "".join(_row(each, plan.load) for each in plan.planned)
    head = "<tr><th>replicas<th>GPUs<th>batch<th>TTFT p99, ms<th>ITL p95, ms<th>tokens/s<th>cost/h<th>bound by</tr>"
    verdict = "" if plan.feasible else "<p><b>Infeasible: nothing that was looked at keeps this SLO.</b></p>"
    body = [
        f"<h1>{escape(title)}</h1>{verdict}<table>{head}{rows}</table>",
        _pareto(plan),
        _list("What if", [_said(what) for what in plan.what_ifs]),
        _list("Cannot be", [f"{lost.name}: {lost.why}" for lost in plan.rejected]),
    ]
    path.write_text(page(title, body), encoding="utf-8")


def _row(each: SimulatedCandidate, load: Load) -> str:
    r, candidate = each.ranges, each.candidate
    cells = (
        f"{candidate.replicas} of {each.engine.name}",
        str(candidate.gpus),
        f"{candidate.operation.batch} / {candidate.operation.step_tokens}",
        _span(r.ttft_p99_s, 1e3),
        _span(r.itl_p95_s, 1e3),
        _span(r.tokens_per_s, 1),
        _money(candidate.hourly),
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + f'<td class="left">{escape(each.binding)}</tr>'


def _list(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if lines else ""


def _pareto(plan: Plan) -> str:
    by_cost = priced(each.candidate for each in plan.planned)
    marks = [
        Mark(
            f"{each.candidate.replicas} of {each.engine.name}",
            each.candidate.rank(by_cost=by_cost)[0],
            1e3 * each.ranges.ttft_p99_s.middle,
            1e3 * each.ranges.ttft_p99_s.low,
            1e3 * each.ranges.ttft_p99_s.high,
        )
        for each in plan.planned
        if math.isfinite(each.ranges.ttft_p99_s.high)
    ]
    unit = "cost per hour" if by_cost else "GPUs"
    return frontier_chart("Cost and latency", unit, "TTFT p99, ms", marks) if marks else ""
