"""Flags of `penstock loadtest`."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from cluster.errors import GeneratorError
from cluster.terminal.command import show_examples
from cluster.terminal.values import time_from_zero, time_of, whole
from router.commands.target import add_target_flags, why_unreachable


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Send a load with Locust and report what clients saw: latencies, goodput, and what the cluster did meanwhile. "
        "The exit status is 1 where a bound of --assert is broken."
    )
    _add_load_flags(parser)
    gate = parser.add_argument_group("bounds")
    gate.add_argument(
        "--assert",
        dest="bounds",
        metavar="BOUNDS",
        help="exit with status 1 unless all hold, such as 'ttft_p99<500ms,goodput>0.99'",
    )
    _add_sweep_flags(parser)
    _add_report_flags(parser)
    add_target_flags(parser)
    show_examples(
        parser,
        "penstock loadtest --list",
        "penstock loadtest --scenario smoke",
        "penstock loadtest --rate 5 --duration 60 --assert 'ttft_p99<500ms,goodput>0.99'",
        "penstock loadtest --sweep --slo-ttft 1 --slo-itl 0.05",
    )
    parser.set_defaults(run=_loadtest)


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    for flag, value, text in LOAD_FLAGS:
        load.add_argument(f"--{flag}", metavar=value, help=text)
    load.add_argument("--list", action="store_true", help="list the scenarios and stop")
    load.add_argument(
        "--processes", type=whole(1), metavar="N", default=1, help="generator processes (default %(default)s)"
    )
    load.add_argument(
        "--drain",
        type=time_from_zero,
        metavar="SECONDS",
        default=30.0,
        help="time to wait at the end for open requests; later ones are cut off and count as failed "
        "(default %(default)g)",
    )
    load.add_argument(
        "--request-timeout",
        type=time_of,
        metavar="SECONDS",
        default=600.0,
        help="deadline of a request (default %(default)g)",
    )
    load.add_argument(
        "--flush-interval",
        type=time_from_zero,
        metavar="SECONDS",
        help="time for which routers collect tokens before they send them (default: the routers' own)",
    )


def _add_sweep_flags(parser: argparse.ArgumentParser) -> None:
    sweep = parser.add_argument_group("sweep", "find the highest rate that holds --assert (default goodput>=0.99)")
    sweep.add_argument("--sweep", action="store_true", help="search instead of running once")
    sweep.add_argument("--sweep-low", type=float, metavar="RATE", help="requests per second to begin with (default 1)")
    sweep.add_argument("--sweep-high", type=float, metavar="RATE", help="highest rate to try (default 1000)")
    sweep.add_argument("--sweep-repeats", type=int, metavar="N", help="trials per rate, an odd number (default 3)")
    sweep.add_argument(
        "--sweep-precision",
        type=float,
        metavar="PART",
        help="how closely to find the rate: 0.1 ends within 10 %% of it (default 0.1)",
    )
    sweep.add_argument(
        "--sweep-confidence",
        type=float,
        metavar="PART",
        help="repeat trials beside the rate found until each has this confidence (default 0.9)",
    )


def _add_report_flags(parser: argparse.ArgumentParser) -> None:
    report = parser.add_argument_group("report")
    report.add_argument("--report", metavar="PREFIX", help="write PREFIX.html and PREFIX.json (default loadtest-NAME)")
    report.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="JSON",
        help="compare with this earlier run; with two files BEFORE AFTER compare those, and send nothing",
    )
    report.add_argument("--json", action="store_true", help="print the figures as JSON")


LOAD_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("scenario", "NAME", "name of a scenario, or a .toml file (default chat)"),
    ("rate", "N", "requests per second"),
    ("duration", "SECONDS", "time in which requests are sent"),
    ("arrivals", "PATTERN", "when they come: poisson, constant, gamma:cv=3, mmpp, step, spike or diurnal"),
    ("seed", "N", "seed of all random draws"),
    ("trace", "FILE", "replay an Azure, BurstGPT, Mooncake, CSV or JSONL trace, or `sample`, which ships with this"),
    ("scale-rate", "FACTOR", "speed the trace up by this factor"),
    ("lengths", "FILE", "draw lengths from this trace or CSV, or `sample`"),
    ("prompt-tokens", "N", "length of all prompts; goes with --output-tokens"),
    ("output-tokens", "N", "length of all outputs"),
    ("slo-ttft", "SECONDS", "SLO of a request: time to its first token"),
    ("slo-itl", "SECONDS", "SLO of a request: time between tokens, 95th percentile within the request"),
    ("warmup", "SECONDS", "do not count requests of this time at the beginning"),
    ("model", "NAME", "name of the model (default: the only one)"),
)
"""Flags without types and defaults: name, value, help. The scenario has types and defaults, and checks the values."""


def _loadtest(options: argparse.Namespace) -> int:
    from loadtest.load.command import run_loadtest

    if importlib.util.find_spec("locust") is None:
        # It runs in a process of its own, whose error would come late.
        raise ModuleNotFoundError("No module named 'locust'", name="locust")
    try:
        with _ends_in_order():
            return run_loadtest(options)
    except GeneratorError as error:
        if not any(words in str(error) for words in _NO_CONNECTION) or not (
            why := why_unreachable(options, str(error))
        ):
            raise
        raise GeneratorError(f"{options.target} is not available: {why}") from error


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a terminal that closes, end the command as an exception. Locust has its own process
    group and would otherwise go on. `nohup` lets SIGHUP be ignored, and so it stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    numbers = [each for each in _ENDS if signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_NO_CONNECTION = ("gRPC says", "no connection")
"""Words of errors for routers that can't be reached."""
_ENDS = (signal.SIGTERM, signal.SIGHUP)
