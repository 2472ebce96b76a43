"""`penstock keys`: new keys, the list of them, and checks."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.terminal.command import add_action, show_examples
from cluster.terminal.console import messages, screen, standard_input
from cluster.terminal.tables import add_columns, print_table
from router.commands.target import add_target_flags, open_client, report_call_errors

if TYPE_CHECKING:
    from router.identity.caller import Caller
    from router.identity.new_key import KeyPlan
    from router.identity.table import Entry

_OVERLAP = "1h"
_FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("tenant", "replaces", "overlap", "role", "models", "classes", "not_before", "expires")
}
"""Field of a new key, in a call or in the file, to its flag."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = add_action(actions, "new", "print a new key and add its hash to the keys file")
    new.add_argument("--tenant", metavar="NAME", help="tenant that the key's calls belong to")
    new.add_argument(
        "--replaces",
        metavar="ID",
        help="with --cluster: public id of a key whose rights the new one takes, and which expires after --overlap",
    )
    new.add_argument(
        "--overlap", metavar="TIME", help=f"with --replaces: how long the old key stays valid (default {_OVERLAP})"
    )
    new.add_argument(
        "--role",
        choices=("user", "tenant_operator", "operator", "admin"),
        default="user",
        help="what it may do (default %(default)s)",
    )
    new.add_argument("--models", metavar="A,B", help="models it may use (default: all)")
    new.add_argument(
        "--classes", metavar="A,B", help="request classes it may use: interactive, standard, batch (default: all)"
    )
    new.add_argument("--not-before", metavar="WHEN", help="when it becomes valid (default: at once)")
    new.add_argument(
        "--expires", metavar="WHEN", help="when it expires, such as 90d or 2027-01-31T12:00 (default: never)"
    )
    new.add_argument(
        "--cluster", action="store_true", help="make it in the running cluster, for all routers at once, not in a file"
    )
    new.set_defaults(run=run_new)
    listing = add_action(actions, "list", "list the keys and certificates of the keys file")
    listing.set_defaults(run=run_list)
    check = add_action(actions, "check", "check the keys file, or say what one key may do")
    check.add_argument(
        "--stdin",
        action="store_true",
        help="look up the key on standard input; the exit status is 0 only if it is valid",
    )
    check.set_defaults(run=run_check)
    for action in (new, listing, check):
        action.add_argument("--file", metavar="FILE", help="the keys file (default: the setting auth.keys_file)")
        action.add_argument("--settings", metavar="FILE", help="TOML file with the settings")
    add_target_flags(new, text="router of the cluster, with --cluster", key=True)
    show_examples(
        parser,
        "penstock keys new --cluster --tenant acme --expires 90d",
        "penstock keys new --cluster --replaces 5d41402abc4b2a76 --overlap 1h",
        "penstock keys new --file keys.toml --tenant acme --expires 90d",
        "penstock keys list --file keys.toml",
        "penstock keys check --file keys.toml --stdin < key.txt",
    )


