"""Flags of `penstock loadtest`."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from cluster.terminal.values import time_from_zero, time_of, whole
from router.commands.target import add_target_flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_target_flags(parser)
    load = parser.add_argument_group("load")
    for flag, text in LOAD_FLAGS:
        load.add_argument(f"--{flag}", help=text)
    load.add_argument("--list", action="store_true", help="list the scenarios and stop")
    load.add_argument("--processes", type=whole(1), default=1, help="generator processes (default %(default)s)")
    load.add_argument(
        "--drain",
        type=time_from_zero,
        default=30.0,
        help="seconds to wait at the end for open requests; later ones are cut off and count as failed "
        "(default %(default)s)",
    )
    load.add_argument(
        "--request-timeout", type=time_of, default=600.0, help="deadline of a request (default %(default)s)"
    )
    load.add_argument(
        "--flush-interval", type=time_from_zero, help="seconds for which routers merge deltas (default: theirs)"
    )
    gate = parser.add_argument_group("gate")
    gate.add_argument(
        "--assert",
        dest="bounds",
        metavar="BOUNDS",
        help="exit with 1 unless all hold, such as 'ttft_p99<500ms,goodput>0.99'",
    )
    sweep = parser.add_argument_group("sweep", "find the highest rate that holds --assert (default goodput>=0.99)")
    sweep.add_argument("--sweep", action="store_true", help="search instead of running once")
    sweep.add_argument("--sweep-low", type=float, help="requests/s to begin with (default 1)")
    sweep.add_argument("--sweep-high", type=float, help="where to stop looking (default 1000)")
    sweep.add_argument("--sweep-repeats", type=int, help="trials per rate; odd (default 3)")
    sweep.add_argument("--sweep-precision", type=float, help="width of the answer as a part of it (default 0.1)")
    sweep.add_argument(
        "--sweep-confidence",
        type=float,
        help="try both ends of the answer again until each has this confidence (default 0.9)",
    )
    report = parser.add_argument_group("report")
    report.add_argument("--report", metavar="PREFIX", help="write PREFIX.html and PREFIX.json (default loadtest-NAME)")
    report.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=_loadtest)


LOAD_FLAGS: tuple[tuple[str, str], ...] = (
    ("scenario", "name of a scenario, or a .toml file (default chat)"),
    ("rate", "requests per second"),
    ("duration", "seconds in which requests come"),
    ("arrivals", "poisson, constant, gamma:cv=3, mmpp, step, spike, diurnal, with their values"),
    ("seed", "seed of all random draws"),
    ("trace", "replay an Azure, BurstGPT, Mooncake, CSV or JSONL trace"),
    ("scale-rate", "speed the trace up by this factor"),
    ("lengths", "draw lengths from this trace or CSV"),
    ("prompt-tokens", "length of all prompts; goes with --output-tokens"),
    ("output-tokens", "length of all outputs"),
    ("slo-ttft", "SLO of a request: seconds to its first token"),
    ("slo-itl", "SLO of a request: seconds, 95th percentile of its own gaps"),
    ("warmup", "do not count requests of the first seconds"),
    ("model", "model name (default: the only one)"),
)
"""Flags without types and defaults. The scenario has both, and checks the values."""


def _loadtest(options: argparse.Namespace) -> int:
    from loadtest.load.command import run_loadtest

    with _ends_in_order():
        return run_loadtest(options)


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Let SIGTERM end the command as an exception. Locust has its own process group and would otherwise go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
