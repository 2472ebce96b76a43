"""`python -m loadtest.bench_tokens`: prints a table, writes JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench_tokens import load
from loadtest.bench_tokens.cpu import cpu_seconds
from loadtest.bench_tokens.paths import InProcessPath, ServingPath, in_process, penstock, vllm_http

NAMES = ("inprocess", "vllm_http", "penstock")
LABELS = {"inprocess": "(a) in process", "vllm_http": "(b) vLLM HTTP", "penstock": "(c) Penstock"}
OPENERS = {"inprocess": in_process, "vllm_http": vllm_http, "penstock": penstock}

Run = Callable[[], Awaitable[load.LoadResult]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Is what one phase of one path gave."""

    tokens_per_s: float
    ttft_ms_p50: float
    itl_ms_p50: float
    cpu_us_per_token: float
    messages: int
    tokens: int
    control_cpu_percent: float


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="bench-tokens", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=6, help="saturated rounds per path (default %(default)s)")
    parser.add_argument("--paced-s", type=float, default=20.0, help="seconds of paced load (default %(default)s)")
    parser.add_argument("--only", choices=NAMES, help="run one path, for profiling")
    options = parser.parse_args()
    import uvloop

    return int(uvloop.run(_bench(options, Console())))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    results: dict[str, dict[str, Figures]] = {}
    half_rate = 0.0
    # (b) first: its saturated throughput sets the paced rate of all.
    for name in ("vllm_http", "inprocess", "penstock"):
        if options.only and name != options.only:
            continue
        with console.status(f"{LABELS[name]}: starting"):
            began = time.monotonic()
            async with OPENERS[name](console) as opened:
                console.print(f"{LABELS[name]}: up after {time.monotonic() - began:.0f} s", highlight=False)
                results[name] = await _measure(opened, options, half_rate, console)
        if not half_rate:
            half_rate = results[name]["saturated"].tokens_per_s / 2 / load.TOKENS
    _print(results, console)
    if options.json:
        options.json.write_text(json.dumps(_fields(results), indent=2) + "\n", encoding="utf-8")
    return 0


async def _measure(
    opened: ServingPath | InProcessPath, options: argparse.Namespace, half_rate: float, console: Console
) -> dict[str, Figures]:
    path = opened.path if isinstance(opened, InProcessPath) else opened
    saturate, pace, alone = _phases(opened)
    await saturate(1, 10_000)
    figures = {"saturated": await _phase(path, lambda: saturate(options.rounds, 0))}
    console.print(f"  saturated: {figures['saturated'].tokens_per_s:.0f} tokens/s", highlight=False)
    rate = half_rate or figures["saturated"].tokens_per_s / 2 / load.TOKENS
    figures["paced"] = await _phase(path, lambda: pace(rate, options.paced_s))
    console.print(f"  paced: {figures['paced'].tokens_per_s:.0f} tokens/s", highlight=False)
    await alone(5)
    figures["alone"] = await _phase(path, lambda: alone(60))
    return figures


def _phases(opened: ServingPath | InProcessPath) -> tuple[Any, Any, Any]:
    if isinstance(opened, InProcessPath):
        run = opened.run

        async def remote(phase: str, **arguments: Any) -> load.LoadResult:
            fields = await run(phase, **arguments)
            return load.LoadResult(fields["seconds"], [load.StreamTimes(*stream) for stream in fields["streams"]])

        return (
            lambda rounds, first: remote("saturate", rounds=rounds, first=first),
            lambda rate, seconds: remote("pace", requests_per_s=rate, seconds=seconds),
            lambda requests: remote("alone", requests=requests),
        )
    send = opened.send
    return (
        lambda rounds, first: load.saturate(send, rounds, first),
        lambda rate, seconds: load.pace(send, rate, seconds),
        lambda requests: load.alone(send, requests),
    )


async def _phase(path: ServingPath, run: Run) -> Figures:
    serving, control = path.serving(), path.control()
    before, control_before = cpu_seconds(serving), cpu_seconds(control)
    result = await run()
    used, control_used = cpu_seconds(serving) - before, cpu_seconds(control) - control_before
    return Figures(
        tokens_per_s=result.tokens / result.seconds,
        ttft_ms_p50=statistics.median(result.ttft_ms()),
        itl_ms_p50=statistics.median(result.itl_ms()),
        cpu_us_per_token=1e6 * used / result.tokens,
        messages=result.messages,
        tokens=result.tokens,
        control_cpu_percent=100 * control_used / result.seconds,
    )


def _ratios(results: dict[str, dict[str, Figures]]) -> dict[str, float]:
    if set(results) != set(NAMES):
        return {}
    a, b, c = (results[name] for name in NAMES)
    return {
        "saturated_cpu_c_over_b": c["saturated"].cpu_us_per_token / b["saturated"].cpu_us_per_token,
        "saturated_tokens_c_over_b": c["saturated"].tokens_per_s / b["saturated"].tokens_per_s,
        "saturated_tokens_c_over_a": c["saturated"].tokens_per_s / a["saturated"].tokens_per_s,
        "paced_cpu_c_over_b": c["paced"].cpu_us_per_token / b["paced"].cpu_us_per_token,
        "paced_tokens_per_message_c": c["paced"].tokens / c["paced"].messages,
        "added_ttft_ms": c["alone"].ttft_ms_p50 - a["alone"].ttft_ms_p50,
    }


def _fields(results: dict[str, dict[str, Figures]]) -> dict[str, Any]:
    modes: dict[str, dict[str, Any]] = {}
    for name, phases in results.items():
        for mode, figures in phases.items():
            modes.setdefault(mode, {})[name] = {
                field: getattr(figures, field) for field in Figures.__slots__ if field != "tokens"
            } | {"tokens": figures.tokens}
    ratios = _ratios(results)
    return {"modes": modes, "added_ttft_ms": ratios.pop("added_ttft_ms", None), "ratios": ratios}


def _print(results: dict[str, dict[str, Figures]], console: Console) -> None:
    for mode in ("saturated", "paced", "alone"):
        table = Table(title=f"{mode}: {load.STREAMS} streams x {load.TOKENS} tokens" if mode == "saturated" else mode)
        for column in (
            "path",
            "tokens/s",
            "TTFT p50 ms",
            "ITL p50 ms",
            "CPU us/token",
            "messages",
            "tokens",
            "Ray CPU",
        ):
            table.add_column(column, justify="left" if column == "path" else "right")
        for name in NAMES:
            if name not in results:
                continue
            row = results[name][mode]
            control = f"{row.control_cpu_percent:.0f} %" if name == "penstock" else "-"
            table.add_row(
                LABELS[name],
                f"{row.tokens_per_s:,.0f}",
                f"{row.ttft_ms_p50:.1f}",
                f"{row.itl_ms_p50:.2f}",
                f"{row.cpu_us_per_token:.1f}",
                f"{row.messages:,}",
                f"{row.tokens:,}",
                control,
            )
        console.print(table)
    for name, value in _ratios(results).items():
        console.print(f"{name:28} {value:.2f}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
