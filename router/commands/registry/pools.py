"""The pools' part of `penstock apply`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.rollout.changes import SUCCESSOR
from cluster.settings import EngineKind, PoolSettings
from cluster.terminal.console import messages, screen, standard_input
from cluster.trust.masking import masked
from router.commands.registry.pool_difference import (
    Means,
    PoolChange,
    RunningPool,
    not_compared,
    pool_changes,
    with_secrets,
)
from router.commands.rollout import follow, show

if TYPE_CHECKING:
    from penstock.client import Client, FieldViolation, RegistryEdit, RegistryEntry

POLL_S = 0.3
_CALL_S = 90.0
"""Longest time of a call, in seconds: it waits for all routers."""


def change_pools(
    options: argparse.Namespace,
    client: Client,
    wanted: Mapping[str, PoolSettings],
    present: Sequence[RegistryEntry],
    *,
    quiet: bool,
) -> int:
    """Show what changes in the pools, ask, and change it. Return the exit status.

    Args:
        options: flags of the command.
        client: of the cluster.
        wanted: pools of the file.
        present: all entries of the registry.
        quiet: do not say that nothing changes.
    """
    running = running_pools(client, _with_secrets(client, present))
    _tell_not_compared(wanted, running)
    wanted, running = with_secrets(wanted, running)
    changes = pool_changes(wanted, running, prune=options.prune)
    for change in changes:
        screen().print(drawn(change), end="", soft_wrap=True)
    if (left := sorted(set(running) - set(wanted))) and not options.prune:
        messages().print(
            f"[dim]not in the file: {escape(', '.join(left))}; --prune removes such pools[/]", highlight=False
        )
    if not changes:
        if not quiet:
            screen().print("nothing to change")
        return 0
    if stuck := [(change.name, each) for change in changes for each in change.of(Means.RESTART)]:
        told = "; ".join(
            f"pools.{name}.{each.field}: can't change while the pool runs: {each.why}" for name, each in stuck
        )
        raise SettingsError(f"{told}. Nothing was changed. {SUCCESSOR}")
    if rolling := [each.name for each in changes if each.revision and each.before is not None and each.before.rolls]:
        raise SettingsError(
            f"a roll-out of pool {rolling[0]} goes on. Nothing was changed. Wait for its end, or end it with `penstock "
            f"rollout {rolling[0]} --back`"
        )
    edits = [edit for change in changes if (edit := _edit(change, running)) is not None]
    if edits:
        _check(client, edits)
    for change in changes:
        if change.revision:
            _check_rollout(client, change)
    if options.dry_run:
        return 0
    if not options.yes and not _agreed(len(changes)):
        return 1
    return _carry_out(options, client, changes, edits)


def _tell_not_compared(wanted: Mapping[str, PoolSettings], running: Mapping[str, RunningPool]) -> None:
    if unknown := not_compared(wanted, running):
        messages().print(
            f"[dim]not compared, as only admins see them: {escape(', '.join(unknown))}[/]", highlight=False
        )


def _with_secrets(client: Client, present: Sequence[RegistryEntry]) -> Sequence[RegistryEntry]:
    """Return the pools with their secrets, which only admins see."""
    from penstock.client import PermissionDeniedError

    try:
        return client.registry("pool", hashes=True, timeout=10.0)
    except PermissionDeniedError:
        return present


def _check(client: Client, edits: Sequence[RegistryEdit]) -> None:
    """Check edits before anything is changed.

    Raises:
        SettingsError: names what this cluster can't do.
    """
    from penstock.client import InvalidArgumentError

    try:
        client.edit_registry(edits, dry_run=True, timeout=10.0)
    except InvalidArgumentError as error:
        wrong = [f"{_place(one.field, edits)}: {one.description}" for one in error.violations]
        raise SettingsError(f"{'; '.join(wrong)}. Nothing was changed") from error


def _check_rollout(client: Client, change: PoolChange) -> None:
    """Check a roll-out before anything is changed.

    Raises:
        SettingsError: says what this cluster can't do.
    """
    from penstock.client import InvalidArgumentError

    try:
        client.start_rollout(change.name, change.revision, dry_run=True, timeout=10.0)
    except InvalidArgumentError as error:
        wrong = "; ".join(_named(one, f"pools.{change.name}.") for one in error.violations)
        raise SettingsError(f"{wrong}. Nothing was changed") from error


def _named(wrong: FieldViolation, pool: str) -> str:
    """Return what is wrong with a roll-out, with the setting's whole name."""
    if wrong.field != "changes":
        return f"{pool}rollout.{wrong.field}: {wrong.description}"
    return wrong.description if wrong.description.startswith(pool) else pool + wrong.description


def _place(field: str, edits: Sequence[RegistryEdit]) -> str:
    """Return the setting that a field of the call comes from."""
    found = re.fullmatch(r"edits\[(\d+)\]\.(?:value\.settings\.(.+)|.*)", field)
    if found is None:
        return "pools"
    name = edits[int(found[1])].name
    return f"pools.{name}.{found[2]}" if found[2] else f"pools.{name}"


