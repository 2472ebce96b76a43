"""Flags and runs of `penstock get`, `apply`, `delete` and `history`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.terminal.command import show_examples
from cluster.terminal.console import messages, print_problem, screen, standard_input
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import time_from_zero, whole
from router.commands.registry.tables import (
    TABLES,
    difference_of,
    edits_of,
    kind_of,
    place_of,
    read_file,
    shown,
    split_by_coming,
    table_of,
    to_toml,
)
from router.commands.target import add_target_flags, open_client, report_call_errors

if TYPE_CHECKING:
    from penstock.client import RegistryChange, RegistryEdit, RegistryEntry

_KINDS = ", ".join(TABLES)
MOST_EDITS = 1_000
"""Edits of one call."""
_CALL_S = 90.0
"""Longest time of a call, in seconds: it waits for all routers and replicas."""


def add_get_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Show {_KINDS}: those of the registry, which change while the cluster runs, and of the settings."
    )
    parser.add_argument("kind", nargs="?", default="", metavar="KIND", help=f"{_KINDS} (default: all)")
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="one entry (default: all)")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--toml", action="store_true", help="print a file that `penstock apply` takes")
    forms.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--hashes",
        action="store_true",
        help="with the hashes of keys and the secrets of pools, for a backup; for admins",
    )
    add_target_flags(parser)
    show_examples(parser, "penstock get", "penstock get tenants acme", "penstock get --toml --hashes > backup.toml")
    parser.set_defaults(run=run_get)


def run_get(options: argparse.Namespace) -> int:
    """Print entries."""
    kind = kind_of(options.kind)
    with report_call_errors(options, "10 s") as outcome, open_client(options) as client:
        entries = client.registry(kind, name=options.name, hashes=options.hashes, timeout=10.0)
        if options.name and not entries:
            print_problem(f"no {kind} {options.name!r}" if kind else f"nothing has the name {options.name!r}")
            outcome.status = 1
        if options.json:
            print_json(entries)
        elif options.toml:
            sys.stdout.write(to_toml(entries))
        elif entries:
            _print_entries(entries)
        elif not options.name:
            screen().print(f"no {options.kind or 'entries'}")
    return outcome.status


def _print_entries(entries: tuple[RegistryEntry, ...]) -> None:
    table = Table()
    add_columns(table, "kind", "name", "value", "version", "changed", words=("name", "value"), left=("kind", "changed"))
    for one in entries:
        where = "settings, fixed" if one.fixed else "settings"
        at = f"{one.changed_at:%Y-%m-%d %H:%M:%S}" if one.changed_at is not None else where
        cells = (one.kind, one.name, _short(one.value), str(one.version or ""), at)
        table.add_row(*map(Text, cells))
    print_table(table, screen(), keys=2)
    if replicas := [each for one in entries for each in one.replicas]:
        states = Table()
        add_columns(states, "adapter", "replica", "state", "seconds", "uses", "why", words=("why",), left=("state",))
        for each in replicas:
            state = (each.adapter, each.replica, each.state, f"{each.seconds:.1f}", str(each.uses or ""), each.why)
            states.add_row(*map(Text, state))
        print_table(states, screen(), keys=2)


def _short(value: Any) -> str:
    if isinstance(pool := value.get("settings"), dict):
        value = {name: pool[name] for name in ("model", "engine", "replicas") if name in pool}
    return ", ".join(f"{name} = {json.dumps(one, ensure_ascii=False)}" for name, one in value.items())


def add_apply_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Bring a running cluster to a TOML file with the tables {_KINDS}. Shows the difference first, and asks before "
        "it changes anything. A file of settings, such as `penstock up --settings` takes, can be given too: its pools, "
        "aliases and tenants are applied."
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="file of settings, or such as `penstock get --toml` prints"
    )
    parser.add_argument(
        "--prune", action="store_true", help="delete entries of its tables, pools included, that it does not have"
    )
    parser.add_argument("--detach", action="store_true", help="do not wait until pools have changed")
    parser.add_argument("--dry-run", action="store_true", help="only show the difference")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _add_wait(parser)
    add_target_flags(parser)
    show_examples(parser, "penstock apply cluster.toml --dry-run", "penstock apply cluster.toml --prune --yes")
    parser.set_defaults(run=run_apply)


def run_apply(options: argparse.Namespace) -> int:
    """Show what a file changes, ask, and change it."""
    file = read_file(options.file)
    edits: list[RegistryEdit] = []

    def placed(field: str) -> str:
        return place_of(field, edits)

    with report_call_errors(options, f"{_CALL_S:g} s", placed) as outcome, open_client(options) as client:
        present = client.registry(timeout=10.0)
        edits = edits_of(file.entries, present, prune=options.prune)
        if len(edits) > MOST_EDITS:
            raise SettingsError(f"{options.file}: changes {len(edits)} entries; at most {MOST_EDITS} go together")
        if file.others:
            messages().print(
                f"[dim]not compared, they need a restart: {escape(', '.join(file.others))}[/]", highlight=False
            )
            if file.pools is None:
                messages().print("[dim]not in the file: pools; they stay as they are[/]", highlight=False)
        if file.pools is not None:
            from router.commands.registry.pools import change_pools

            # New pools come before what names them.
            outcome.status = change_pools(options, client, file.pools, present, quiet=bool(edits))
        elif not edits:
            screen().print("nothing to change")
        if options.dry_run:
            edits = _tell_later(edits, file.pools or {}, present)
        if edits and not outcome.status:
            outcome.status = _change(options, client, edits)
    return outcome.status


def _tell_later(
    edits: list[RegistryEdit], pools: Mapping[str, object], present: Sequence[RegistryEntry]
) -> list[RegistryEdit]:
    """Show the edits that name pools which a dry run does not bring. Return the others."""
    coming = set(pools) - {one.name for one in present if one.kind == "pool" and not one.value.get("removed")}
    now, later = split_by_coming(edits, coming)
    screen().print(shown([difference_of(each, present) for each in later]), end="")
    if later:
        names = ", ".join(f"{each.kind} {each.name}" for each in later)
        messages().print(f"[dim]checked when its pool is there: {escape(names)}[/]", highlight=False)
    return now


def add_delete_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Delete an entry of the registry. One of the settings comes back then."
    parser.add_argument("kind", metavar="KIND", help=", ".join(name for name in TABLES if TABLES[name] != "pool"))
    parser.add_argument("name", metavar="NAME", help="the entry; of a key: its public id")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="delete an adapter although requests use it")
    parser.add_argument(
        "--end-streams",
        action="store_true",
        help="of a key: end its open calls, its jobs and its responses in the background too. It may be a key of the "
        "keys file; take it from the file first",
    )
    _add_wait(parser)
    add_target_flags(parser)
    show_examples(
        parser, "penstock delete keys 5d41402abc4b2a76 --yes", "penstock delete keys 5d41402abc4b2a76 --end-streams"
    )
    parser.set_defaults(run=run_delete, dry_run=False)


def run_delete(options: argparse.Namespace) -> int:
    """Delete an entry."""
    from penstock.client import RegistryEdit

    kind = kind_of(options.kind)
    if kind == "pool":
        raise SettingsError("a pool is removed by `penstock apply FILE --prune` with a file that has the other pools")
    with report_call_errors(options, f"{_CALL_S:g} s") as outcome, open_client(options) as client:
        found = client.registry(kind, name=options.name, timeout=10.0)
        version = found[0].version if found else 0
        if not version and not options.end_streams:
            raise SettingsError(f"{kind} {options.name!r} is not in the registry")
        edit = RegistryEdit(kind, options.name, None, version, end_streams=options.end_streams)
        outcome.status = _change(options, client, [edit])
    return outcome.status


def _change(options: argparse.Namespace, client: Any, edits: list[RegistryEdit]) -> int:
    differences = client.edit_registry(edits, dry_run=True, timeout=10.0).differences
    screen().print(shown(differences), end="")
    ends = [edit.name for edit in edits if edit.end_streams]
    for name in ends:
        screen().print(f"x what key {name} has begun ends", highlight=False)
    changed, tables = {(each.kind, each.name) for each in differences}, sorted({table_of(each.kind) for each in edits})
    # An entry that is as the file has it stays that of the settings. One that goes may be the same as theirs.
    edits = [each for each in edits if (each.kind, each.name) in changed or each.value is None]
    for each in edits:
        if (each.kind, each.name) not in changed and not each.end_streams:
            screen().print(f"- {each.kind} {each.name}: that of the settings is the same", highlight=False)
    if not edits:
        screen().print(f"nothing to change in {', '.join(tables)}")
    if options.dry_run or not edits:
        return 0
    if not options.yes and not agreed(max(1, len(differences))):
        return 1
    with messages().status("waiting until every router and replica knows it"):
        force = getattr(options, "force", False)
        result = client.edit_registry(edits, wait=options.wait_s, force=force, timeout=_CALL_S)
    if result.behind:
        late = ", ".join(result.behind)
        messages().print(f"[yellow]changed, but these do not know it yet: {escape(late)}[/]", highlight=False)
    missing = [each for each in result.adapters if each.state != "loaded"]
    for each in missing:
        text = f"adapter {each.adapter} on {each.replica}: {each.state}{': ' if each.why else ''}{each.why}"
        messages().print(f"[yellow]{escape(text)}[/]", highlight=False)
    screen().print(
        f"{counted(len(result.differences), 'entry', 'entries')} changed, version {result.version}", highlight=False
    )
    return 1 if any(each.state == "failed" for each in missing) else 0


def agreed(count: int) -> bool:
    """Ask whether so many entries are to change.

    Raises:
        SettingsError: there is nobody to ask.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise SettingsError("there is nobody to ask; give --yes to change it")
    messages().print(f"Change {counted(count, 'entry', 'entries')}? [y/N] ", end="", markup=False)
    return standard_input().readline().strip().lower() in ("y", "yes")


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait-s", type=time_from_zero, default=10.0, metavar="SECONDS",
        help="longest wait until every router and replica knows it, up to 60 (default %(default)g)",
    )  # fmt: skip


