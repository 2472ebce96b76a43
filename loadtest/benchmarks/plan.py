"""The planner's error on points that others measured: of the prior as it is, and of fits on points unseen by them."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from rich.table import Table
from rich.text import Text

from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.data import check_there, data_folder
from loadtest.benchmarks.ending import end
from loadtest.plan.engine.held_out import ALONE, HeldOut, as_json, hold_out_models, leave_one_shape_out
from loadtest.plan.engine.points import read_points, score
from loadtest.plan.verbs.check_points import show_scores

POINTS = "vllm_silicon_h100.csv"


def table_of(title: str, results: list[HeldOut]) -> Table:
    """Return a table of the errors on the points left out."""
    table = Table(title=title, title_justify="left")
    names = ("left out of", "kind", "points", "fitted points", "left out")
    add_columns(table, *names, words=("left out of",), left=("kind",))
    for each in results:
        kind = "dense" if each.dense else "MoE"
        table.add_row(Text(each.name), kind, str(each.points), f"{each.in_sample:.1%}", f"{each.held_out:.1%}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--points",
        type=Path,
        default=data_folder() / POINTS,
        help="a CSV file as for `penstock plan --check-points` (default %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    check_there(options.points, "--points")
    console = screen()
    points = read_points(options.points)
    scores = score(points)
    shapes, models = leave_one_shape_out(points), hold_out_models(points)
    alone = leave_one_shape_out(points, ALONE)
    show_scores(scores, console)
    print_table(table_of("One pair of lengths left out, held to the prior, mean TPOT error", shapes), console)
    print_table(table_of("One pair of lengths left out, points alone, mean TPOT error", alone), console)
    if models:
        print_table(table_of("One model left out, mean TPOT error", models), console)
    for name, results in (("held to the prior", shapes), ("points alone", alone)):
        dense = [each.held_out for each in results if each.dense]
        if dense:
            console.print(f"dense, unseen lengths, {name}: {statistics.fmean(dense):.1%}", highlight=False)
    if options.json is not None:
        data = {
            **scores.as_json(),
            "leave_one_shape_out": as_json(shapes),
            "leave_one_shape_out_points_alone": as_json(alone),
            "hold_out_model": as_json(models),
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    end("bench-plan", main)
