"""Results of several models: JSON, table and page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from cluster.plural import counted
from cluster.terminal.tables import add_columns
from loadtest.report.document import Document, Grid, Part, Tile, Verdict, render
from loadtest.report.origin import shown_origin
from loadtest.report.units import shown_part, shown_time
from loadtest.simulate.models.run import ModelResult, SharedRun
from loadtest.simulate.results.page import GOAL
from loadtest.simulate.results.timeline import timeline_of

_HEAD = ("model", "requests", "within the SLO", "TTFT p99", "ITL p99", "GPU hours", "waited for GPUs")
NOTE = "How long a freed GPU takes to serve another model is that model's cold start, not held to any measurement."


def as_json(found: SharedRun) -> dict[str, Any]:
    """Return the data of `--json`."""
    return {
        "gpus": found.gpus,
        "most_gpus_used": found.most_used,
        "gpu_hours": sum(each.gpu_hours for each in found.models),
        "virtual_s": found.seconds,
        "attainment": found.attainment,
        "models": {each.load.name: _model(each) for each in found.models},
        "notes": [NOTE],
    }


def _model(each: ModelResult) -> dict[str, Any]:
    return {
        **each.figures.as_json(),
        **({"parts": each.run.parts} if each.run.parts else {}),
        "gpus_per_replica": each.load.gpus,
        "gpu_hours": each.gpu_hours,
        "waited_for_gpus_s": each.waited_s,
        "notes": each.load.notes(each.run),
    }


def table_of(found: SharedRun, title: str) -> Table:
    """Return the figures for a terminal."""
    table = Table(title=escape(f"{title}: {_summary(found)}"), caption=NOTE)
    add_columns(table, *_HEAD, words=("model",))
    for each in found.models:
        first, *rest = _row(each)
        table.add_row(escape(first), *rest)
    return table


def page_of(found: SharedRun, title: str, made_by: Mapping[str, str]) -> str:
    missed = [each.load.name for each in found.models if each.figures.attainment < GOAL]
    text = f"Below 99 % of their requests within the SLO: {', '.join(missed)}." if missed else "Each held 99 %."
    used = f"{found.most_used} of {found.gpus} GPUs used at most"
    tiles = [
        Tile("Within the SLO", shown_part(found.attainment), "of all models"),
        Tile("GPU hours", f"{sum(each.gpu_hours for each in found.models):.2f}", used),
    ]
    parts = [Part("Models", grid=Grid(_HEAD, [_row(each) for each in found.models]))]
    parts += [
        Part(each.load.name, each.load.notes(each.run), charts=timeline_of(each.run, each.load.setup))
        for each in found.models
    ]
    verdict = Verdict(not missed, "Broken" if missed else "Held", text)
    document = Document(
        title, "Simulation", verdict, [_summary(found), NOTE], tiles=tiles, parts=parts, origin=shown_origin(made_by)
    )
    return render(document)


def _summary(found: SharedRun) -> str:
    return f"{counted(len(found.models), 'model')} on {counted(found.gpus, 'GPU')}"


def _row(each: ModelResult) -> list[str]:
    figures = each.figures
    return [
        each.load.name,
        f"{figures.requests:,}",
        shown_part(figures.attainment),
        shown_time(figures.ttft_s.p99),
        shown_time(figures.itl_s.p99),
        f"{each.gpu_hours:.2f}",
        shown_time(each.waited_s),
    ]
