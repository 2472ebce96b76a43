"""Shows outcomes: fault x outcome x recovery time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.run import Outcome

_NUMBERS = ("requests", "calls failed", "requests failed", "silence", "p99 gap", "recovery")
LAG_S = 0.5
"""Standstill of the clients' own loop that is shown."""
_STYLES = {"held": "green", "expected": "yellow"}


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print the table, and what was broken."""
    table = Table(title="Chaos", title_justify="left")
    for name in (
        "scenario",
        "faults",
        "requests",
        "calls failed",
        "requests failed",
        "silence",
        "p99 gap",
        "recovery",
        "outcome",
        "control",
    ):
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for outcome in outcomes:
        control = outcome.control
        broken = sorted({violation.invariant for violation in control.violations}) if control else []
        table.add_row(
            outcome.scenario.name,
            "\n".join(f"{fault.name}: {fault.proof or 'NOT PROVEN'}" for fault in outcome.faults) or "none",
            str(outcome.requests),
            str(outcome.failed_calls),
            str(outcome.failed),
            f"{outcome.silence_s:.1f} s" + (f" ({outcome.lag_s:.1f} s here)" if outcome.lag_s >= LAG_S else ""),
            "" if outcome.pace_s is None else " > ".join(f"{gap * 1e3:.0f}" for gap in outcome.pace_s) + " ms",
            "" if outcome.recovery_s is None else f"{outcome.recovery_s:.1f} s",
            f"[{_STYLES.get(outcome.verdict, 'red')}]{outcome.verdict}[/]",
            f"without {outcome.scenario.control.without}: {', '.join(broken) or 'nothing'} broken"
            if control and outcome.scenario.control
            else "",
        )
    console.print(table)
    for outcome in outcomes:
        if outcome.violations:
            console.print(f"\n{outcome.scenario.name} ({outcome.verdict}): {outcome.scenario.claim}")
            if outcome.scenario.expected_failure:
                console.print(f"  known: {outcome.scenario.expected_failure}")
            for violation in outcome.violations:
                console.print(f"  {violation}", highlight=False)


def as_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the same for machines."""
    return [_fields(outcome) for outcome in outcomes]


def _fields(outcome: Outcome) -> dict[str, Any]:
    return {
        "scenario": outcome.scenario.name,
        "claim": outcome.scenario.claim,
        "fault_rows": list(outcome.scenario.faults),
        "faults": [asdict(fault) for fault in outcome.faults],
        "verdict": outcome.verdict,
        "known": outcome.scenario.expected_failure,
        "violations": [asdict(violation) for violation in outcome.violations],
        "requests": outcome.requests,
        "finished": outcome.finished,
        "failed": outcome.failed,
        "failed_calls": outcome.failed_calls,
        "cancelled": outcome.cancelled,
        "silence_s": outcome.silence_s,
        "lag_s": outcome.lag_s,
        "recovery_s": outcome.recovery_s,
        "p99_gap_s": outcome.pace_s,
        "took_s": outcome.took_s,
        "control": _fields(outcome.control) if outcome.control else None,
    }
