"""`penstock top`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from cluster.errors import SettingsError
from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.values import above_zero
from router.commands.target import add_target_flags, open_client, report_call_errors, why_unreachable

if TYPE_CHECKING:
    from penstock.client import Client, PenstockClientError
    from router.commands.top.looked import Looked

ONCE_S = 1.2
"""Time between the two looks of a single picture, in seconds: rates need two, and replicas report once a second."""
_MOST_S = 3600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a cluster live: its pools with their targets, replicas with batch, KV cache and latency, who waits, and "
        "what the autoscaler decides. The keys are listed under `?`. It reads from one router, as an operator."
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end, as it does into a pipe")
    parser.add_argument("--pool", default="", help="the pool to begin with (default: the first one)")
    parser.add_argument(
        "--every", type=above_zero, default=1.0, metavar="SECONDS", help="time between two looks (default %(default)s)"
    )
    add_target_flags(parser)
    show_examples(parser, "penstock top", "penstock top --once", "penstock top --target router.example.com:50051")
    parser.set_defaults(run=run_top)


def run_top(options: argparse.Namespace) -> int:
    """Show the cluster until a key ends it, or once."""
    from router.commands.top.poll import Wish, look

    console = screen()
    once = options.once or not console.is_terminal or console.is_dumb_terminal
    with report_call_errors(options, "5 s") as outcome, open_client(options, quiet=not once) as client:
        # The first look reports errors as other commands do: there is no picture to keep yet.
        first = look(client, options.target, None, Wish())
        pools = [each.name for each in first.status.pools]
        if options.pool and options.pool not in pools:
            raise SettingsError(f"--pool: {options.pool!r} is none of {', '.join(pools)}")
        if once:
            time.sleep(ONCE_S)
            _print(look(client, options.target, first, Wish()), options.pool, console)
        else:
            _show(client, first, options, console)
    return outcome.status


def _print(looked: Looked, pool: str, console: Console) -> None:
    from router.commands.top.picture import picture
    from router.commands.top.view import View

    # A pipe gets all columns; a terminal those that fit.
    width = console.width if console.is_terminal else None
    for name in [pool] if pool else [each.name for each in looked.status.pools] or [""]:
        for each in picture(looked, View(name), width):
            console.print(
                Text.assemble(*((part.text, part.look.value) for part in each)), soft_wrap=True, highlight=False
            )
        console.print()


def _show(client: Client, first: Looked, options: argparse.Namespace, console: Console) -> None:
    from router.commands.top.live import show
    from router.commands.top.poll import Poller
    from router.commands.top.terminal import Terminal

    terminal = Terminal(console)
    poller = Poller(client, first, min(options.every, _MOST_S), terminal.wake, _explained(options))
    show(terminal, poller, options.pool)


def _explained(options: argparse.Namespace) -> Callable[[PenstockClientError], str]:
    def explain(error: PenstockClientError) -> str:
        from penstock.client import UnavailableError

        if isinstance(error, UnavailableError) and error.reason in (None, "", "UNREACHABLE"):
            return why_unreachable(options, str(error)).partition("; `penstock up`")[0] or str(error)
        return str(error)

    return explain
