"""`penstock decisions`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import above_zero, whole
from router.commands.target import add_target_flags, open_client, placed_by, report_call_errors

if TYPE_CHECKING:
    from penstock.client import Decision, DecisionList, OperatingPoint


_LIMIT, _HOURS = 20, 24.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what the autoscaler decided, and why. replicas: those that serve, and after + those that stand by. "
        "needed: replicas that the load needs. ready: replicas that work, and after + those that start. waiting: "
        "requests in the queue. relief: what the pool gives up for lack of replicas. Below the table are the steps "
        "from the load to the number of the newest decision: each with its result in replicas and its reason."
    )
    parser.add_argument("--pool", default="", help="the pool (default: the only one)")
    parser.add_argument(
        "--limit",
        type=whole(1, 1000),
        metavar="N",
        help=f"number of decisions, newest first, 1 to 1000 (default {_LIMIT})",
    )
    parser.add_argument("--all", action="store_true", help="also list decisions that changed nothing")
    views = parser.add_mutually_exclusive_group()
    views.add_argument(
        "--headroom",
        action="store_true",
        help="instead, show what each step of autoscale.headroom would cost and attain with the recorded load",
    )
    views.add_argument(
        "--compare",
        action="store_true",
        help="instead, show what this autoscaler would have saved or cost beside what ran, such as an HPA",
    )
    parser.add_argument(
        "--hours",
        type=above_zero,
        metavar="H",
        help=f"hours of load for these two, at least 1, as far as decisions are kept (default {_HOURS:g})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target_flags(parser)
    show_examples(
        parser,
        "penstock decisions",
        "penstock decisions --pool large --limit 100 --all",
        "penstock decisions --headroom",
        "penstock decisions --compare --hours 8",
    )
    parser.set_defaults(run=run_decisions)


def _check(options: argparse.Namespace) -> None:
    """Refuse flags that would have no effect.

    Raises:
        SettingsError: names one.
    """
    view = "--headroom" if options.headroom else "--compare" if options.compare else ""
    if options.hours is not None and not view:
        raise SettingsError("--hours: needs --headroom or --compare")
    for flag, given in (("--limit", options.limit is not None), ("--all", options.all)):
        if given and view:
            raise SettingsError(f"{flag}: can't go with {view}, which lists no decisions")
    if options.all and options.json:
        raise SettingsError("--all: can't go with --json, which leaves none out")


def run_decisions(options: argparse.Namespace) -> int:
    """Show a pool's decisions, the newest one in full."""
    _check(options)
    with report_call_errors(options, "10 s", placed_by({"pool": "--pool"})) as outcome, open_client(options) as client:
        if options.headroom or options.compare:
            # Most calls need no replay.
            from router.commands.decisions.review import review

            review(options, client, _HOURS if options.hours is None else options.hours)
            return outcome.status
        found = client.decisions(options.pool, limit=options.limit or _LIMIT, timeout=10.0)
        if options.json:
            print_json(_fields(found))
        else:
            show_decisions(found, screen(), everything=options.all)
    return outcome.status


def _fields(found: DecisionList) -> dict[str, Any]:
    fields = dataclasses.asdict(dataclasses.replace(found, load_record=None))
    del fields["load_record"]
    return fields


def show_decisions(found: DecisionList, console: Console, *, everything: bool) -> None:
    """Print a table of decisions, and below it the steps of the newest one."""
    origin = "set at run time" if found.operating_point_set else "from the settings"
    console.print(f"operating point ({origin}): {point_text(found.operating_point)}", highlight=False)
    if not found.decisions:
        console.print("no decisions: no autoscaler has looked after this pool")
        return
    print_table(_table(found.decisions, everything=everything), console)
    newest = found.decisions[0]
    console.print(
        f"[bold]decision {newest.number}[/], {escape(newest.leader)} (fence {newest.fence}):", highlight=False
    )
    for step in newest.steps:
        console.print(f"  {step.name:<13} {step.value:>7.4g}  {step.reason}", highlight=False, markup=False)
    for other in newest.counterfactuals:
        console.print(
            f"  {counted(other.replicas, 'replica')} without the {escape(other.without)} term", highlight=False
        )
    for alarm in newest.alarms:
        console.print(f"  [red]alarm:[/] {escape(alarm)}", highlight=False)


def _table(decisions: tuple[Decision, ...], *, everything: bool) -> Table:
    table = Table()
    names = ("number", "time (UTC)", "mode", "replicas", "needed", "ready", "waiting", "relief", "why")
    add_columns(table, *names, words=("why",), left=("time (UTC)", "mode", "replicas", "relief"))
    skipped = 0
    for index, made in enumerate(decisions):
        changed = made.replicas != made.replicas_before
        if not (everything or changed or made.alarms or index == 0 or index == len(decisions) - 1):
            skipped += 1
            continue
        if skipped:
            table.add_row("", f"[dim]{skipped} more[/]")
            skipped = 0
        at = datetime.datetime.fromtimestamp(made.at_ms / 1000, datetime.UTC)
        table.add_row(
            str(made.number),
            f"{at:%m-%d %H:%M:%S}",
            Text(made.mode),
            (f"{made.replicas_before} > {made.replicas}" if changed else str(made.replicas))
            + (f"+{made.standby}" if made.standby else ""),
            str(made.needed),
            f"{made.ready}+{made.starting}" if made.starting else str(made.ready),
            f"{made.waiting:.0f}",
            "" if made.relief == "none" else f"[yellow]{made.relief.value}[/]",
            Text(made.alarms[0], "red") if made.alarms else Text(made.reason),
        )
    return table


def point_text(point: OperatingPoint) -> str:
    """Return an operating point in one line: its SLO, price and budget."""
    words = []
    for name in ("interactive", "standard", "batch"):
        slo = getattr(point, name)
        if slo.ttft_p99_s is not None:
            words.append(f"{name} TTFT p99 {slo.ttft_p99_s:g} s")
        if slo.itl_p95_s is not None:
            words.append(f"{name} ITL p95 {slo.itl_p95_s * 1e3:g} ms")
    if words:
        words[-1] += f" for {100 * point.attainment:g} % of the requests"
    else:
        words.append("nothing is promised")
    if point.price_per_gpu_hour:
        words.append(f"{point.price_per_gpu_hour:g} a GPU hour")
    if point.budget_per_hour is not None:
        words.append(f"at most {point.budget_per_hour:g} an hour")
    return ", ".join(words)
