"""`penstock status`."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from router.commands.target import add_target_flags, open_client, report_call_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.client import ClusterStatus, PoolStatus, TenantQuota

_LINE = 10
"""Most lines of who waits, and of links that are down."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target_flags(parser)
    show_examples(parser, "penstock status", "penstock status --target router.example.com:50051 --tls --json")
    parser.set_defaults(run=run_status)


def run_status(options: argparse.Namespace) -> int:
    """Show pools, replicas and routers as one router sees them."""
    with report_call_errors(options, "10 s") as outcome, open_client(options) as client:
        status = client.cluster_status(timeout=10.0)
        if options.json:
            print_json(status)
        else:
            show_status(status, screen())
    return outcome.status


def show_status(status: ClusterStatus, console: Console) -> None:
    """Print one table per pool."""
    from router.commands.usage import budget_text

    for pool in status.pools:
        print_table(_pool_table(pool), console)
        routers = escape(", ".join(pool.router_ids)) or "none"
        why = f": {escape(pool.unreachable_reason)}" if pool.unreachable_reason else ""
        reachable = "" if pool.reachable else f"  [red]queue not reachable[/]{why}"
        console.print(f"waiting {pool.waiting}, running {pool.running}; routers: {routers}{reachable}", highlight=False)
        for line in _links_down(pool):
            console.print(line, highlight=False)
        if any(each.waiting for each in pool.line):
            print_table(_line_table(pool), console)
        for quota in pool.quotas:
            if quota.blocked_by or quota.refused:
                console.print(_quota(quota), highlight=False)
        for budget in pool.budgets:
            if budget.warned:
                console.print(budget_text(budget), highlight=False)
    console.print(f"[dim]penstock {escape(status.version)}, answered by {escape(status.router_id)}[/]", highlight=False)


def _pool_table(pool: PoolStatus) -> Table:
    table = Table(title=f"pool {escape(pool.name)}", title_justify="left")
    names = ("replica", "state", "running", "limit", "KV", "tokens", "beat", "link", "metrics")
    add_columns(table, *names, words=("replica",), left=("state", "link"))
    for replica in pool.replicas:
        table.add_row(
            Text(replica.replica_id),
            replica.state.value,
            str(replica.running),
            str(replica.batch_limit),
            f"{100 * replica.kv_usage:.0f} %",
            f"{replica.output_tokens:,}",
            f"{replica.heartbeat_age:.1f} s",
            "up" if replica.linked else "[red]down[/]",
            str(replica.metrics_port or "-"),
        )
    return table


def _links_down(pool: PoolStatus) -> Iterator[str]:
    """Yield a line per reason why links are down, with the replicas that it keeps away."""
    from router.commands.top.looked import links_down

    for reason, names in islice(links_down(pool).items(), _LINE):
        yield f"[red]link down[/] to {escape(', '.join(names))}: {escape(reason)}"


def _line_table(pool: PoolStatus) -> Table:
    waiting = [each for each in pool.line if each.waiting]
    table = Table()
    add_columns(table, "class", "tenant", "waiting", "oldest", "running", "weight", words=("class", "tenant"))
    for each in waiting[:_LINE]:
        table.add_row(
            each.request_class.name.lower(),
            Text(each.tenant),
            f"{each.waiting:,}",
            f"{each.oldest_wait:.1f} s",
            f"{each.running:,}",
            f"{each.weight:g}",
        )
    if len(waiting) > _LINE:
        table.caption = f"and {len(waiting) - _LINE} more; --json has all that the queue reports"
    return table


def _quota(quota: TenantQuota) -> str:
    name = quota.blocked_by.replace("_", " ")
    until = "" if quota.blocked_for is None else f" for {quota.blocked_for:.0f} s"
    blocked = f" is blocked by its {name}{until}:" if name else ":"
    return f"[yellow]tenant {escape(quota.tenant)}[/]{blocked} {quota.refused:,} calls refused in the last minute"
