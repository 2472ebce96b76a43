"""The planner's error on points that others measured: of the prior as it is, and of fits on points unseen by them.

Figures with a bar are held to it: the status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.plural import counted
from cluster.terminal.console import messages, screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.benchmarks.data import check_there, data_folder
from loadtest.benchmarks.ending import end
from loadtest.benchmarks.rivals.asking import PACKAGE, ask, installed, questions
from loadtest.benchmarks.rivals.compare import RIVAL, Asked, compare, tables_of
from loadtest.plan.engine.points import Scores, read_points, score
from loadtest.plan.measured.bars import SUBMISSIONS, PlannerBar, bars_of, beyond, ratio_of
from loadtest.plan.measured.held_out import (
    ALONE,
    HeldOut,
    Verdicts,
    as_json,
    hold_out_gpus,
    hold_out_models,
    leave_one_shape_out,
    three_points,
    usable,
    verdicts,
)
from loadtest.plan.measured.recipes import as_run
from loadtest.plan.verbs.check_points import show_scores

POINTS = ("vllm_silicon_h100.csv", "vllm_silicon_more.csv")
SLOS = ((2.0, 0.1), (1.0, 0.05), (0.5, 0.03))
"""Pairs of bounds, TTFT and TPOT in seconds, that verdicts are counted for."""
_TITLES = {
    "leave_one_shape_out": "One pair of lengths left out, held to the prior, mean TPOT error",
    "leave_one_shape_out_points_alone": "One pair of lengths left out, points alone, mean TPOT error",
    "hold_out_model": "One model left out of the prior, mean TPOT error",
    "hold_out_gpu": "One accelerator left out of the prior, mean TPOT error",
    "hold_out_model_ttft": "One model left out of the constants of TTFT, mean TTFT error",
    "hold_out_gpu_ttft": "One accelerator left out of the constants of TTFT, mean TTFT error",
}


def table_of(title: str, results: list[HeldOut], inside: str = "fitted points", outside: str = "left out") -> Table:
    """Return a table of the errors on the points left out."""
    table = Table(title=title, title_justify="left")
    names = ("left out", "kind", "points", inside, outside, "bias")
    add_columns(table, *names, words=("left out",), left=("kind",))
    for each in results:
        kind = "dense" if each.dense else "MoE"
        errors = f"{each.in_sample:.1%}", f"{each.held_out:.1%}", f"{each.bias:+.1%}"
        table.add_row(Text(each.name), kind, str(each.points), *errors)
    return table


def table_of_bars(bars: Iterable[PlannerBar]) -> Table:
    """Return a table that says which bars are held."""
    table = Table(title="Bars", title_justify="left")
    add_columns(table, "figure", "value", "bar", "", words=("figure", "bar", ""))
    for each in bars:
        verdict = "held" if each.held else "[red]missed[/]"
        table.add_row(
            Text(each.name), each.words(each.value), each.bounds, f"{verdict}: {each.note}" if each.note else verdict
        )
    return table


def _tell_verdicts(said: Sequence[Verdicts], console: Console) -> None:
    for each in said:
        console.print(
            f"SLO {each.ttft_s:g} s and {1e3 * each.tpot_s:g} ms on {each.points + each.odd} points, 90 % sure: "
            f"{each.wrong_yes + each.odd_yes} wrong yes ({each.wrong_part:.2%}); without {each.odd} that contradict "
            f"others {each.wrong_yes} wrong yes, {each.wrong_no} wrong no",
            highlight=False,
        )


def _tell_groups(scores: Scores, console: Console) -> None:
    """Name the groups beyond the bars, which hold on the points of the fit only."""
    for group in beyond(scores):
        data = group.as_json()
        console.print(
            f"beyond the bars for groups: {group.config.model} {group.config.system} {group.config.precision} "
            f"{group.config.split}, {counted(group.points, 'point')}, TPOT {data['tpot_bias']:+.0%}, TTFT "
            f"{data['ttft_bias']:+.0%}",
            highlight=False,
        )


def _beside(
    folder: Path, files: Sequence[Path], models: Sequence[HeldOut], first: Sequence[HeldOut], console: Console
) -> dict[str, Any]:
    """Ask the other planner about all points and print both beside each other. Return the data of the figures."""
    with messages().status(f"installing {PACKAGE} in {folder}"):
        python = installed(folder)
    if isinstance(python, str):
        return _not_asked(f"{PACKAGE} cannot be installed: {python}", console)
    named = [point for file in files for point in read_points(file)]
    asked = [question for file in files for question in questions(file)]
    with messages().status(RIVAL) as status:
        told = ask(python, asked, lambda count: status.update(f"{RIVAL}: {count} of {len(asked)} points"))
    if isinstance(told, str):
        return _not_asked(told, console)
    points = map(Asked, named, as_run(named), told.each)
    found = compare(points, models, first)
    for table in tables_of(found):
        print_table(table, console)
    for why, count in found.unanswered.items():
        console.print(
            f"{RIVAL} {told.version}: {counted(count, 'point')} without an answer: {escape(why)}", highlight=False
        )
    return {"version": told.version, **found.as_json()}


def _not_asked(why: str, console: Console) -> dict[str, Any]:
    console.print(f"[red]{RIVAL} was not asked:[/] {escape(why)}", highlight=False)
    return {"why": why}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--points",
        type=Path,
        action="append",
        help=f"a CSV file as for `penstock plan --check-points`; may be given again (default {' and '.join(POINTS)})",
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument(
        "--rivals",
        type=Path,
        metavar="FOLDER",
        help=f"ask {RIVAL} as well: a virtual environment with its package, which is made there if need be",
    )
    return parser


def main() -> int:
    options = _parser().parse_args()
    files = options.points or [data_folder() / each for each in POINTS]
    for file in files:
        check_there(file, "--points")
    console = screen()
    points = as_run(point for file in files for point in read_points(file))
    scores = score(points)
    clean = score(usable(points))
    show_scores(scores, console)
    figures = clean.as_json()
    if clean.configs:
        console.print(
            f"without queues and odd engines: TPOT {figures['median_tpot_error']:.1%} (90th percentile "
            f"{figures['p90_tpot_error']:.1%}), TTFT {figures['median_ttft_error']:.1%}, in their ranges "
            f"{figures['tpot_in_range']:.0%} and {figures['ttft_in_range']:.0%}",
            highlight=False,
        )
    (models, models_first), (gpus, gpus_first) = hold_out_models(points), hold_out_gpus(points)
    parts = {
        "leave_one_shape_out": leave_one_shape_out(points),
        "leave_one_shape_out_points_alone": leave_one_shape_out(points, ALONE),
        "hold_out_model": models,
        "hold_out_gpu": gpus,
        "hold_out_model_ttft": models_first,
        "hold_out_gpu_ttft": gpus_first,
    }
    for name, results in parts.items():
        if results:
            print_table(table_of(_TITLES[name], results), console)
    three = three_points(points) if parts["hold_out_model"] else []
    if three:
        title = "A model left out of the prior, then three points of each engine, mean TPOT error on other lengths"
        print_table(table_of(title, three, "before", "after"), console)
    said = [verdicts(points, ttft_s, tpot_s) for ttft_s, tpot_s in SLOS]
    _tell_verdicts(said, console)
    bars = [*bars_of(scores, clean, said), *(ratio_of(each) for each in SUBMISSIONS)]
    print_table(table_of_bars(bars), console)
    _tell_groups(scores, console)
    rival = _beside(options.rivals, files, models, models_first, console) if options.rivals else None
    if options.json is not None:
        held = {name: as_json(results) for name, results in (*parts.items(), ("three_points", three))}
        options.json.write_text(
            json.dumps(
                {
                    **scores.as_json(),
                    "clean": figures,
                    "verdicts": [each.as_json() for each in said],
                    "bars": [each.as_json() for each in bars],
                    **({} if rival is None else {"rivals": {RIVAL: rival}}),
                    **held,
                },
                indent=1,
            )
            + "\n"
        )
    return 0 if all(each.held for each in bars) else 1


if __name__ == "__main__":
    end("bench-plan", main)
