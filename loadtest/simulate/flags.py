"""Flags of `penstock simulate`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cluster.terminal.values import above_zero, span, time_from_zero, up_to, whole

MOST_REPLICAS, MOST_ROUTERS = 10_000, 1_000
"""Bounds of the flags. Larger numbers take minutes to set up, and then the memory."""
POLICIES = ("static", "hpa", "ray", "dynamo", "wva", "penstock", "penstock-fast", "penstock-slow")


def add_flags(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument("--trace", help="a file with the fields of an Azure, BurstGPT, Mooncake, CSV or JSONL trace")
    load.add_argument("--limit", type=whole(1), help="only the first requests")
    load.add_argument("--scale-rate", type=above_zero, default=1.0, help="let them come so many times as fast")
    load.add_argument(
        "--class",
        dest="request_class",
        choices=("interactive", "standard", "batch"),
        default="standard",
        help="of requests without one (default %(default)s)",
    )
    pool = parser.add_argument_group("cluster")
    count = whole(0, MOST_REPLICAS)
    pool.add_argument("--replicas", type=count, default=1, help="ready at the beginning (default %(default)s)")
    pool.add_argument("--routers", type=whole(1, MOST_ROUTERS), default=1, help="default %(default)s")
    pool.add_argument("--affinity", action="store_true", help="prefer replicas that know the beginning of a prompt")
    pool.add_argument("--no-prefix-cache", action="store_true", help="engines compute every prompt as a whole")
    pool.add_argument(
        "--queue-timeout",
        type=time_from_zero,
        default=0.0,
        help="start within so many seconds, or be refused: at once when the estimated wait is longer (0: no bound)",
    )
    pool.add_argument("--seed", type=int, default=1, help="of all that is drawn (default %(default)s)")
    engine = parser.add_argument_group("engine", "a step takes base + per-token * tokens + per-kv-token * context read")
    for flag, kind, default, text in ENGINE_FLAGS:
        engine.add_argument(f"--{flag}", type=kind, default=default, help=f"{text} (default %(default)s)")
    scaling = parser.add_argument_group("scaling")
    scaling.add_argument(
        "--policy",
        choices=POLICIES,
        default="static",
        help="default %(default)s; penstock and penstock-slow do as autoscale.mode = active does: where no replicas are"
        " to come they give up latency, then batch work, then requests that by estimate would miss --slo-ttft, which "
        "count as rejected",
    )
    scaling.add_argument(
        "--metric", choices=("queue", "slots", "kv"), default="slots", help="what hpa looks at (default %(default)s)"
    )
    scaling.add_argument(
        "--target",
        type=above_zero,
        help="of hpa's metric, ray's ongoing requests per replica, dynamo's load or wva's KV usage",
    )
    scaling.add_argument("--min-replicas", type=count, default=1, help="default %(default)s")
    most = whole(1, MOST_REPLICAS)
    scaling.add_argument("--max-replicas", type=most, help="default 64, or --replicas if that is more")
    scaling.add_argument("--cold-start", type=time_from_zero, default=180.0, help="seconds (default %(default)s)")
    check = parser.add_argument_group("validation", "instead of a trace: hold the engine against a recorded run")
    check.add_argument("--validate", metavar="DIR", help="a folder with requests.jsonl and meta.json")
    check.add_argument("--fit", type=span, metavar="A-B", help="requests to fit on (default 1-100)")
    _add_report(parser)
    parser.set_defaults(run=_simulate)


def _add_report(parser: argparse.ArgumentParser) -> None:
    report = parser.add_argument_group("report", "a rejected request is in no latency and misses its SLO")
    report.add_argument("--slo-ttft", type=above_zero, default=2.0, help="seconds (default %(default)s)")
    report.add_argument(
        "--slo-itl",
        type=above_zero,
        default=0.1,
        help="seconds, of a request's own 95th percentile (default %(default)s)",
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument("--html", metavar="FILE", help="write a page with the course of the run")
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
