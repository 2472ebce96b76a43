"""`penstock status`."""

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
    from router.client import ClusterStatus, PoolStatus


def run_status(options: argparse.Namespace) -> int:
    """Show pools, replicas and routers as one router sees them."""
    with report_call_errors(options.target) as outcome, open_client(options) as client:
        status = client.cluster_status(timeout=10.0)
        if options.json:
            sys.stdout.write(json.dumps(dataclasses.asdict(status), indent=2) + "\n")
        else:
            show_status(status, screen())
    return outcome.status


def show_status(status: ClusterStatus, console: Console) -> None:
    """Print a table per pool."""
    for pool in status.pools:
        console.print(_pool_table(pool))
        routers = ", ".join(pool.router_ids) or "none"
        reachable = "" if pool.reachable else "  [red]queue not reachable[/]"
        console.print(f"waiting {pool.waiting}, running {pool.running}; routers: {routers}{reachable}", highlight=False)
    console.print(f"[dim]penstock {status.version}, answered by {status.router_id}[/]", highlight=False)


def _pool_table(pool: PoolStatus) -> Table:
    table = Table(title=f"pool {pool.name}", title_justify="left")
    for column in ("replica", "state", "running", "limit", "KV", "tokens", "beat", "link", "metrics"):
        table.add_column(column, justify="left" if column in ("replica", "state", "link") else "right", overflow="fold")
    for replica in pool.replicas:
        table.add_row(
            replica.replica_id,
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
