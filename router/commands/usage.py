"""`penstock usage`."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError
from cluster.terminal.command import show_examples
from cluster.terminal.console import messages, screen
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, number, print_table
from penstock.values.admin.costs import CostReport
from penstock.values.results import UsageReport
from router.commands.costs import print_costs
from router.commands.export import FOCUS_VERSION, rows_of, write_csv, write_focus
from router.commands.target import add_target_flags, open_client, placed_by, report_call_errors

if TYPE_CHECKING:
    from penstock.client import Budget, UsageLine


_KEYS = ("pool", "tenant")
"""Words of a line, after its period."""
_NO_CURRENCY = "XXX"
"""ISO 4217's code for no currency."""
_PROVIDER = "Penstock"


def add_flags(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--tenant", default="", help="another tenant, for operators (default: the key's own)")
    whose.add_argument("--all-tenants", action="store_true", help="every tenant, for operators")
    parser.add_argument("--pool", default="", help="one pool (default: all)")
    for flag, default in (("--first-day", "as far back as it is kept"), ("--last-day", "today")):
        parser.add_argument(flag, type=_day, metavar="DAY", help=f"such as 2026-01-31 (default: {default})")
    parser.add_argument(
        "--costs", action="store_true", help="what the accelerators did by hour, idle and lost time too; for operators"
    )
    parser.add_argument("--by", choices=("day", "hour"), default="day", help="length of a line's period (default: day)")
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv", "focus"),
        default="table",
        help=f"csv and focus (FOCUS {FOCUS_VERSION}) are for finance tools; with --all-tenants they have idle time too",
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.add_argument(
        "--currency",
        type=_currency,
        metavar="CODE",
        help=f"FOCUS: code of the prices' currency, such as EUR (default: {_NO_CURRENCY})",
    )
    parser.add_argument("--provider", help=f"FOCUS: who runs the cluster (default: {_PROVIDER})")
    add_target_flags(parser)
    examples = (
        "penstock usage",
        "penstock usage --all-tenants --first-day 2026-01-01 --json",
        "penstock usage --costs",
    )
    show_examples(parser, *examples, "penstock usage --all-tenants --by hour --format focus --currency EUR")
    parser.set_defaults(run=run_usage)


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day such as 2026-01-31, got {text!r}") from None


def _currency(text: str) -> str:
    if re.fullmatch("[A-Z]{3}", text) is None:
        raise argparse.ArgumentTypeError(f"must be a code of ISO 4217 such as EUR, got {text!r}")
    return text


def _check(options: argparse.Namespace) -> None:
    """Refuse flags that would have no effect.

    Raises:
        SettingsError: names one.
    """
    for flag, given in (("--tenant", options.tenant), ("--all-tenants", options.all_tenants)):
        if options.costs and given:
            raise SettingsError(f"{flag}: can't go with --costs, which are of replicas and know no tenants")
    for flag, given in (("--currency", options.currency), ("--provider", options.provider)):
        if given is not None and options.format != "focus":
            raise SettingsError(f"{flag}: needs --format focus")


def run_usage(options: argparse.Namespace) -> int:
    """Print the usage of tenants, or the costs of replicas; the totals are in the footer."""
    _check(options)
    days = {"first_day": options.first_day, "last_day": options.last_day}
    by_hour = options.by == "hour"
    usage, costs = UsageReport((), truncated=False), CostReport(())
    with report_call_errors(options, "30 s", placed_by({"pool": "--pool"})) as outcome, open_client(options) as client:
        if not options.costs:
            whose = {"tenant": options.tenant, "all_tenants": options.all_tenants}
            usage = client.usage(**whose, pool=options.pool, **days, by_hour=by_hour, timeout=30.0)
        if options.costs or (options.all_tenants and options.format in ("csv", "focus")):
            costs = client.costs(pool=options.pool, **days, timeout=30.0)
        _show(options, usage, costs)
        if usage.truncated:
            messages().print("[yellow]there is more: ask for fewer days[/]")
    return outcome.status


def _show(options: argparse.Namespace, usage: UsageReport, costs: CostReport) -> None:
    match options.format:
        case "json":
            report = costs if options.costs else usage
            print_json(report)
        case "csv":
            write_csv(rows_of(usage.lines, costs.lines, by_hour=options.by == "hour"), sys.stdout)
        case "focus":
            rows = rows_of(usage.lines, costs.lines, by_hour=options.by == "hour")
            currency, provider = options.currency or _NO_CURRENCY, options.provider or _PROVIDER
            write_focus(rows, sys.stdout, currency=currency, provider=provider)
        case _ if options.costs:
            print_costs(costs, screen())
        case _:
            print_table(_table(usage, options.by), screen(), keys=1 + len(_KEYS), nothing="nothing was used")
            for budget in usage.budgets:
                screen().print(budget_text(budget))


def budget_text(budget: Budget) -> Text:
    """Return what is used of a budget, in one line."""
    share = budget.used / budget.limit
    text = Text(f"budget of {budget.tenant} in {budget.pool}: {number(budget.used)} of {number(budget.limit)} ")
    text.append(f"({share:.0%})", style="red" if share >= 1 else "yellow" if budget.warned else "")
    period = budget.name.removeprefix("cost_per_")
    return text.append(f" of this {period}, renews {budget.renews:%Y-%m-%d %H:%M} UTC")


def _table(report: UsageReport, period: str) -> Table:
    table = Table(show_footer=bool(report.lines))
    names = (period, *_KEYS, "requests", "prompt", "cached", "output", "GPU s", "cost")
    add_columns(table, *names, words=_KEYS, left=(period,))
    rows = [_row(line) for line in report.lines]
    totals = [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]
    if rows:
        for column, footer in zip(table.columns, ("total", "", "", *map(number, totals)), strict=True):
            column.footer = footer
    for keys, numbers in rows:
        table.add_row(*map(Text, keys), *map(number, numbers))
    return table


def _row(line: UsageLine) -> tuple[tuple[str, ...], tuple[float, ...]]:
    tokens = (line.prompt_tokens, line.cached_tokens, line.output_tokens)
    period = str(line.day) if line.hour is None else f"{line.hour:%Y-%m-%d %H:%M}"
    return (period, line.pool, line.tenant), (line.requests, *tokens, line.gpu_seconds, line.cost)
