"""Flags of `penstock plan`."""

from __future__ import annotations

import argparse

from cluster.terminal.values import above_zero, folder, from_zero, whole


def add_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("model")
    what.add_argument("--model", help="a folder, a config.json, demo, or a well-known name such as llama-3.1-70b")
    what.add_argument(
        "--precision", metavar="A,B", help="of the weights: bf16, fp8, fp4, int4 (default: the model's own)"
    )
    what.add_argument("--kv-cache-dtype", choices=("bf16", "fp8"), default="bf16", help="default %(default)s")
    what.add_argument("--gpu", metavar="A,B", default="h100", help="accelerators to look at (default %(default)s)")
    what.add_argument(
        "--tp", type=whole(1), action="append", metavar="N", help="tensor parallel size; may be given again"
    )
    what.add_argument("--price", action="append", default=[], metavar="GPU=X", help="per accelerator and hour")
    what.add_argument("--profile", metavar="FILE", help="of `penstock profile`, instead of model and GPUs")
    load = parser.add_argument_group("load")
    load.add_argument("--rate", type=above_zero, help="requests per second")
    load.add_argument("--prompt-tokens", type=above_zero, default=1000.0, help="mean (default %(default)g)")
    load.add_argument("--output-tokens", type=above_zero, default=250.0, help="mean (default %(default)g)")
    load.add_argument(
        "--spread", type=from_zero, default=0.5, help="deviation of lengths over mean (default %(default)g)"
    )
    load.add_argument("--lengths", metavar="FILE", help="draw lengths from a trace or CSV, as for `penstock loadtest`")
    load.add_argument("--trace", metavar="FILE", help="a recorded load instead, as for `penstock simulate`")
    load.add_argument("--limit", type=whole(1), help="only the trace's first requests")
    load.add_argument("--scale-rate", type=above_zero, default=1.0, help="let them come so many times as fast")
    load.add_argument(
        "--cold-start",
        type=from_zero,
        default=180.0,
        help="of a replica, for the autoscaler on a trace (default %(default)g s)",
    )
    slo = parser.add_argument_group("SLO")
    slo.add_argument("--slo-ttft", type=above_zero, default=2.0, help="p99, seconds (default %(default)g)")
    slo.add_argument("--slo-itl", type=above_zero, default=0.1, help="p95, seconds (default %(default)g)")
    slo.add_argument("--attainment", type=_part, default=0.99, help="part that keeps both (default %(default)g)")
    search = parser.add_argument_group("search")
    search.add_argument("--simulate", type=whole(1), default=3, help="candidates to simulate (default %(default)s)")
    search.add_argument(
        "--draws", type=whole(1), default=5, help="of the engine's speed, for ranges (default %(default)s)"
    )
    search.add_argument("--seed", type=int, default=1, help="default %(default)s")
    error = parser.add_argument_group("the planner's error")
    error.add_argument("--check-points", metavar="CSV", help="score the prior on measured points instead")
    error.add_argument("--observe", nargs=2, metavar=("ID", "REPORT"), help="note what a load test measured of a plan")
    error.add_argument("--review", action="store_true", help="show how earlier plans did")
    error.add_argument("--no-store", action="store_true", help="don't keep this plan for a review")
    parser.add_argument("--state-dir", type=folder, help="where plans and profiles are kept (default ~/.penstock)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with the plot of cost and latency")
    parser.set_defaults(run=_plan)


def _part(text: str) -> float:
    """Read a number above 0 and below 1. A percentage is a slip, and refused."""
    value = above_zero(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and below 1, such as 0.99, got {text!r}")
    return value


def _plan(options: argparse.Namespace) -> int:
    from loadtest.plan.command import run_plan

    return run_plan(options)