def add_history_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show who changed what in the registry, newest first."
    parser.add_argument("kind", nargs="?", default="", metavar="KIND", help=f"{_KINDS} (default: all)")
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="one entry (default: all)")
    parser.add_argument("--limit", type=whole(1, 1000), default=20, metavar="N", help="changes (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target_flags(parser)
    show_examples(parser, "penstock history", "penstock history tenants acme")
    parser.set_defaults(run=run_history)


def run_history(options: argparse.Namespace) -> int:
    """Print changes. The exit status is 1 where a line was changed afterwards."""
    kind = kind_of(options.kind)
    with report_call_errors(options, "10 s") as outcome, open_client(options) as client:
        changes = client.registry_changes(kind, name=options.name, limit=options.limit, timeout=10.0)
        if options.json:
            print_json(changes)
        else:
            for change in changes:
                _print_change(change)
            if not changes:
                screen().print("no changes")
        if not all(change.intact for change in changes):
            outcome.status = 1
    return outcome.status


def _print_change(change: RegistryChange) -> None:
    who = f"{change.tenant} ({change.credential})" if change.credential else change.tenant
    head = Text(f"{change.number}  {change.at:%Y-%m-%d %H:%M:%S}  {who}", style="bold")
    if not change.intact:
        head.append("  this line or the one before was changed in Redis", style="red")
    screen().print(head, soft_wrap=True)
    screen().print(shown([change.difference]), end="")
