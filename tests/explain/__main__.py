"""Plants slow requests and checks that `explain` names their causes.

python -m tests.explain [--only TEXT] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.explain.check import Named, as_json, run_plants
from tests.explain.plants import PLANTS

LEAST = 0.9
"""Least part of the plants that must be named."""


def main() -> int:
    """Run the plants; 0 when enough are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.explain", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="run plants with this text in their names")
    parser.add_argument("--json", type=Path, help="write the outcome here too")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    chosen = [each for each in PLANTS if options.only in each.name]
    console = Console(width=None if sys.stdout.isatty() else 200)
    began_at, done = time.monotonic(), 0

    def told(named: Named) -> None:
        nonlocal done
        done += 1
        mark = "[green]named[/]" if named.right else f"[red]{named.cause}[/], not {' or '.join(named.planted)}"
        console.print(f"[{done}/{len(chosen)}] {named.name.replace('_', ' ')}: {mark}", highlight=False)
        console.print(f"    [dim]{named.summary}[/]", highlight=False)

    found = asyncio.run(run_plants(chosen, told))
    outcome = as_json(found)
    console.print(
        f"{outcome['named']} of {outcome['planted']} causes named, in {time.monotonic() - began_at:.0f} s",
        highlight=False,
    )
    if options.json is not None:
        options.json.write_text(json.dumps(outcome, indent=1), encoding="utf-8")
    return 0 if outcome["named"] >= LEAST * outcome["planted"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
