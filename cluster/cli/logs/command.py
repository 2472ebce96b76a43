"""`penstock logs`: the log files of the cluster of a state folder."""

from __future__ import annotations

import argparse
import datetime
import math
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.cli.logs.choice import Choice, Chosen, when
from cluster.cli.logs.entry import LEVELS, LogEntry, Reader
from cluster.cli.logs.tail import FIRST_BYTES, MOST_BYTES, Tail
from cluster.cli.options import add_cluster_flags, settings_from
from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from cluster.terminal.command import show_examples
from cluster.terminal.values import whole, word

_POLL_S = 0.2
_LINES = 20


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the logs of the cluster that `penstock up` started here, in the order of their times: redis, ray (with "
        "replicas and their engines), router-0 and further routers, autoscaler, and replica-... where replicas run "
        "without Ray. They are files in the folder `run` of the state folder. Times are local. A line without a time, "
        "as of a traceback, is shown with the line that it belongs to."
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help="log to show (default: all)")
    parser.add_argument("-f", "--follow", action="store_true", help="show new lines as they come, until Ctrl-C")
    parser.add_argument(
        "-n",
        "--lines",
        type=whole(0),
        metavar="N",
        help=f"last lines of each log that fit the other flags (default {_LINES}; with --since: all)",
    )
    parser.add_argument("--since", type=when, metavar="WHEN", help="such as 10m, 2h, 1d, 09:30 or 2026-01-31T09:30")
    parser.add_argument("--level", choices=LEVELS, default=LEVELS[0], help="least level (default %(default)s)")
    parser.add_argument("--request", type=word, metavar="ID", help="only lines about this request")
    parser.add_argument(
        "--process", default="", metavar="TEXT",
        help="only lines of processes with this text in their name: a replica's id, ServeController, pid=123",
    )  # fmt: skip
    parser.add_argument("--raw", action="store_true", help="show lines as they are in the files")
    add_cluster_flags(parser)
    show_examples(
        parser,
        "penstock logs",
        "penstock logs ray -n 200",
        "penstock logs router-0 autoscaler --follow",
        "penstock logs --level warning --since 1h",
        "penstock logs --request 7f3a09 --since 1d",
    )
    parser.set_defaults(run=run_logs)


def run_logs(options: argparse.Namespace) -> int:
    """Print the last lines of logs, and follow them if asked to."""
    from cluster.cli.logs.show import Printer
    from cluster.terminal.console import messages, screen

    state = Path(options.state_dir) if options.state_dir else settings_from(options).cluster.state_dir
    folder = state.expanduser() / "run"
    if options.follow and not any(folder.glob("*.log")):
        messages().print(f"there are no logs in {folder} yet; waiting for a cluster", highlight=False, markup=False)
        while not any(folder.glob("*.log")):
            time.sleep(_POLL_S)
    logs = _Logs(folder, options.name, Choice(options.level, options.request or "", options.process, options.since))
    most = options.lines if options.lines is not None else _LINES if options.since is None else None
    printer = Printer(screen(), logs.width, raw=options.raw)
    printer.show(logs.first(most))
    while options.follow:
        time.sleep(_POLL_S)
        found = logs.new()
        printer.width = logs.width
        printer.show(found)
    return 0


class _Logs:
    """The logs that are shown, merged by time."""

    def __init__(self, folder: Path, names: Sequence[str], choice: Choice) -> None:
        self._folder = folder
        self._names = names
        self._choice = choice
        self._logs: dict[Path, tuple[Tail, Reader, Chosen]] = {}
        for path in _chosen(folder, names):
            self._add(path)

    @property
    def width(self) -> int:
        """Width of the longest name; 0 where one log alone is shown."""
        if len(self._logs) == 1 and self._names:
            return 0
        return max(len(path.stem) for path in self._logs)

    def first(self, most: int | None) -> list[tuple[str, LogEntry]]:
        """Return the newest lines of each log, at most this many of each."""
        found = []
        part = FIRST_BYTES if self._choice == Choice() and most is not None else MOST_BYTES
        for tail, reader, chosen in self._logs.values():
            taken = [entry for line in tail.first(part) if chosen.takes(entry := reader.read(line))]
            found += [(tail.name, entry) for entry in (taken if most is None else taken[-most:] if most else ())]
        return _by_time(found)

    def new(self) -> list[tuple[str, LogEntry]]:
        """Return the lines that were added since the last call, those of new logs included."""
        if not self._names:
            for path in sorted(self._folder.glob("*.log")):
                if path not in self._logs:
                    self._add(path)
        return _by_time(
            [
                (tail.name, entry)
                for tail, reader, chosen in self._logs.values()
                for line in tail.new()
                if chosen.takes(entry := reader.read(line))
            ]
        )

    def _add(self, path: Path) -> None:
        today = datetime.datetime.now().astimezone().date()
        self._logs[path] = Tail(path), Reader(today), Chosen(self._choice)


def _by_time(found: list[tuple[str, LogEntry]]) -> list[tuple[str, LogEntry]]:
    """Return lines in the order of their times. Lines of the same time, as those of a traceback, stay together."""
    return sorted(found, key=lambda one: one[1].at if one[1].at is not None else -math.inf)


def _chosen(folder: Path, names: Sequence[str]) -> list[Path]:
    found = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if not found:
        raise SettingsError(f"there are no logs in {folder}; has a cluster run in this state folder?")
    for name in names:
        if name not in found:
            near = did_you_mean(name, found)
            raise SettingsError(f"there is no log {name!r} in {folder}, but {', '.join(found)}{near}")
    return [found[name] for name in names] if names else list(found.values())
