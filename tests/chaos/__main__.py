"""Runs the scenarios.

python -m tests.chaos [--only TEXT] [--short] [--real | --no-real] [--no-control] [--json FILE] [--logs FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from tests.chaos.report import as_json, show
from tests.chaos.run import Outcome, run_alone, run_in_turns
from tests.chaos.scenario import Scenario
from tests.chaos.scenarios import ALL


def main() -> int:
    """Run what was asked for; 0 when everything is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Breaks a cluster and checks it.")
    parser.add_argument("--only", default="", help="run scenarios with this text in their names")
    parser.add_argument("--short", action="store_true", help="run the scenarios of the ordinary test suite")
    parser.add_argument(
        "--real", action=argparse.BooleanOptionalAction, help="run only scenarios on real engines, or none of them"
    )
    parser.add_argument("--no-control", action="store_true", help="leave control runs out")
    parser.add_argument("--list", action="store_true", help="only name the scenarios")
    parser.add_argument("--json", type=Path, help="write the outcomes here too")
    parser.add_argument("--logs", type=Path, help="copy logs, and what clients saw, into this folder")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    chosen = [s for s in ALL if options.only in s.name and (s.short or not options.short)]
    chosen = [s for s in chosen if options.real in (None, s.real)]
    if options.list or not chosen:
        for scenario in ALL:
            console.print(f"{scenario.name}: {scenario.claim}")
        return 0 if options.list else 2
    outcomes = asyncio.run(_run_all(chosen, console, options.logs, control=not options.no_control))
    show(outcomes, console)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(outcomes), indent=1), encoding="utf-8")
    return 0 if all(outcome.good for outcome in outcomes) else 1


async def _run_all(
    scenarios: Sequence[Scenario], console: Console, logs: Path | None, *, control: bool
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for group in _groups(scenarios):
        console.print(f"[{len(outcomes) + 1}/{len(scenarios)}] {group[0].name} ...", highlight=False, markup=False)
        if len(group) == 1:
            outcomes.append(await run_alone(group[0], control=control, logs=logs))
            _tell(outcomes[-1], console)
            continue
        async for outcome in run_in_turns(group, control=control):
            outcomes.append(outcome)
            _tell(outcome, console)
    return outcomes


def _groups(scenarios: Sequence[Scenario]) -> Iterator[list[Scenario]]:
    """Put those on real engines together that can share a cluster."""
    for (real, _plan), group in itertools.groupby(scenarios, lambda scenario: (scenario.real, scenario.plan)):
        together = list(group)
        yield from [together] if real else [[scenario] for scenario in together]


def _tell(outcome: Outcome, console: Console) -> None:
    console.print(f"  {outcome.scenario.name}: {outcome.verdict} in {outcome.took_s:.0f} s", highlight=False)
    if not outcome.good:
        for violation in outcome.violations:
            console.print(f"  {violation}", highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(main())