def running_pools(client: Client, present: Sequence[RegistryEntry]) -> dict[str, RunningPool]:
    """Return the pools that run.

    Raises:
        SettingsError: the routers are of an earlier release.
    """
    from penstock.client import RolloutState

    found = {}
    for entry in present:
        if entry.kind != "pool" or entry.value.get("removed"):
            continue
        rollout, revision = client.rollout(entry.name, timeout=10.0), dict[str, Any]()
        rolls = rollout is not None and rollout.state.active
        if rollout is not None:
            back = rollout.state in (RolloutState.GOING_BACK, RolloutState.RETURNED)
            revision = dict(rollout.old_changes if back else rollout.new_changes)
        point = client.decisions(entry.name, limit=1, timeout=10.0).operating_point
        if point is None:
            raise SettingsError(f"the routers are of a release that does not tell what pool {entry.name} promises")
        own = PoolSettings.model_validate(entry.value["settings"])
        found[entry.name] = RunningPool(own, revision, point, entry.version, rolls)
    return found


def drawn(change: PoolChange) -> Text:
    """Draw what changes, as lines with +, ~ and -."""
    text = Text()
    if change.after is None:
        return text.append(f"- pool {change.name}\n", style="bold red")
    if change.before is None:
        text.append(f"+ pool {change.name}\n", style="bold green")
        unused = {"vllm"} if change.after.engine is EngineKind.SIM else {"sim"}
        for name, value in _words(change.after.model_dump(mode="json", exclude_unset=True, exclude=unused)):
            text.append(f"    + {name} = {value}\n", style="green")
        return text
    text.append(f"~ pool {change.name}\n", style="bold yellow")
    for each in change.fields:
        before, after = (_shown(each.path, value) for value in (each.before, each.after))
        what = f"{before} -> {after}" if before != after else "changed; its value is not shown"
        text.append(f"    ~ {each.field}: {what}", style="yellow")
        text.append(f"  ({each.means.value})\n", style="red" if each.means is Means.RESTART else "dim")
    return text


def _words(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found += _words(value, f"{prefix}{name}.")
        elif value is not None:
            found.append((f"{prefix}{name}", _json(masked(name, value))))
    return found


def _shown(path: Sequence[str], value: Any) -> str:
    return _json(masked(path[-1], value))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _edit(change: PoolChange, running: Mapping[str, RunningPool]) -> RegistryEdit | None:
    """Return the change of the pool's entry; None where it stays."""
    from penstock.client import RegistryEdit

    version = running[change.name].version if change.name in running else None
    if change.after is None:
        return RegistryEdit("pool", change.name, {"removed": True}, version)
    if change.before is None:
        settings = change.after.model_dump(mode="json", exclude_unset=True)
        return RegistryEdit("pool", change.name, {"settings": settings})
    if (entry := change.entry) is None:
        return None
    return RegistryEdit(
        "pool", change.name, {"settings": entry.model_dump(mode="json", exclude_defaults=True)}, version
    )


def _agreed(count: int) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise SettingsError("there is nobody to ask; give --yes to change it")
    messages().print(f"Change {counted(count, 'pool', 'pools')}? [y/N] ", end="", markup=False)
    return standard_input().readline().strip().lower() in ("y", "yes")


def _carry_out(
    options: argparse.Namespace, client: Client, changes: Sequence[PoolChange], edits: Sequence[RegistryEdit]
) -> int:
    if edits:
        with messages().status("waiting until every router knows it"):
            result = client.edit_registry(edits, wait=options.wait_s, timeout=_CALL_S)
        if result.behind:
            late = ", ".join(result.behind)
            messages().print(f"[yellow]changed, but these do not know it yet: {escape(late)}[/]", highlight=False)
    status = 0
    for change in changes:
        if change.before is None:
            # One of an earlier pool of this name would still be in force.
            _once_known(client, change.name)
            client.set_operating_point(change.name, None, timeout=10.0)
        elif change.point is not None:
            client.set_operating_point(change.name, change.point, timeout=10.0)
            screen().print(f"pool {change.name}: operating point changed", highlight=False)
        if change.revision:
            begun = client.start_rollout(change.name, change.revision, timeout=10.0)
            if not options.detach:
                ended = follow(client, begun, screen())
                show(ended, screen())
                status = max(status, 0 if ended.state == "done" else 1)
    return status if options.detach else max([status, *(_followed(client, change) for change in changes)])


def _once_known(client: Client, name: str) -> None:
    """Wait until the router that answers serves a new pool."""
    until = time.monotonic() + _CALL_S
    while time.monotonic() < until and all(model.name != name for model in client.list_models(timeout=10.0)):
        time.sleep(POLL_S)


def _followed(client: Client, change: PoolChange) -> int:
    """Wait until a pool is as it should be. Return the exit status."""
    name, after = change.name, change.after
    if change.before is not None and after is not None and change.replicas is None:
        return 0
    with messages().status(f"pool {name}") as line:
        while True:
            entry = next(iter(client.registry("pool", name=name, timeout=10.0)), None)
            state = entry.state if entry is not None else ""
            if after is None and state == "gone":
                screen().print(f"pool {name}: removed", highlight=False)
                return 0
            if after is not None and state == "serving" and (ready := _ready(client, name)) >= after.replicas:
                # An autoscaler may have started more.
                screen().print(f"pool {name}: {counted(ready, 'replica serves', 'replicas serve')}")
                return 0
            if entry is not None and state == "failed":
                why = f"pool {name} does not start, and is tried again: {entry.why}"
                messages().print(f"[red]{escape(why)}[/]", highlight=False)
                return 1
            line.update(f"pool {name}: {state or 'waiting'}")
            time.sleep(POLL_S)


def _ready(client: Client, name: str) -> int:
    return next((model.ready_replicas for model in client.list_models(timeout=10.0) if model.name == name), 0)
