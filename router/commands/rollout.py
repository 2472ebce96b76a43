"""`penstock rollout`."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import time_from_zero, whole
from router.commands.target import add_target_flags, open_client, placed_by, report_call_errors

if TYPE_CHECKING:
    from penstock.client import Client, Rollout, RolloutReplica

POLL_S = 0.5
AWAY_S = 60.0
"""Longest time for which routers may not answer while a roll-out is followed: it goes on without this command."""
_ORDERS = ("stop", "go_on", "back")
_PLACES = {"action": "--back", "changes": "--set", "judge": "--judge-s", "surge": "--surge", "pool": "POOL"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Change a pool's model or engine settings while it runs, one replica at a time. Each replica finishes its "
        "requests and ends, the next one starts in its place, and only when that one has served well the next one "
        "follows. Where new replicas fail, or miss the pool's SLO, all go back by themselves. Without a flag that "
        "changes something the newest roll-out is shown."
    )
    parser.add_argument("pool", nargs="?", default="", metavar="POOL", help="the pool (default: the only one)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="values",
        help="setting of the pool to change, of model, revision, task, vllm and sim; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--unset", action="append", default=[], metavar="KEY",
        help="take back what an earlier roll-out changed; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--surge", type=whole(0, 64), metavar="N",
        help="replicas beyond the pool's number meanwhile (default: the setting rollout.surge)",
    )  # fmt: skip
    parser.add_argument(
        "--judge-s", type=time_from_zero, metavar="SECONDS",
        help="time for which a new replica must serve well (default: the setting rollout.judge_s)",
    )  # fmt: skip
    orders = parser.add_mutually_exclusive_group()
    orders.add_argument("--stop", action="store_true", help="stop the roll-out where it is")
    orders.add_argument("--go-on", action="store_true", help="continue one that was stopped")
    orders.add_argument("--back", action="store_true", help="bring the revision before back")
    parser.add_argument("--detach", action="store_true", help="do not wait for the end")
    parser.add_argument("--json", action="store_true", help="print JSON, and do not wait for the end")
    add_target_flags(parser)
    show_examples(
        parser,
        "penstock rollout chat --set model=/models/chat-v2",
        "penstock rollout chat --set vllm.max_num_seqs=128 --judge-s 120 --detach",
        "penstock rollout chat",
        "penstock rollout chat --back",
    )
    parser.set_defaults(run=run_rollout)


def run_rollout(options: argparse.Namespace) -> int:
    """Begin, order or show a roll-out, and follow it to its end."""
    from penstock.client import RolloutAction, RolloutState

    changes = read_changes(options.values, options.unset)
    orders = [name for name in _ORDERS if getattr(options, name)]
    if changes and orders:
        raise SettingsError(f"--{orders[0].replace('_', '-')} gives an order; --set and --unset begin a roll-out")
    if not changes and (options.surge is not None or options.judge_s is not None):
        raise SettingsError("--surge and --judge-s need --set or --unset: they are of the roll-out that begins")
    with report_call_errors(options, "10 s", placed_by(_PLACES)) as outcome, open_client(options) as client:
        found: Rollout | None
        if changes:
            found = client.start_rollout(
                options.pool, changes, surge=options.surge, judge_s=options.judge_s, timeout=10.0
            )
        elif orders:
            action = {"stop": RolloutAction.STOP, "go_on": RolloutAction.GO_ON, "back": RolloutAction.GO_BACK}
            found = client.change_rollout(options.pool, action[orders[0]], timeout=10.0)
        else:
            found = client.rollout(options.pool, timeout=10.0)
        if options.json:
            print_json(found)
        elif found is None:
            screen().print("no roll-out: all replicas have the pool's own settings")
        elif options.detach or options.stop or not (changes or orders):
            show(found, screen())
        else:
            ended = follow(client, found, screen())
            show(ended, screen())
            wanted = RolloutState.RETURNED if found.state is RolloutState.GOING_BACK else RolloutState.DONE
            outcome.status = 0 if ended.state is wanted else 1
    return outcome.status


def read_changes(values: list[str], unset: list[str]) -> dict[str, Any]:
    """Return the tree of settings that flags name. A value is JSON where it parses as JSON.

    Raises:
        SettingsError: a flag names no setting, or one twice.
    """
    tree: dict[str, Any] = {}
    pairs = [text.partition("=") for text in values]
    for name, sign, text in (*pairs, *((name, "", "") for name in unset)):
        flag = "--set" if sign or (name, sign, text) in pairs else "--unset"
        path = name.strip().split(".")
        if not all(path) or (flag == "--set" and not sign):
            form = "KEY=VALUE, such as model=/models/new" if flag == "--set" else "a setting, such as vllm.max_num_seqs"
            raise SettingsError(f"{flag} must be {form}, got {name + sign + text!r}")
        inner = tree
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{flag} {name}: {part} has a value already")
        if path[-1] in inner:
            raise SettingsError(f"{flag} {name}: it is given twice")
        inner[path[-1]] = _value(text) if flag == "--set" else None
    return tree


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def follow(client: Client, begun: Rollout, console: Console) -> Rollout:
    """Show the steps of a roll-out until it ends or is stopped; return it then."""
    from penstock.client import DeadlineExceededError, RolloutState, UnavailableError

    found, said, heard_at = begun, set[Any](), time.monotonic()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while True:
            for step in found.steps:
                if step not in said and step.at >= begun.began_at:
                    said.add(step)
                    console.print(f"  {step.at:%H:%M:%S} {escape(step.text)}", highlight=False)
            if not found.state.active or found.state is RolloutState.HELD:
                return found
            live.update(Spinner("dots", text=Text(headline(found))) if console.is_terminal else Text(""))
            time.sleep(POLL_S)
            try:
                newer = client.rollout(begun.pool, timeout=10.0)
            except (UnavailableError, DeadlineExceededError):
                if time.monotonic() - heard_at > AWAY_S:
                    raise
                continue
            heard_at = time.monotonic()
            if newer is None or newer.new_revision != begun.new_revision:
                return found
            found = newer


def headline(found: Rollout) -> str:
    """Return the state of a roll-out in one line."""
    new = sum(one.revision == found.new_revision for one in found.replicas)
    have = counted(found.size, "replica has", "replicas have")
    return f"pool {found.pool}, {found.state}: {new} of {have} revision {found.new_revision}"


def show(found: Rollout, console: Console) -> None:
    """Print a roll-out and its replicas."""
    console.print(headline(found), highlight=False, markup=False)
    for number, changes in ((found.old_revision, found.old_changes), (found.new_revision, found.new_changes)):
        console.print(f"  revision {number}: {_words(changes)}", highlight=False, markup=False, soft_wrap=True)
    if found.reason:
        console.print(f"  [red]back because:[/] {escape(found.reason)}", highlight=False, soft_wrap=True)
    table = Table()
    add_columns(table, "replica", "revision", "state", "ended", "failed", "late", words=("replica",), left=("state",))
    for one in found.replicas:
        cells = (one.replica_id, str(one.revision), _state(one, found), *map(str, (one.ended, one.failed, one.late)))
        table.add_row(*map(Text, cells))
    print_table(table, console)


def _state(one: RolloutReplica, found: Rollout) -> str:
    if one.retiring:
        return "finishes its requests"
    if not one.ready:
        return "takes no work"
    if not found.state.active or one.revision != found.new_revision:
        return "serves"
    return "serves well" if one.passed else "is judged"


def _words(changes: Any, prefix: str = "") -> str:
    found = []
    for name, value in changes.items():
        if isinstance(value, dict):
            found.append(_words(value, f"{prefix}{name}."))
        else:
            found.append(f"{prefix}{name} = {json.dumps(value, ensure_ascii=False)}")
    return ", ".join(found) or "the pool's own settings"
