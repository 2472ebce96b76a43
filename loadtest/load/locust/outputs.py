"""Our figures in the places that Locust's users know: console, CSV, JSON."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.terminal.console import screen
from cluster.terminal.tables import add_columns, print_table
from loadtest.load.locust.session import LoadTest
from loadtest.load.results.record import point
from loadtest.load.results.tally import TIMES, Tally
from loadtest.load.schedule.scenario import scenario_fields
from loadtest.report.origin import origin

_FAILURES = 20
PERCENTS = (50, 90, 95, 99)
_NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "time/token", "e2e": "E2E", "queue": "queue"}


def columns() -> list[str]:
    """Return the names of the summary's columns."""
    times = [f"{name}_p{percent}_ms" for name in TIMES for percent in PERCENTS]
    return ["kind", "requests", "completed", "failed", "goodput", "rps", "tokens_per_s", *times, "errors"]


def row(kind: str, tally: Tally, seconds: float) -> dict[str, Any]:
    """Return one line of the summary."""
    errors = "; ".join(f"{reason} {count}" for reason, count in sorted(tally.errors.items()))
    times = {
        # As Locust counts them, because its own figures of the same requests are beside these.
        f"{name}_p{percent}_ms": _ms(tally.times[name].percentile(percent, upper=True))
        for name in TIMES
        for percent in PERCENTS
    }
    return {
        "kind": kind,
        "requests": tally.ended,
        "completed": tally.completed,
        "failed": tally.ended - tally.completed,
        "goodput": "" if tally.goodput is None else round(tally.goodput, 4),
        "rps": round(tally.completed / seconds, 3),
        "tokens_per_s": round(tally.output_tokens / seconds, 1),
        **times,
        "errors": errors,
    }


def rows(load: LoadTest) -> list[dict[str, Any]]:
    """Return a line per kind, and one for all where there are several kinds, or none yet."""
    seconds = max(load.counted_s, 1e-3)
    kinds = sorted(load.record.kinds.items())
    whole = [("all", load.record.total())] if len(kinds) != 1 else []
    return [row(kind, tally, seconds) for kind, tally in [*kinds, *whole]]


def figures(load: LoadTest) -> dict[str, Any]:
    """Return all figures of a test."""
    scenario = scenario_fields(load.scenario) if load.scenario is not None else {}
    host = load.environment.host or ""
    return {
        "target": host,
        "scenario": scenario if load.planned else _of_users(load, scenario),
        "open_loop": "planned" if load.planned else "users",
        "users": {} if load.planned else load.users(),
        "user_rate": None if load.planned else load.user_rate,
        "slos": _slos(load),
        "processes": load.shards,
        "origin": origin("locust"),
        "failures": _failures(load),
        **load.record.as_json(max(load.counted_s, 1e-3)),
    }


def _of_users(load: LoadTest, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return what the users send instead of what a scenario would have sent."""
    own = {name: value for name, value in scenario.items() if name not in ("arrivals", "mix", "text", "duration_s")}
    rate = sum(load.users().values()) * (load.user_rate or 0.0)
    return {**own, "name": "users", "rate": rate, "mix": load.kinds_of_users()}


def _slos(load: LoadTest) -> dict[str, dict[str, float | None]]:
    """Return the SLO of each kind of request that ended."""
    if load.scenario is None:
        return {}
    kinds = {kind: load.scenario.kind(kind).slo for kind in sorted(load.record.kinds)}
    return {kind: {"ttft_s": slo.ttft_p99_s, "itl_s": slo.itl_p95_s} for kind, slo in kinds.items()}


def _failures(load: LoadTest) -> list[dict[str, Any]]:
    """Return the most common failures with their sentences. Locust counts equal ones over all workers."""
    known = sorted(load.environment.stats.errors.values(), key=lambda error: -error.occurrences)
    return [{"kind": each.name, "said": str(each.error), "count": each.occurrences} for each in known[:_FAILURES]]


def progress_line(load: LoadTest) -> dict[str, Any]:
    """Return the state of a running test."""
    total = load.record.total()
    last = max(load.record.seconds, default=None)
    return {
        "elapsed_s": max(0.0, time.monotonic() - (load.starts_at or 0.0)),
        "requests": total.ended,
        "errors": sum(total.errors.values()),
        "goodput": total.goodput,
        "ttft_p99_s": total.times["ttft"].percentile(99),
        "itl_p99_s": total.times["itl"].percentile(99),
        "lag_p99_s": load.record.generator.lag.percentile(99),
        "last": None if last is None else point(load.record.seconds[last]),
    }


def write_json(path: Path, load: LoadTest) -> None:
    path.write_text(json.dumps(figures(load), indent=2) + "\n", encoding="utf-8")


def write_csv(prefix: str, load: LoadTest) -> None:
    """Write PREFIX_llm_stats.csv with a line per kind, and PREFIX_llm_history.csv with a line per second."""
    _write(f"{prefix}_llm_stats.csv", columns(), rows(load))
    history = [point(load.record.seconds[second]) for second in sorted(load.record.seconds)]
    if history:
        _write(f"{prefix}_llm_history.csv", list(history[0]), history)


def _write(name: str, header: Sequence[str], lines: Sequence[dict[str, Any]]) -> None:
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(lines)


def print_summary(load: LoadTest) -> None:
    """Print a table per kind after Locust's own, and a warning if the generator was the bottleneck."""
    if load.starts_at is None or not load.record.seconds:
        return
    console = screen()
    table = Table(title="what clients saw, ms", title_justify="left")
    names = ("kind", "requests", "failed", "goodput", "tokens/s", *(f"{_NAMES[name]} p50 / p99" for name in TIMES))
    add_columns(table, *names, words=("kind",))
    for each in rows(load):
        times = [f"{_short(each[f'{name}_p50_ms'])} / {_short(each[f'{name}_p99_ms'])}" for name in TIMES]
        goodput = f"{each['goodput']:.1%}" if each["goodput"] != "" else "-"
        words = [f"{each['requests']:,}", f"{each['failed']:,}", goodput, f"{each['tokens_per_s']:,.0f}"]
        table.add_row(Text(each["kind"]), *words, *times)
    print_table(table, console)
    for reason, count in load.record.total().errors.most_common():
        console.print(f"{count:,} failed: {escape(reason)}", highlight=False)
    lag = load.record.generator.lag.percentile(99)
    if lag is not None:
        console.print(f"generator lag p99 {1e3 * lag:.1f} ms", highlight=False)
    for why in load.record.bottleneck():
        console.print(
            f"[red]the generator was the bottleneck:[/] {escape(why)}; do not trust the latencies", highlight=False
        )


def _ms(value: float | None) -> float | str:
    return "" if value is None else round(1e3 * value, 2)


def _short(value: float | str) -> str:
    return "-" if isinstance(value, str) else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
