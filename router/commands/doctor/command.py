"""`penstock doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from cluster.cli.options import add_cluster_flags, add_pool_flags, given_in
from cluster.plural import counted
from cluster.terminal.command import show_examples
from cluster.terminal.console import messages, screen
from cluster.terminal.json_values import print_json

if TYPE_CHECKING:
    from cluster.settings import Settings
    from router.commands.doctor.finding import DoctorFinding

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check whether this machine can run the cluster that the settings describe: Python and packages, ports, Redis, "
        "clocks, limits, memory and disks, GPUs or the processor, model files, certificates and keys. The flags are "
        "those of `penstock up`. Nothing is started, and nothing is changed: in Redis it writes five keys of its own, "
        "and removes them. The exit status is 1 where anything is bad."
    )
    add_cluster_flags(parser)
    add_pool_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    show_examples(
        parser,
        "penstock doctor",
        "penstock doctor --settings cluster.toml",
        "penstock doctor --redis-url redis://redis.example.com:6379 --json",
    )
    parser.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> int:
    """Print a line per check, and what to do about those that are not well."""
    from router.commands.doctor.finding import exit_status

    console = screen()
    with messages().status("looking"):
        findings = list(examine(options))
    if options.json:
        print_json({"ok": not exit_status(findings), "findings": findings})
    else:
        show_findings(findings, console)
    return exit_status(findings)


def examine(options: argparse.Namespace) -> Iterator[DoctorFinding]:
    """Yield the findings. Settings with problems are a finding, and the rest is checked with the defaults."""
    from cluster.errors import SettingsError
    from cluster.settings import Settings
    from cluster.settings.load import check_sources, read_sources
    from router.commands.doctor.finding import bad, ok

    remedy = "`penstock config check` shows the lines; the checks below are of the default settings"
    try:
        sources = read_sources(*given_in(options))
        found: Settings | list[str] = check_sources(sources)
        place = str(sources.file or "the defaults, variables and flags")
    except SettingsError as error:
        found, place = [str(error)], ""
    if isinstance(found, list):
        for problem in found:
            yield bad("settings", problem, remedy)
        found = Settings()
    else:
        yield ok("settings", place)
    yield from _checks(found)


def _checks(settings: Settings) -> Iterator[DoctorFinding]:
    from router.commands.doctor import files, machine, packages, store

    gpus, trouble = machine.find_gpus()
    checks: Sequence[Callable[[], Iterator[DoctorFinding]]] = (
        lambda: packages.check_packages(settings, gpus=bool(gpus)),
        lambda: machine.check_gpus(settings, gpus, trouble, cpu_build=packages.for_cpu()),
        lambda: iter([machine.check_host(settings)]),
        lambda: machine.check_ports(settings),
        lambda: store.check_store(settings),
        lambda: machine.check_limits(settings),
        lambda: files.check_models(settings),
        lambda: files.check_certificates(settings),
        lambda: files.check_keys(settings),
        lambda: iter([files.check_secret(settings)]),
    )
    for check in checks:
        yield from check()


def show_findings(findings: Sequence[DoctorFinding], console: Console) -> None:
    """Print the findings and how many are not well."""
    wide = max(len(each.subject) for each in findings)
    for each in findings:
        health = f"[{_STYLES[each.health]}]{each.health:<4}[/]"
        console.print(
            f"{health}  {escape(f'{each.subject:<{wide}}')}  {escape(each.text)}", highlight=False, soft_wrap=True
        )
        if each.remedy:
            console.print(f"{'':{wide + 8}}[dim]> {escape(each.remedy)}[/]", highlight=False, soft_wrap=True)
    counts = {health: sum(each.health == health for each in findings) for health in ("bad", "warn")}
    console.print(
        f"{counted(len(findings), 'check')}: {counts['bad']} bad, {counts['warn']} to look at", highlight=False
    )
