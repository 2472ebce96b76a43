"""`penstock operating-point`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from rich.markup import escape

from cluster.errors import SettingsError
from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.json_values import print_json
from cluster.terminal.values import from_zero, time_from_zero, up_to
from router.commands.decisions.command import point_text
from router.commands.target import add_target_flags, open_client, placed_by, report_call_errors

if TYPE_CHECKING:
    from penstock.client import OperatingPoint


_CHANGES = ("ttft_p99_s", "itl_p95_ms", "attainment", "price_per_gpu_hour", "budget_per_hour")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show or change what a running pool promises, and what it may cost. Without a flag that changes something it "
        "shows what is in force."
    )
    parser.add_argument("--pool", default="", help="the pool (default: the only one)")
    classes = ("interactive", "standard", "batch")
    parser.add_argument(
        "--class", dest="request_class", choices=classes,
        help=f"class that the next two flags apply to (default {classes[0]})",
    )  # fmt: skip
    parser.add_argument(
        "--ttft-p99-s", type=time_from_zero, metavar="SECONDS",
        help="time to first token, 99th percentile; 0 promises nothing",
    )  # fmt: skip
    parser.add_argument(
        "--itl-p95-ms", type=time_from_zero, metavar="MS",
        help="milliseconds between tokens, 95th percentile; 0 promises nothing",
    )  # fmt: skip
    parser.add_argument(
        "--attainment", type=up_to(1), metavar="PART", help="part of the requests that must meet it, 0 to 1"
    )
    parser.add_argument(
        "--price-per-gpu-hour", type=from_zero, metavar="X", help="price of an accelerator, in any currency"
    )
    parser.add_argument(
        "--budget-per-hour", type=from_zero, metavar="X", help="most that the pool may cost; 0 is no bound"
    )
    parser.add_argument("--from-settings", action="store_true", help="go back to the settings of the cluster")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target_flags(parser)
    show_examples(
        parser,
        "penstock operating-point",
        "penstock operating-point --class interactive --itl-p95-ms 40",
        "penstock operating-point --pool large --from-settings",
    )
    parser.set_defaults(run=run_operating_point)


def run_operating_point(options: argparse.Namespace) -> int:
    """Change the parts that flags name; without such flags only show the operating point."""
    changes = [f"--{name.replace('_', '-')}" for name in _CHANGES if getattr(options, name) is not None]
    if options.from_settings and changes:
        raise SettingsError(f"--from-settings takes back everything, so {', '.join(changes)} can't go with it")
    if options.request_class and options.ttft_p99_s is None and options.itl_p95_ms is None:
        raise SettingsError("--class: needs --ttft-p99-s or --itl-p95-ms")
    flags = {f"operating_point.{name}": f"--{name.replace('_', '-')}" for name in _CHANGES}
    placed = placed_by({"pool": "--pool", **flags})
    with report_call_errors(options, "10 s", placed) as outcome, open_client(options) as client:
        point: OperatingPoint | None = client.decisions(options.pool, limit=1, timeout=10.0).operating_point
        if options.from_settings:
            point = client.set_operating_point(options.pool, None, timeout=10.0)
        elif point is not None and (changed := with_flags(point, options)) != point:
            point = client.set_operating_point(options.pool, changed, timeout=10.0)
        if options.json:
            print_json(point)
        elif point is not None:
            name = f"{options.pool}: " if options.pool else ""
            screen().print(escape(f"{name}{point_text(point)}"), highlight=False)
    return outcome.status


def with_flags(point: OperatingPoint, options: argparse.Namespace) -> OperatingPoint:
    """Return the point with the values of the flags; the rest stays."""
    name = options.request_class or "interactive"
    slo = getattr(point, name)
    if options.ttft_p99_s is not None:
        slo = dataclasses.replace(slo, ttft_p99_s=options.ttft_p99_s or None)
    if options.itl_p95_ms is not None:
        slo = dataclasses.replace(slo, itl_p95_s=options.itl_p95_ms / 1e3 or None)
    point = dataclasses.replace(point, **{name: slo})
    if options.attainment is not None:
        point = dataclasses.replace(point, attainment=options.attainment)
    if options.price_per_gpu_hour is not None:
        point = dataclasses.replace(point, price_per_gpu_hour=options.price_per_gpu_hour)
    if options.budget_per_hour is not None:
        point = dataclasses.replace(point, budget_per_hour=options.budget_per_hour or None)
    return point
