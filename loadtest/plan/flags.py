"""Flags of `penstock plan`."""

from __future__ import annotations

import argparse

from cluster.terminal.command import show_examples
from cluster.terminal.values import (
    MOST_RATE,
    above_zero,
    above_zero_to,
    folder,
    from_zero,
    time_from_zero,
    time_of,
    whole,
)
from loadtest.simulate.given_flags import note_given

_MOST_TOKENS, _MOST_FACTOR, _MOST_GPUS = 1_000_000_000, 1_000_000, 1024
_MOST_REQUESTS, _MOST_MONEY, _MOST_CANDIDATES, _MOST_DRAWS = 10**12, 10**9, 100, 1000


def add_flags(parser: argparse.ArgumentParser) -> None:
    note_given(parser)
    _add_model(parser)
    _add_load(parser)
    _add_slo(parser)
    _add_goals(parser)
    _add_search(parser)
    _add_error(parser)
    parser.add_argument(
        "--state-dir", type=folder, metavar="DIR", help="where plans and profiles are kept (default ~/.penstock)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--apply", metavar="DIR", help="write the best candidate there: pool.toml for `penstock apply`, values.yaml"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with charts of cost and latency")
    show_examples(
        parser,
        "penstock plan --model llama-3.1-70b --gpu h100,h200 --rate 5",
        "penstock plan --model /models/llama-8b --rate 20 --slo-ttft 1 --slo-itl 0.05 --html plan.html",
    )
    parser.set_defaults(run=_plan)


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model, its engine and what is known of it."""
    what = parser.add_argument_group("model")
    what.add_argument("--model", help="a folder, a config.json, demo, or a well-known name or hub id")
    what.add_argument(
        "--precision", metavar="A,B", help="precisions of the weights: bf16, fp8, fp4, int4 (default: the model's own)"
    )
    what.add_argument(
        "--kv-cache-dtype",
        choices=("bf16", "fp8"),
        default="bf16",
        help="data type of the KV cache (default %(default)s)",
    )
    what.add_argument(
        "--gpu",
        metavar="A,B",
        default="h100",
        help="accelerators to compare (default %(default)s)",
    )
    what.add_argument(
        "--tp", type=whole(1, _MOST_GPUS), action="append", metavar="N", help="tensor parallel size; may be given again"
    )
    what.add_argument(
        "--pp",
        type=whole(1, _MOST_GPUS),
        action="append",
        metavar="N",
        help="pipeline stages of --tp GPUs each",
    )
    what.add_argument(
        "--dp",
        type=whole(1, _MOST_GPUS),
        action="append",
        metavar="N",
        help="groups of --tp GPUs that compute attention for their own requests and share the experts",
    )
    what.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="GPU=X",
        help="price of an accelerator per hour, such as h100=2.5",
    )
    what.add_argument("--currency", default="", metavar="NAME", help="currency of the prices, such as USD")
    what.add_argument(
        "--points",
        action="append",
        default=[],
        metavar="FILE",
        help="measured points of an engine, which correct what is known of it: JSON of vLLM bench, guidellm, AIPerf, "
        "inference-perf or `penstock loadtest`, or a CSV as for --check-points; may be given again",
    )
    what.add_argument(
        "--points-of",
        metavar="GPU,TP,PRECISION[,VERSION]",
        help="the engine that points are of, where their files do not tell (default: --gpu, --tp and --precision)",
    )
    what.add_argument("--profile", metavar="FILE", help="a file of `penstock profile`, instead of --model and --gpu")


def _add_load(parser: argparse.ArgumentParser) -> None:
    """Add the load that is planned for."""
    load = parser.add_argument_group("load")
    load.add_argument("--rate", type=above_zero_to(MOST_RATE), metavar="N", help="requests per second")
    load.add_argument(
        "--prompt-tokens",
        type=above_zero_to(_MOST_TOKENS),
        metavar="N",
        help="mean length of prompts (default 1000, less where a profile's context is shorter)",
    )
    load.add_argument(
        "--output-tokens",
        type=above_zero_to(_MOST_TOKENS),
        metavar="N",
        help="mean length of outputs (default 250, less with such a profile)",
    )
    load.add_argument(
        "--spread",
        type=from_zero,
        metavar="X",
        default=0.5,
        help="standard deviation of lengths, as a part of the mean (default %(default)g)",
    )
    load.add_argument(
        "--prefix-hit",
        type=_part_or_none,
        metavar="PART",
        default=0.0,
        help="part of each prompt that the prefix cache has (default %(default)g; a trace with hash_ids has its own)",
    )
    load.add_argument("--lengths", metavar="FILE", help="draw lengths from a trace, a CSV or `sample`")
    load.add_argument(
        "--trace", metavar="FILE", help="a recorded load instead, or `sample`, as for `penstock simulate`"
    )
    load.add_argument("--limit", type=whole(1), metavar="N", help="only the trace's first N requests")
    load.add_argument(
        "--scale-rate",
        type=above_zero_to(_MOST_FACTOR),
        metavar="FACTOR",
        default=1.0,
        help="speed the trace up by this factor",
    )
    load.add_argument(
        "--rate-factor",
        type=above_zero_to(_MOST_FACTOR),
        metavar="FACTOR",
        default=1.0,
        help="so many times the trace's requests, at its own pace",
    )
    load.add_argument(
        "--cold-start",
        type=time_from_zero,
        metavar="SECONDS",
        default=180.0,
        help="how long a replica's start takes, for the autoscaler on a trace (default %(default)g)",
    )


def _add_slo(parser: argparse.ArgumentParser) -> None:
    """Add what requests are promised."""
    slo = parser.add_argument_group("SLO")
    slo.add_argument(
        "--slo-ttft",
        type=time_of,
        metavar="SECONDS",
        default=2.0,
        help="time to first token, 99th percentile (default %(default)g)",
    )
    slo.add_argument(
        "--slo-itl",
        type=time_of,
        metavar="SECONDS",
        help="time between tokens, 95th percentile of a request's gaps (default 0.1 without --slo-tpot)",
    )
    slo.add_argument(
        "--slo-tpot",
        type=time_of,
        metavar="SECONDS",
        help="mean time per output token of a request, as most load tests report it; instead of --slo-itl or beside it",
    )
    slo.add_argument(
        "--attainment",
        type=_part,
        metavar="PART",
        default=0.99,
        help="part of the requests that must meet all of them (default %(default)g)",
    )
    slo.add_argument(
        "--confidence",
        type=_part,
        metavar="PART",
        default=0.9,
        help="probability that the replicas are enough, over what is known of the engine's speed (default %(default)g)",
    )


def _add_goals(parser: argparse.ArgumentParser) -> None:
    """Add goals other than the fewest replicas."""
    goals = parser.add_argument_group("other goals")
    goals.add_argument(
        "--budget", type=above_zero_to(_MOST_MONEY), metavar="N", help="instead of --rate: what so much per hour serves"
    )
    goals.add_argument(
        "--requests", type=whole(1, _MOST_REQUESTS), metavar="N", help="instead of --rate: offline requests"
    )
    goals.add_argument("--deadline", type=time_of, metavar="HOURS", help="hours in which --requests must be done")
    goals.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="MODEL,RATE,PROMPT,OUTPUT",
        help="another model on the same fleet of one kind of accelerator; may be given again",
    )
    goals.add_argument(
        "--embeddings", action="store_true", help="vectors instead of text: no output tokens, only --slo-ttft"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    """Add how the search goes, and what it shows."""
    search = parser.add_argument_group("search")
    search.add_argument(
        "--simulate",
        type=whole(1, _MOST_CANDIDATES),
        metavar="N",
        default=3,
        help="candidates to simulate (default %(default)s)",
    )
    search.add_argument(
        "--draws",
        type=whole(1, _MOST_DRAWS),
        metavar="N",
        default=5,
        help="random draws of the engine's speed, which give the ranges (default %(default)s)",
    )
    search.add_argument(
        "--seed", type=int, metavar="N", default=1, help="seed of all random draws (default %(default)s)"
    )


def _add_error(parser: argparse.ArgumentParser) -> None:
    """Add checks of the planner itself."""
    error = parser.add_argument_group("check the planner")
    error.add_argument("--check-points", metavar="CSV", help="compare its predictions with measured points")
    error.add_argument(
        "--observe", nargs=2, metavar=("ID", "REPORT"), help="record what a load test measured of a plan"
    )
    error.add_argument("--review", action="store_true", help="compare earlier plans with what was measured")
    error.add_argument("--no-store", action="store_true", help="do not keep this plan for --review")


def _part(text: str) -> float:
    """Read a number above 0 and below 1. A percentage is a slip, and refused."""
    value = above_zero(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and below 1, such as 0.99, got {text!r}")
    return value


def _part_or_none(text: str) -> float:
    """Read a number of at least 0 and below 1."""
    value = from_zero(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0 and below 1, such as 0.6, got {text!r}")
    return value


def _plan(options: argparse.Namespace) -> int:
    from loadtest.plan.command import run_plan

    return run_plan(options)
