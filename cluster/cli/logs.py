"""`penstock logs`: the log files of the cluster of a state folder."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.cli.options import add_cluster_flags, settings_from
from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from cluster.terminal.command import show_examples
from cluster.terminal.values import whole

_POLL_S = 0.2
_MOST_BYTES = 4 << 20
"""Part of a file, at its end, that is searched for its last lines."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the logs of the cluster that `penstock up` started here: redis, ray (with replicas and their engines), "
        "router-0 and further routers, autoscaler. They are files in the folder `run` of the state folder."
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help="log to show (default: all)")
    parser.add_argument("-f", "--follow", action="store_true", help="show new lines as they come, until Ctrl-C")
    parser.add_argument(
        "-n", "--lines", type=whole(0), metavar="N", default=20, help="last lines of each log (default %(default)s)"
    )
    add_cluster_flags(parser)
    show_examples(parser, "penstock logs", "penstock logs ray -n 200", "penstock logs router-0 autoscaler --follow")
    parser.set_defaults(run=run_logs)


def run_logs(options: argparse.Namespace) -> int:
    """Print the last lines of logs, and follow them if asked to."""
    state = Path(options.state_dir) if options.state_dir else settings_from(options).cluster.state_dir
    folder = state.expanduser() / "run"
    tails = [_Tail(path) for path in _chosen(folder, options.name)]
    width = max(len(each.name) for each in tails) if len(tails) > 1 or not options.name else 0
    for tail in tails:
        _print(tail, tail.last(options.lines), width)
    while options.follow:
        time.sleep(_POLL_S)
        for tail in tails:
            _print(tail, tail.new(), width)
        if not options.name:
            known = {each.path for each in tails}
            tails += [_Tail(path) for path in sorted(folder.glob("*.log")) if path not in known]
    return 0


def _chosen(folder: Path, names: Sequence[str]) -> list[Path]:
    found = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if not found:
        raise SettingsError(f"there are no logs in {folder}; has a cluster run in this state folder?")
    for name in names:
        if name not in found:
            near = did_you_mean(name, found)
            raise SettingsError(f"there is no log {name!r} in {folder}, but {', '.join(found)}{near}")
    return [found[name] for name in names] if names else list(found.values())


def _print(tail: _Tail, lines: Sequence[str], width: int) -> None:
    before = f"{tail.name:<{width}} | " if width else ""
    sys.stdout.write("".join(f"{before}{line}\n" for line in lines))
    sys.stdout.flush()


class _Tail:
    """Reader of a file that another process appends to. Only whole lines are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._read = 0

    def last(self, count: int) -> list[str]:
        """Return the last lines. What comes after them is new."""
        size = self.path.stat().st_size
        self._read = max(0, size - _MOST_BYTES)
        lines = self.new()
        return lines[-count:] if count else []

    def new(self) -> list[str]:
        """Return the lines that were added since the last call."""
        try:
            with self.path.open("rb") as file:
                if self.path.stat().st_size < self._read:
                    # It was emptied: another cluster started in this folder.
                    self._read = 0
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            self._read = 0
            return []
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode("utf-8", errors="replace").split("\n")
