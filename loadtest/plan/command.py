"""`penstock plan`: the choice of a verb by the flags."""

from __future__ import annotations

import argparse
from pathlib import Path

from cluster.errors import SettingsError
from loadtest.plan.review import Book
from loadtest.plan.verbs.check_points import check_points
from loadtest.plan.verbs.effects import check_engine, check_question
from loadtest.plan.verbs.goals import GOALS
from loadtest.plan.verbs.observe import observe
from loadtest.plan.verbs.plan import make_plan
from loadtest.plan.verbs.review import review


def run_plan(options: argparse.Namespace) -> int:
    """Run the verb that the flags ask for. Return the exit status.

    Raises:
        SettingsError: a flag is missing or out of range, or the model or accelerator is unknown.
        TraceError: a trace or a file of points cannot be read.
    """
    if options.check_points:
        check_question(options, "check-points")
        return check_points(Path(options.check_points), as_json=options.json)
    book = Book(Path(options.state_dir or "~/.penstock"))
    if options.observe:
        check_question(options, "observe")
        return observe(book, *options.observe, as_json=options.json)
    if options.review:
        check_question(options, "review")
        return review(book, as_json=options.json)
    asked = [name for name in GOALS if getattr(options, name)]
    if asked:
        verb = GOALS[asked[0]]
        if any(GOALS[name] is not verb for name in asked):
            raise SettingsError(f"{' and '.join(asked)}: give one of them")
        check_question(options, "deadline" if asked[0] == "requests" else asked[0])
        check_engine(options)
        return int(verb(options, book))
    check_question(options, "a plan")
    check_engine(options)
    return make_plan(options, book)
