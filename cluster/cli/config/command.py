"""`penstock config`: check settings, show where they come from, begin a file, write the alerts for them."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.terminal.command import Subcommands, add_action, show_examples
from cluster.terminal.console import print_problem
from cluster.terminal.values import folder, word

if TYPE_CHECKING:
    from cluster.cli.config.origin import Origins
    from cluster.settings import Settings
    from cluster.settings.load import Sources

STARTER = "cluster.toml"
"""Name of the file that `penstock config init` writes."""

ALERTS_HEADER = """\
Alert rules of Penstock for Prometheus, written by `penstock config alerts`. Name this file in `rule_files`.
Alerts on burn rates compare with the attainment in force, which routers export. So a change of the operating point
needs no new rules. By the settings:
"""
_LABEL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def add_flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = _action(actions, "check", "check settings, and name everything that is wrong with them", run_check)
    check.add_argument(
        "--no-files", action="store_true", help="leave out the files that settings name: they may be on another machine"
    )
    show = _action(actions, "show", "show every setting, its value, and where that comes from", run_show)
    show.add_argument("--changed", action="store_true", help="leave out settings that have their default")
    show.add_argument("--json", action="store_true", help="print JSON")
    alerts = _action(actions, "alerts", "print Prometheus' alert rules, each with its runbook", run_alerts)
    alerts.add_argument(
        "--label",
        action="append",
        default=[],
        type=_label,
        metavar="NAME=VALUE",
        help="label of this cluster's series, where one Prometheus scrapes several clusters; may be repeated",
    )
    init = add_action(actions, "init", "write a file to begin with, with the most used settings and what they mean")
    init.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        default=STARTER,
        help=f"file to write; - is standard output (default {STARTER})",
    )
    init.add_argument("--force", action="store_true", help="replace a file that exists")
    init.set_defaults(run=run_init)
    show_examples(
        parser,
        "penstock config init cluster.toml",
        "penstock config check cluster.toml",
        "penstock config show cluster.toml --changed",
        "PENSTOCK_ROUTER__PORT=6000 penstock config show --replicas 2",
        "penstock config alerts cluster.toml > penstock-alerts.yaml",
    )


def _action(
    actions: Subcommands, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    from cluster.cli.options import add_pool_flags

    parser = add_action(actions, name, text)
    parser.description = (
        f"{parser.description} The flags are those of `penstock up`; variables of the environment count, too."
    )
    parser.add_argument(
        "settings",
        nargs="?",
        metavar="FILE",
        type=word,
        help="TOML file with the settings (default: the variable PENSTOCK_SETTINGS, or only defaults)",
    )
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="folder of Redis' data, the secret and logs")
    add_pool_flags(parser)
    parser.set_defaults(run=run)
    return parser


def run_check(options: argparse.Namespace) -> int:
    """Print every problem, or what the settings describe. The exit status is 2 where there is a problem."""
    from cluster.cli.config.origin import Origins
    from cluster.settings import access_of
    from cluster.settings.load import check_sources

    sources = _sources(options)
    found = check_sources(sources)
    if isinstance(found, list):
        return _report(found, Origins(sources))
    try:
        access_of(found)
    except SettingsError as error:
        return _report([str(error)], Origins(sources))
    if not options.no_files and (problems := _file_problems(found)):
        return _report(problems, Origins(sources))
    sys.stdout.write(f"{sources.file or 'the settings'}: no problems\n{_summary(found)}")
    return 0


def _report(problems: Sequence[str], origins: Origins) -> int:
    for problem in problems:
        print_problem(f"{origins.place_of(problem)}{problem}")
    print_problem(counted(len(problems), "problem"))
    return 2


def _file_problems(settings: Settings) -> list[str]:
    from cluster.bootstrap.ahead import file_checks

    problems = []
    for check in file_checks(settings):
        try:
            check()
        except SettingsError as error:
            problems.append(str(error))
    return problems


def _summary(settings: Settings) -> str:
    lines = [
        f"pool {name}: {pool.model}, {pool.engine}, {counted(pool.replicas, 'replica')}"
        for name, pool in settings.pools.items()
    ]
    redis = "an embedded Redis" if not settings.redis.url else "an existing Redis"
    lines.append(f"{counted(settings.router.processes, 'router')} on port {settings.router.port}, {redis}")
    return "".join(f"{line}\n" for line in lines)


def run_show(options: argparse.Namespace) -> int:
    """Print the whole tree as TOML, with the origin of each value in a comment."""
    from cluster.cli.config.origin import Origins, shown_settings
    from cluster.cli.config.show import as_toml
    from cluster.settings.load import check_sources

    sources = _sources(options)
    found = check_sources(sources)
    if isinstance(found, list):
        raise SettingsError("; ".join(found))
    shown = [
        each for each in shown_settings(found, Origins(sources)) if not options.changed or each.origin != "default"
    ]
    if options.json:
        fields = {".".join(each.path): {"value": each.value, "from": each.origin} for each in shown}
        sys.stdout.write(json.dumps(fields, indent=2) + "\n")
    else:
        sys.stdout.write(as_toml(shown))
    return 0


def run_alerts(options: argparse.Namespace) -> int:
    """Print the rules, with what the settings promise in a comment."""
    from cluster.alerts.rules_file import promises, rules_file
    from cluster.control.settings import operating_point
    from cluster.settings.load import check_sources

    sources = _sources(options)
    found = check_sources(sources)
    if isinstance(found, list):
        raise SettingsError("; ".join(found))
    points = {name: operating_point(pool) for name, pool in found.pools.items()}
    sys.stdout.write(rules_file(f"{ALERTS_HEADER}{promises(points)}", dict(options.label)))
    return 0


def run_init(options: argparse.Namespace) -> int:
    """Write the starter file."""
    from cluster.cli.config.starter import TEXT

    if options.file == "-":
        sys.stdout.write(TEXT)
        return 0
    path = Path(options.file).expanduser()
    try:
        _write(path, TEXT, replace=options.force)
    except FileExistsError:
        raise SettingsError(f"{path} exists; choose another name, or replace it with --force") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
    sys.stdout.write(f"wrote {path}; change it, then: penstock config check {path}\n")
    return 0


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Write a file. Where that fails, on a full disk for example, nothing is left of it, and an old one stays.

    Raises:
        OSError: it can't be written, or exists and must not be replaced.
    """
    old = path.resolve() if replace else path
    if replace and old.exists() and not old.is_file():
        # A device or a pipe, which a new file must not take the place of.
        old.write_text(text, encoding="utf-8")
        return
    new = old.with_name(f".{old.name}.{secrets.token_hex(4)}") if replace and old.exists() else old
    file = new.open("x", encoding="utf-8")
    try:
        with file:
            file.write(text)
        if new != old:
            shutil.copymode(old, new)
            new.replace(old)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def _sources(options: argparse.Namespace) -> Sources:
    from cluster.cli.options import given_in
    from cluster.settings.load import read_sources

    return read_sources(*given_in(options))


def _label(text: str) -> tuple[str, str]:
    found = _LABEL.fullmatch(text)
    if found is None or found[1] == "severity":
        raise argparse.ArgumentTypeError(f"must be a label's name other than severity, = and its value, got {text!r}")
    return found[1], found[2]
