"""`penstock plan --check-points`: scores the prior on measured points."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.plural import counted
from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.plan.engine.points import Scores, read_points, score
from loadtest.plan.measured.recipes import as_run


def check_points(path: Path, *, as_json: bool) -> int:
    """Score the prior on a file of points and print the scores.

    Raises:
        TraceError: the file cannot be read.
    """
    scores = score(as_run(read_points(path)))
    if as_json:
        sys.stdout.write(json.dumps(scores.as_json(), indent=2) + "\n")
    else:
        show_scores(scores, screen())
    return 0


def show_scores(scores: Scores, console: Console) -> None:
    """Print how the prior does on measured points."""
    table = Table(title="The prior on measured points")
    names = ("model", "system", "precision", "TP", "points", "TPOT error", "bias", "TTFT error", "bias", "")
    add_columns(table, *names, words=("model", "system", "precision", ""))
    for each in scores.configs:
        data = each.as_json()
        table.add_row(
            Text(each.config.model),
            Text(each.config.system),
            Text(each.config.precision),
            each.config.split,
            str(each.points),
            f"{data['median_tpot_error']:.1%}",
            f"{data['tpot_bias']:+.1%}",
            f"{data['median_ttft_error']:.1%}",
            f"{data['ttft_bias']:+.1%}",
            "seen by the prior" if each.in_calibration else "",
        )
    print_table(table, console, keys=4)
    whole = scores.as_json()
    if scores.configs:
        console.print(
            f"Median error: TPOT {whole['median_tpot_error']:.1%}, TTFT {whole['median_ttft_error']:.1%}; "
            f"90th percentile: {whole['p90_tpot_error']:.1%}, {whole['p90_ttft_error']:.1%}; "
            f"in their 90 % ranges: {whole['tpot_in_range']:.0%}, {whole['ttft_in_range']:.0%}",
            highlight=False,
        )
    for lost in scores.skipped:
        text = (
            f"{lost['model']} {lost['system']} {lost['precision']}: {counted(lost['points'], 'point')}, {lost['why']}"
        )
        console.print(escape(f"skipped: {text}"), highlight=False)
