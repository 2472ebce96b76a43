"""`penstock explain`."""

from __future__ import annotations

import argparse
import datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import whole
from router.commands.target import add_target_flags, open_client, placed_by, report_call_errors

if TYPE_CHECKING:
    from penstock.client import AttemptRecord, ChoiceRecord, Explanation, RequestRecord

_BAR = 40
"""Width of the drawn parts, in characters."""
_WAITS = {
    "unspecified": "a place, too shortly to know why",
    "no_replica": "a replica that takes work",
    "no_room": "room on a replica",
    "class": "requests of another class",
    "tenants": "other tenants, whose turn it was",
    "own_tenant": "earlier requests of its own tenant",
    "quota": "its tenant's quota",
    "affinity": "requests whose prefix was cached on the free replica",
    "queue_unavailable": "Redis",
    "suspected": "its turn to run alone, because an engine died under it",
}
_STYLES = {
    "admission": "cyan",
    "queue": "yellow",
    "prefill": "blue",
    "decode": "green",
    "lost": "red",
    "delivery": "magenta",
    "other": "white",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show where the time of a request that ended went: its wait and what it waited for, each attempt with its "
        "replica, what was lost, and what the autoscaler decided around it. Without an id: list the newest requests."
    )
    parser.add_argument(
        "request", nargs="?", default="", help="id of the request, also as an HTTP API gave it (chatcmpl-...)"
    )
    parser.add_argument("--missed", action="store_true", help="list only requests that missed their SLO, or failed")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--tenant", default="", help="list another tenant's, for operators (default: the key's own)")
    whose.add_argument("--all-tenants", action="store_true", help="list every tenant's, for operators")
    parser.add_argument("--pool", default="", help="list those of one pool (default: all)")
    parser.add_argument(
        "--limit", type=whole(1, 1000), default=20, metavar="N", help="requests to list (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target_flags(parser)
    show_examples(parser, "penstock explain --missed", "penstock explain chatcmpl-5e0f0c6a8d7b4b5c")
    parser.set_defaults(run=run_explain)


def run_explain(options: argparse.Namespace) -> int:
    """Explain a request, or list the newest ones."""
    with report_call_errors(options, "10 s", placed_by({"pool": "--pool"})) as outcome, open_client(options) as client:
        if options.request:
            explanation = client.explain(options.request, timeout=10.0)
            if options.json:
                print_json(explanation)
            else:
                show_explanation(explanation, screen())
        else:
            found = client.requests(
                tenant=options.tenant,
                all_tenants=options.all_tenants,
                pool=options.pool,
                missed=options.missed,
                limit=options.limit,
                timeout=10.0,
            )
            if options.json:
                print_json(found)
            else:
                print_table(_list(found), screen(), nothing="no requests")
    return outcome.status


# --- one request ------------------------------------------------------------------------------------------------------


def show_explanation(found: Explanation, console: Console) -> None:
    """Print the explanation of one request."""
    last = found.calls[-1]
    console.print(f"[bold]{escape(last.request_id)}[/]  {_outcome(last)}", highlight=False)
    console.print(
        f"{_time(last.arrived_at_ms)}, tenant {escape(last.tenant)}, {last.request_class.name.lower()}, pool "
        f"{escape(_served(last))}, {last.usage.prompt_tokens:,} prompt tokens ({last.usage.cached_tokens:,} cached), "
        f"{last.usage.output_tokens:,} output",
        highlight=False,
    )
    console.print(Text(found.summary, "bold"))
    console.print(_parts(found.parts))
    for number, call in enumerate(found.calls, 1):
        if call.refused is not None:
            times = "once" if call.refused.times == 1 else f"{call.refused.times} times"
            console.print(
                f"  refused {times} in the {_seconds(call.refused.time)} before: {escape(call.refused.error)}",
                highlight=False,
            )
        if len(found.calls) > 1:
            console.print(
                f"call {number} of {len(found.calls)}, {_time(call.arrived_at_ms)}, router {escape(call.router_id)}",
                highlight=False,
            )
        for choice in call.choices:
            _show_choice(choice, console, alone=len(call.choices) == 1)
    if last.error:
        console.print(f"[red]error:[/] {escape(last.error_reason)}: {escape(last.error)}", highlight=False)
    for decision in found.decisions:
        change = f"{decision.replicas_before} > {decision.replicas} replicas"
        console.print(
            f"[dim]autoscaler, {_time(decision.at_ms)}:[/] {change}: {escape(decision.reason)}", highlight=False
        )


def _served(call: RequestRecord) -> str:
    """Return the pool of a call, with the adapter and the alias that led there."""
    adapter = f" with adapter {call.lora_adapter}" if call.lora_adapter else ""
    return f"{call.pool}{adapter}{f', asked for as {call.alias}' if call.alias else ''}"


def _parts(parts: tuple[tuple[str, float], ...]) -> Group:
    total = sum(seconds for _, seconds in parts) or 1.0
    lines, passed = [], 0.0
    for name, seconds in parts:
        if seconds < 0.0005 and name not in ("queue", "prefill", "decode"):
            continue
        before, after = round(_BAR * passed / total), round(_BAR * (passed + seconds) / total)
        passed += seconds
        bar = Text(" " * before).append("━" * max(1, after - before), _STYLES.get(name, "white"))
        bar.pad_right(max(0, _BAR + 1 - len(bar)))
        lines.append(Text(f"  {name:<10}{_seconds(seconds):>9}  ").append_text(bar))
    return Group(*lines)


def _show_choice(choice: ChoiceRecord, console: Console, *, alone: bool) -> None:
    if not alone:
        console.print(f"choice {choice.index}: {choice.finish_reason}", highlight=False)
    if choice.position:
        ahead = ", ".join(
            f"{each.waiting} {each.request_class.name.lower()} of {escape(each.tenant or 'other tenants')}"
            for each in choice.ahead
        )
        console.print(f"  {choice.position} ahead in the queue{': ' + ahead if ahead else ''}", highlight=False)
    for reason, seconds in choice.waits:
        console.print(f"  waited {_seconds(seconds)} for: {_WAITS.get(reason, reason)}", highlight=False)
    if choice.waits and choice.holders:
        held = ", ".join(
            f"{each.share:.0%} {each.request_class.name.lower()} of {escape(each.tenant or 'other tenants')}"
            for each in choice.holders
        )
        console.print(f"  who held the slots meanwhile: {held}", highlight=False)
    if choice.attempts:
        print_table(_attempts(choice.attempts), console, keys=1)


def _attempts(attempts: tuple[AttemptRecord, ...]) -> Table:
    table = Table()
    names = (
        "replica",
        "granted",
        "first token",
        "end",
        "outcome",
        "tokens",
        "cached",
        "GPU s",
        "batch",
        "KV",
        "ITL p95",
    )
    add_columns(table, *names, words=("replica", "outcome"))
    for ran in attempts:
        load = ran.load_at_grant
        table.add_row(
            Text(ran.replica_id),
            _offset(ran.granted_at),
            _offset(ran.first_token_at),
            _offset(ran.ended_at),
            Text(f"{ran.outcome}: {ran.failure}" if ran.failure else ran.outcome),
            f"{ran.output_tokens:,}",
            f"{ran.cached_tokens:,}",
            f"{ran.gpu_seconds:.3g}",
            "" if load is None else f"{load.running}/{load.batch_limit}",
            "" if load is None else f"{load.kv_usage:.0%}",
            "" if load is None or load.itl_p95 is None else f"{1e3 * load.itl_p95:.0f} ms",
        )
    return table


# --- a list -----------------------------------------------------------------------------------------------------------


def _list(found: tuple[RequestRecord, ...]) -> Table:
    table = Table()
    names = ("request", "time (UTC)", "tenant", "class", "TTFT", "total", "queue", "tokens", "outcome")
    add_columns(table, *names, words=("request", "tenant", "class", "outcome"), left=("time (UTC)",))
    for record in found:
        queued = max((_queued(choice) for choice in record.choices), default=0.0)
        table.add_row(
            Text(record.request_id),
            _time(record.arrived_at_ms),
            Text(record.tenant),
            record.request_class.name.lower(),
            "" if record.time_to_first_token is None else _seconds(record.time_to_first_token),
            _seconds(record.total_time),
            _seconds(queued),
            f"{record.usage.output_tokens:,}",
            _outcome(record),
        )
    return table


def _queued(choice: ChoiceRecord) -> float:
    return sum(
        ran.granted_at - ran.waits_from
        for ran in choice.attempts
        if ran.granted_at is not None and ran.waits_from is not None
    )


def _outcome(record: RequestRecord) -> str:
    if record.error_reason:
        return f"[red]{escape(record.error_reason)}[/]"
    if record.slo_outcome in ("", "met"):
        reasons = {choice.finish_reason for choice in record.choices}
        return f"[green]{escape(', '.join(sorted(reasons)))}[/]" + (", SLO met" if record.slo_outcome else "")
    return f"[yellow]SLO missed: {escape(record.slo_outcome.replace('_', ' '))}[/]"


def _time(ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC):%m-%d %H:%M:%S}"


def _offset(seconds: float | None) -> str:
    return "" if seconds is None else f"+{_seconds(seconds)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
