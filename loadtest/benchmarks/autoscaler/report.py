"""The report of the runs: figures per policy, and differences of pairs with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from cluster.terminal.tables import add_columns
from loadtest.benchmarks.autoscaler.contest import ORACLE, TUNED, ContestResult

OURS = "penstock"
_T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26,
        10: 2.23, 11: 2.20, 12: 2.18, 13: 2.16, 14: 2.14, 15: 2.13, 16: 2.12, 17: 2.11, 18: 2.10, 19: 2.09}  # fmt: skip
"""Quantiles of Student's distribution, by degrees of freedom. Beyond these the last one stands, which is a little
wider."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of paired differences, and half of its 95 % interval; nan for one pair."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" + ("" if math.isnan(self.half) else f" ±{self.half:.1f}")


def paired(ours: Sequence[float], others: Sequence[float]) -> Difference:
    """Compare runs over the same loads."""
    values = [one - other for one, other in zip(ours, others, strict=True)]
    if len(values) < 2:
        return Difference(statistics.fmean(values), math.nan)
    deviation = statistics.stdev(values) / math.sqrt(len(values))
    return Difference(statistics.fmean(values), _T95[min(len(values) - 1, max(_T95))] * deviation)


def rows(results: Iterable[ContestResult]) -> list[dict[str, Any]]:
    """Return the rows of the JSON file: each run, and its hours in percent of the oracle's on the same load."""
    found = list(results)
    oracle = {(each.scenario, each.seed): each.gpu_hours for each in found if each.policy == ORACLE}
    return [
        {
            "scenario": each.scenario,
            "policy": each.policy,
            "seed": each.seed,
            "attainment": each.attainment,
            "gpu_hours": each.gpu_hours,
            "gpu_hours_pct_oracle": 100 * each.gpu_hours / oracle[each.scenario, each.seed],
            "reversals": each.reversals,
            "worst_5min_attainment": each.worst_5min_attainment,
            "batch_tokens": each.batch_tokens,
            "dial": each.dial,
        }
        for each in found
    ]


def table_of(scenario: str, found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of one scenario. `found` has its rows."""
    table = Table(title=scenario, title_justify="left")
    names = ("policy", "dial", "attainment", "worst\n5 min", "hours, %\nof oracle", "ours\nless", "points\nless",
             "worst\ndraw", "reversals", "batch\ntokens")  # fmt: skip
    add_columns(table, *names, words=("policy",))
    by_policy: dict[str, list[Mapping[str, Any]]] = {}
    for each in sorted(found, key=lambda each: int(each["seed"])):
        by_policy.setdefault(each["policy"], []).append(each)
    ours = by_policy.get(OURS) or by_policy.get(TUNED)
    for policy, runs in by_policy.items():

        def column(name: str, of: Sequence[Mapping[str, Any]] = runs) -> list[float]:
            return [float(each[name]) for each in of]

        hours = points = worst = ""
        if ours is not None and runs is not ours:
            hours = str(paired(column("gpu_hours_pct_oracle", ours), column("gpu_hours_pct_oracle")))
            attained = [100 * a for a in column("attainment", ours)], [100 * a for a in column("attainment")]
            points, worst = str(paired(*attained)), f"{min(a - b for a, b in zip(*attained, strict=True)):+.1f}"
        table.add_row(
            policy,
            f"{runs[0]['dial']:g}" if any(column("dial")) else "",
            f"{statistics.fmean(column('attainment')):.2%}",
            f"{min(column('worst_5min_attainment')):.1%}",
            f"{statistics.fmean(column('gpu_hours_pct_oracle')):.0f}",
            hours,
            points,
            worst,
            f"{statistics.fmean(column('reversals')):.1f}",
            f"{statistics.fmean(column('batch_tokens')):,.0f}",
        )
    return table