def run_new(options: argparse.Namespace) -> int:
    """Create a key: print it to standard output, once, and write its hash to the file."""
    from router.identity.new_key import KeyPlan, add_key

    now = datetime.now(UTC)
    if options.replaces:
        return _replace_in_cluster(options, now)
    if options.overlap is not None:
        raise SettingsError("--overlap: needs --replaces")
    if not options.tenant:
        raise SettingsError("--tenant: must be given")
    plan = KeyPlan(
        tenant=options.tenant,
        role=options.role,
        models=names(options.models),
        classes=names(options.classes),
        not_before=moment(options.not_before, now, "--not-before"),
        expires=moment(options.expires, now, "--expires"),
    )
    if plan.expires is not None and plan.expires <= now:
        text = f"--expires: {plan.expires:%Y-%m-%d %H:%M} UTC is over, so nobody can call with this key"
        messages().print(f"[yellow]{text}[/]", highlight=False, soft_wrap=True)
    if options.cluster:
        return _make_in_cluster(options, plan)
    with _keys_file(options) as path, _told_by_flag():
        sys.stdout.write(add_key(path, plan) + "\n")
    messages().print(
        f"[dim]its hash is in {escape(str(path))}; the key itself is shown only here[/]",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _replace_in_cluster(options: argparse.Namespace, now: datetime) -> int:
    if not options.cluster:
        raise SettingsError("--replaces goes with --cluster; in a file let the old key expire, and make a new one")
    if options.tenant or options.models or options.classes or options.not_before or options.role != "user":
        raise SettingsError("--replaces takes the rights of the old key; change them with `penstock apply`")
    overlap = options.overlap or _OVERLAP
    until = moment(overlap, now, "--overlap")
    overlap_s = (until - now).total_seconds() if until is not None else 0.0
    expires = moment(options.expires, now, "--expires")
    with report_call_errors(options, "10 s", _flag_of) as outcome, open_client(options) as client:
        made = client.replace_key(options.replaces, overlap=overlap_s, expires=expires, timeout=10.0)
        sys.stdout.write(made.key + "\n")
        text = f"[dim]{options.replaces} expires in {overlap}; the new key itself is shown only here[/]"
        messages().print(text, highlight=False, soft_wrap=True)
    return outcome.status


def _make_in_cluster(options: argparse.Namespace, plan: KeyPlan) -> int:
    if options.file:
        raise SettingsError("give one of --cluster and --file")
    with report_call_errors(options, "10 s", _flag_of) as outcome, open_client(options) as client:
        made = client.create_key(
            plan.tenant,
            role=plan.role,
            models=plan.models or (),
            classes=plan.classes or (),
            not_before=plan.not_before,
            expires=plan.expires,
            timeout=10.0,
        )
        sys.stdout.write(made.key + "\n")
        messages().print(
            f"[dim]take it back with `penstock delete keys {made.id}`; the key itself is shown only here[/]",
            highlight=False,
            soft_wrap=True,
        )
    return outcome.status


def run_list(options: argparse.Namespace) -> int:
    """Print a table of the file's entries. It never shows a key: the file has hashes only."""
    from router.identity.keys_file import read_keys_file
    from router.identity.table import KeyTable

    now_ms = _now_ms()
    table = Table()
    columns = ("name", "state", "tenant", "role", "models", "classes", "valid")
    add_columns(table, *columns, words=("name", "tenant", "models", "classes", "valid"), left=("state", "role"))
    with _keys_file(options) as path:
        entries = KeyTable(read_keys_file(path)).entries()
    for entry in entries.values():
        caller = entry.caller
        cells = (caller.tenant, caller.role.name.lower(), _all_or(caller.models), _all_or(_classes(caller)))
        table.add_row(*map(Text, (entry.name, entry.validity(now_ms).value, *cells, ", ".join(_bounds(entry)))))
    print_table(table, screen())
    return 0


def run_check(options: argparse.Namespace) -> int:
    """Check the file. With --stdin look up a key, and return exit status 0 only when it is valid now."""
    from router.identity.keys_file import read_keys_file
    from router.identity.table import KeyTable, Validity

    with _keys_file(options) as path:
        file = read_keys_file(path)
    table = KeyTable(file)
    now_ms = _now_ms()
    if not options.stdin:
        lines = [describe(entry, now_ms) for entry in table.entries().values()]
        sys.stdout.write(
            "\n".join(
                (*lines, f"{counted(len(file.keys), 'key')}, {counted(len(file.certificates), 'certificate')}", "")
            )
        )
        return 0
    entry = table.by_key(_read_key())
    if entry is None:
        sys.stdout.write(f"not known: no entry of {path} is this key's\n")
        return 1
    sys.stdout.write(describe(entry, now_ms) + "\n")
    return 0 if entry.validity(now_ms) is Validity.VALID else 1


def _read_key() -> str:
    try:
        return standard_input().read().strip()
    except UnicodeDecodeError:
        # No entry has the empty key.
        return ""


def keys_path(options: argparse.Namespace) -> Path:
    """Return the file that the flags or the settings name.

    Raises:
        SettingsError: neither names one.
    """
    from cluster.settings import load_settings

    if options.file:
        return Path(options.file).expanduser()
    path = load_settings(Path(options.settings) if options.settings else None).auth.keys_file
    if path is None:
        raise SettingsError("auth.keys_file: is not set; name the file with --file or the settings with --settings")
    return path


@contextmanager
def _keys_file(options: argparse.Namespace) -> Iterator[Path]:
    """Give the path of the file. What is wrong with one of --file is said of the flag, not of the setting."""
    from router.identity.keys_file import SETTING

    path = keys_path(options)
    try:
        yield path
    except SettingsError as error:
        if not options.file:
            raise
        raise SettingsError(str(error).replace(f"{SETTING}: ", "--file: ", 1)) from error


def _flag_of(field: str) -> str:
    """Return the flag of a field, or of one item of it."""
    return _FLAGS.get(field.partition(".")[0], field)


@contextmanager
def _told_by_flag() -> Iterator[None]:
    """Say what is wrong with a new key of its flags. The rest of the file was right before it came."""
    try:
        yield
    except SettingsError as error:
        # Of an entry as a whole there is one rule, which is about its times.
        told = re.sub(
            r"(?:new key: )?keys\.\d+(?:\.(\w+)(?:\.\d+)?)?: ",
            lambda found: f"{_flag_of(found[1] or 'expires')}: ",
            str(error),
        )
        raise SettingsError(told) from error


def names(text: str | None) -> tuple[str, ...] | None:
    """Split a list at its commas; None stays None."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def moment(text: str | None, now: datetime, flag: str) -> datetime | None:
    """Read a time: one from now on, such as 90d, 12h, 30m or 45s, or an ISO 8601 date and time, UTC without a zone.

    Raises:
        SettingsError: the text is neither.
    """
    if text is None:
        return None
    if match := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return now + timedelta(**{_UNITS[match.group(2)]: int(match.group(1))})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{flag}: must be like 90d, 12h, 30m, 45s or 2027-01-31T12:00, got {text!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def describe(entry: Entry, now_ms: int) -> str:
    """Return one line: whether an entry is valid, and for whom and what."""
    caller, validity = entry.caller, entry.validity(now_ms)
    parts = [
        f"tenant {caller.tenant}",
        f"role {caller.role.name.lower()}",
        f"models {_all_or(caller.models)}",
        f"classes {_all_or(_classes(caller))}",
        *_bounds(entry),
    ]
    return f"{validity.value}: {entry.name}: {'; '.join(parts)}"


def _classes(caller: Caller) -> list[str] | None:
    return None if caller.classes is None else [one.name.lower() for one in sorted(caller.classes)]


def _bounds(entry: Entry) -> list[str]:
    return [
        *([f"not before {_time(entry.not_before_ms)}"] if math.isfinite(entry.not_before_ms) else []),
        *([f"expires {_time(entry.expires_ms)}"] if math.isfinite(entry.expires_ms) else []),
    ]


def _all_or(names: Iterable[str] | None) -> str:
    return "all" if names is None else ", ".join(sorted(names)) or "none"


def _time(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
