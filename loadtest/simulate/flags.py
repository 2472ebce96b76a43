"""Flags of `penstock simulate`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cluster.terminal.command import show_examples
from cluster.terminal.values import above_zero, time_from_zero, up_to, whole
from loadtest.simulate.given_flags import note_given
from loadtest.simulate.parts.flags import add_part_flags

MOST_REPLICAS, MOST_ROUTERS = 10_000, 1_000
"""Bounds of the flags. Larger numbers take minutes to set up, and then the memory."""
POLICIES = ("static", "hpa", "ray", "dynamo", "wva", "penstock", "penstock-fast", "penstock-slow")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a simulation, and note which of them a command line has."""
    note_given(parser)
    _add_load(parser)
    _add_cluster(parser)
    _add_engine(parser)
    add_part_flags(parser)
    _add_scaling(parser)
    _add_report(parser)
    show_examples(
        parser,
        "penstock simulate --trace sample --scale-rate 10",
        "penstock simulate --trace sample --max-num-seqs 8 --base-ms 40 --cold-start 60 --html run.html",
    )
    parser.set_defaults(run=_simulate)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--trace",
        metavar="FILE",
        help="the recorded load: an Azure, BurstGPT, Mooncake, CSV or JSONL trace, or `sample`, which ships with this",
    )
    load.add_argument(
        "--models",
        metavar="FILE",
        help="instead of a trace: a TOML file with gpus, and a table models.NAME for each model that shares them, "
        "which has gpus (of a replica) and flags of this command",
    )
    load.add_argument("--limit", type=whole(1), metavar="N", help="only the first N requests")
    load.add_argument(
        "--scale-rate", type=above_zero, metavar="FACTOR", default=1.0, help="speed the trace up by this factor"
    )
    load.add_argument(
        "--class",
        dest="request_class",
        choices=("interactive", "standard", "batch"),
        default="standard",
        help="class of requests that have none (default %(default)s)",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    pool = parser.add_argument_group("cluster")
    count = whole(0, MOST_REPLICAS)
    pool.add_argument(
        "--replicas", type=count, metavar="N", default=1, help="replicas at the beginning (default %(default)s)"
    )
    pool.add_argument(
        "--routers", type=whole(1, MOST_ROUTERS), metavar="N", default=1, help="routers (default %(default)s)"
    )
    pool.add_argument(
        "--affinity", action="store_true", help="prefer replicas that have the beginning of a prompt in their cache"
    )
    pool.add_argument(
        "--scripts", action="store_true", help="run the queue's Lua scripts also where their faster twin chooses alike"
    )
    pool.add_argument("--no-prefix-cache", action="store_true", help="engines compute every prompt from its beginning")
    pool.add_argument(
        "--queue-timeout",
        type=time_from_zero,
        metavar="SECONDS",
        default=0.0,
        help="refuse requests that can't start in this time, at once where the estimated wait is longer (0: never)",
    )
    pool.add_argument("--seed", type=int, metavar="N", default=1, help="seed of all random draws (default %(default)s)")
    pool.add_argument(
        "--die",
        type=_deaths,
        metavar="SECONDS[:N],...",
        default=(),
        help="when replicas die, and how many of the oldest ready ones (default 1); they are replaced",
    )
    pool.add_argument(
        "--slow",
        type=_slow,
        metavar="N:FACTOR",
        help="the first N replicas that start are on slow nodes: their steps take FACTOR times as long",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group(
        "engine", "a step takes base + per-token * tokens + per-kv-token * tokens of context that it reads"
    )
    for flag, kind, default, text in ENGINE_FLAGS:
        engine.add_argument(f"--{flag}", type=kind, metavar="N", default=default, help=f"{text} (default %(default)s)")
    engine.add_argument(
        "--overhead-ms",
        type=time_from_zero,
        metavar="N",
        default=15.0,
        help="milliseconds of a first token beside queue and steps, on the way there and back (default %(default)g)",
    )
    engine.add_argument(
        "--overhead-steps",
        type=time_from_zero,
        metavar="N",
        default=1.0,
        help="steps that a prompt waits for beside the one that runs: those prepared in advance (default %(default)g)",
    )


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    scaling = parser.add_argument_group("scaling")
    _add_policy(scaling)
    _add_bounds(scaling)
    _add_standby(scaling)


def _add_policy(scaling: argparse._ArgumentGroup) -> None:
    scaling.add_argument(
        "--policy",
        choices=POLICIES,
        default="penstock",
        help="what sets the number of replicas (default %(default)s). penstock and penstock-slow do what "
        "autoscale.mode = active does: where no more replicas can come, they give up latency, then batch work, and "
        "then reject requests that would miss --slo-ttft",
    )
    scaling.add_argument(
        "--metric",
        choices=("queue", "slots", "kv"),
        default="slots",
        help="what the policy hpa looks at (default %(default)s)",
    )
    scaling.add_argument(
        "--target",
        type=above_zero,
        metavar="X",
        help="a policy's dial: hpa's target of its metric, ray's running requests per replica, dynamo's part of the "
        "load, wva's KV usage, or the part of a replica's time that penstock plans for (autoscale.fill)",
    )
    scaling.add_argument(
        "--tune",
        type=_attainment,
        metavar="PART",
        help="find the dial at which this part of the requests attains its SLO at the least cost: the number of "
        "replicas of policies that keep it, else --target; and whether a floor of replicas is cheaper",
    )


def _add_bounds(scaling: argparse._ArgumentGroup) -> None:
    count = whole(0, MOST_REPLICAS)
    scaling.add_argument(
        "--min-replicas", type=count, metavar="N", default=1, help="fewest replicas (default %(default)s)"
    )
    most = whole(1, MOST_REPLICAS)
    scaling.add_argument(
        "--max-replicas", type=most, metavar="N", help="most replicas (default 64, or --replicas if that is more)"
    )
    scaling.add_argument(
        "--cold-start",
        type=time_from_zero,
        metavar="SECONDS",
        default=180.0,
        help="how long a replica's start takes (default %(default)g)",
    )


def _add_standby(scaling: argparse._ArgumentGroup) -> None:
    scaling.add_argument(
        "--standby",
        type=whole(0, MOST_REPLICAS),
        metavar="N",
        default=0,
        help="most replicas that penstock and penstock-slow keep on standby (default %(default)s)",
    )
    scaling.add_argument(
        "--standby-price",
        type=up_to(1),
        metavar="X",
        default=1.0,
        help="cost of a standby, as part of that of a replica that serves (default %(default)g)",
    )
    scaling.add_argument(
        "--wake",
        type=time_from_zero,
        metavar="SECONDS",
        default=20.0,
        help="how long a standby's wake-up takes (default %(default)g)",
    )


def _deaths(text: str) -> tuple[tuple[float, int], ...]:
    """Read when replicas die, such as 600 or 600:2,1200."""
    found = []
    for part in text.split(","):
        at, colon, count = part.partition(":")
        found.append((time_from_zero(at), int(whole(1, MOST_REPLICAS)(count)) if colon else 1))
    return tuple(found)


def _slow(text: str) -> tuple[int, float]:
    """Read slow nodes, such as 2:1.5."""
    count, colon, factor = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"must be a number of replicas and a factor such as 2:1.5, got {text!r}")
    return int(whole(1, MOST_REPLICAS)(count)), up_to(1_000)(factor)


def _attainment(text: str) -> float:
    value = above_zero(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 of at most 1, got {text!r}")
    return value


def _add_report(parser: argparse.ArgumentParser) -> None:
    report = parser.add_argument_group(
        "report", "a rejected request counts as one that missed its SLO, and has no latency"
    )
    report.add_argument(
        "--slo-ttft", type=above_zero, metavar="SECONDS", default=2.0, help="time to first token (default %(default)g)"
    )
    report.add_argument(
        "--slo-itl",
        type=above_zero,
        metavar="SECONDS",
        default=0.1,
        help="time between tokens, 95th percentile within a request (default %(default)g)",
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument("--html", metavar="FILE", help="write a page with the course of the run")
    report.add_argument("--compare", metavar="JSON", help="compare on the page with what --json printed of another run")
    report.add_argument("--png", metavar="FILE", help="write the same as a picture")


def _simulate(options: argparse.Namespace) -> int:
    from loadtest.simulate.command import run_simulate

    return run_simulate(options)


ENGINE_FLAGS: tuple[tuple[str, Callable[[str], float], float, str], ...] = (
    ("base-ms", up_to(60_000), 12.5, "milliseconds of every step"),
    ("per-token-us", up_to(1_000_000), 42.0, "microseconds per token computed"),
    ("per-kv-token-us", up_to(1_000), 0.071, "microseconds per token of context read"),
    ("kv-tokens", whole(64), 400_000, "KV cache in tokens"),
    ("max-num-seqs", whole(1, 4096), 64, "batch limit"),
    ("max-num-batched-tokens", whole(1), 2048, "token budget of a step"),
    ("max-model-len", whole(16), 131_072, "longest prompt and output together"),
)
"""Flags of the engine: name, type, default, help. The step times are those of an 8-billion-parameter model in bfloat16
on an RTX PRO 6000 with vLLM. The bounds are those of `cluster.settings.SimSettings`; to use it here would cost the
import of all settings."""
