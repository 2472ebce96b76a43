"""`penstock plan --observe`: notes what a load test measured of a plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.markup import escape

from cluster.errors import SettingsError, plain_reason
from cluster.terminal.console import screen
from loadtest.plan.review import Book


def observe(book: Book, plan_id: str, file: str, *, as_json: bool) -> int:
    """Note the figures of a load test's JSON report and print them.

    Raises:
        SettingsError: the file cannot be read, is no report of this plan, or the plan is unknown.
    """
    try:
        report = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"observe: {file} cannot be read: {plain_reason(error)}") from error
    if not isinstance(report, dict):
        raise SettingsError(f"observe: {file} must hold one JSON object")
    seen = book.observe(plan_id, report)
    if as_json:
        sys.stdout.write(json.dumps({"id": plan_id, "seen": seen}, indent=2) + "\n")
    else:
        noted = f"noted for {plan_id}: " + ", ".join(f"{k} {v:.4g}" for k, v in seen.items())
        screen().print(escape(noted), highlight=False)
    return 0
