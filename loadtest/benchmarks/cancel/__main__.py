"""`python -m loadtest.benchmarks.cancel`: prints tables, writes JSON. Exits with 1 if a bar is missed."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.bootstrap.redis_server import EmbeddedRedis
from loadtest.benchmarks.cancel import latency, overload, storm
from loadtest.benchmarks.ending import end

PARTS = ("latency", "storm", "overload")
BAR_MS = 100.0
"""Bar for the p99 of the time from a Cancel's arrival to its abort at the replica."""
LEVEL_MB = 0.1
"""Largest growth of memory per thousand generations, in the last part of the storm, that counts as level."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-cancel", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--cancels", type=int, default=100_000, help="generations of the storm")
    parser.add_argument("--timed", type=int, default=1_200, help="cancels whose latency is measured")
    parser.add_argument("--refusals", type=int, default=1_000, help="refusals per row")
    parser.add_argument("--only", choices=PARTS, help="run one part")
    options = parser.parse_args()
    import uvloop

    return int(uvloop.run(_bench(options, Console())))


async def _bench(options: argparse.Namespace, console: Console) -> int:
    counts = {"latency": options.timed, "storm": options.cancels, "overload": options.refusals}
    parts = {"latency": latency.run, "storm": storm.run, "overload": overload.run}
    figures: dict[str, Any] = {}
    for name in PARTS:
        if options.only not in (None, name):
            continue
        with (
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
            Progress(console=console, transient=True) as progress,
        ):
            server = await EmbeddedRedis.start(Path(folder), Path(folder) / "redis.log")
            bar = progress.add_task(name, total=_total(name, counts[name]))
            try:
                figures[name] = await parts[name](Path(folder), server.url, counts[name], _advance(progress, bar))
            finally:
                await server.stop()
        console.print(_table(name, figures[name]))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    misses = missed(figures)
    for miss in misses:
        console.print(f"bench-cancel: {miss}", style="red", markup=False)
    return int(bool(misses))


def _total(name: str, count: int) -> int:
    if name != "overload":
        return count
    return len(overload.BOUNDS) * (20 + 2 * count + 4 * min(overload.CALLERS, count))


def _advance(progress: Progress, bar: Any) -> Callable[[int], None]:
    return lambda count: progress.advance(bar, count)


def _table(title: str, figures: Mapping[str, Any]) -> Table:
    table = Table("figure", "value", title=title)
    for name, value in _flat(figures):
        table.add_row(name, value)
    return table


def _flat(figures: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, value in figures.items():
        title = f"{prefix}{name}"
        if isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values()):
            rows += _flat(value, f"{title}: ")
        elif isinstance(value, Mapping):
            rows.append((title, ", ".join(f"{part} {number:,}" for part, number in value.items()) or "none"))
        else:
            rows.append((title, f"{value:,}"))
    return rows


def missed(figures: Mapping[str, Any]) -> list[str]:
    """List the bars that the figures miss."""
    misses = []
    for name, row in figures.get("latency", {}).items():
        if row["arrival_to_replica_ms"]["p99"] > BAR_MS:
            misses.append(f"{name}: a cancel takes more than {BAR_MS:.0f} ms to leave the router")
        if any(int(steps) > 1 for steps in row["steps_to_free"]):
            misses.append(f"{name}: a slot was not free at the end of the step that ran")
    if "storm" in figures:
        misses += _missed_by_storm(figures["storm"])
    return misses


def _missed_by_storm(figures: Mapping[str, Any]) -> list[str]:
    misses = []
    for name in ("errors", "mixed_replies", "left", "left_objects", "left_tasks", "left_keys"):
        value = figures[name]
        # Fewer tasks than before are no leak.
        if value and (not isinstance(value, int) or value > 0):
            misses.append(f"the storm: {name} {value}")
    marks = sorted((int(count), mb) for count, mb in figures["rss_mb"].items())
    (count, mb), (last_count, last_mb) = marks[-2:]
    # A short storm is only a warm-up.
    if last_count >= 50_000 and 1e3 * (last_mb - mb) / (last_count - count) > LEVEL_MB:
        misses.append(
            f"the storm: memory grew from {mb} to {last_mb} MB in the last {last_count - count:,} generations"
        )
    return misses


if __name__ == "__main__":
    end("bench-cancel", main)
