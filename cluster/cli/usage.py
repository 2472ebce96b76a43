"""`penstock usage`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cluster.cli.console import screen
from cluster.cli.target import open_client, report_call_errors

if TYPE_CHECKING:
    from router.client import UsageLine, UsageReport


def run_usage(options: argparse.Namespace) -> int:
    """Show what tenants used."""
    errors = Console(stderr=True)
    with report_call_errors(options.target) as outcome, open_client(options) as client:
        report = client.usage(
            tenant=options.tenant,
            all_tenants=options.all_tenants,
            pool=options.pool,
            first_day=options.first_day,
            last_day=options.last_day,
            timeout=30.0,
        )
        if options.json:
            sys.stdout.write(json.dumps(dataclasses.asdict(report), indent=2, default=str) + "\n")
        else:
            screen().print(_table(report))
        if report.truncated:
            errors.print("[yellow]there is more: ask for fewer days[/]")
    return outcome.status


def _table(report: UsageReport) -> Table:
    table = Table(show_footer=bool(report.lines))
    columns = ["day", "pool", "tenant", "requests", "prompt", "cached", "output", "GPU s", "cost"]
    rows = [_row(line) for line in report.lines]
    totals = [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]
    footers = ["total", "", "", *map(_number, totals)] if rows else [""] * len(columns)
    for index, (name, footer) in enumerate(zip(columns, footers, strict=True)):
        table.add_column(name, footer, justify="left" if index < 3 else "right", overflow="fold")
    for names, numbers in rows:
        table.add_row(*names, *map(_number, numbers))
    return table


def _row(line: UsageLine) -> tuple[tuple[str, ...], tuple[float, ...]]:
    tokens = (line.prompt_tokens, line.cached_tokens, line.output_tokens)
    return (str(line.day), line.pool, line.tenant), (line.requests, *tokens, line.gpu_seconds, line.cost)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
