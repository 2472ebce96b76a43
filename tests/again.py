"""Ends `make test`: prints the slowest tests, and runs again what failed only by a time-out.

A test that passes then is a flake. The run stays green, and the flake is recorded. It is red when the test is listed in
tests/flaky.toml, when three or more tests flake in one run, and when an entry of that file has expired. A failure about
content is never run again. Processes that hung are shown with their stacks, and make the run red.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.support.flakes import faults, load_known, record
from tests.support.notes import Note, read_notes
from tests.support.watchdog import stacks_of

MOST = 12
"""Tests that are run again; more time-outs in one run have one cause, and running on would only take time."""
SLOWEST = 10
FLAKES = Path("out/flakes")
KNOWN = Path("tests/flaky.toml")


def run_again(tests: list[str], notes: Path) -> None:
    """Run tests one after another, with nothing beside them."""
    command = (sys.executable, "-m", "pytest", f"--notes={notes}", "--color=no", "-p", "no:cacheprovider", *tests)
    subprocess.run(command, check=False)


def judge(
    notes_file: Path,
    status: int,
    run_again: Callable[[list[str], Path], None] = run_again,
    *,
    known_file: Path = KNOWN,
    folder: Path = FLAKES,
) -> int:
    """Return the status of the whole run: 0 or what pytest gave.

    Args:
        notes_file: what the run noted; see `tests.support.notes`.
        status: 0 or the worst one that pytest gave.
        run_again: runs tests and notes the outcome in a file.
        known_file: the list of known flakes.
        folder: takes the tracebacks of flakes.
    """
    now = datetime.now().astimezone()
    notes = read_notes(notes_file)
    known = load_known(known_file)
    print_slowest(notes)
    failures = by_test([note for note in notes if note.outcome == "failed"])
    late = [test for test, each in failures.items() if all(note.timed_out for note in each)]
    flakes: list[str] = []
    if len(late) > MOST:
        print(f"{len(late)} tests failed by a time-out: not run again (at most {MOST} would be)")
    elif late:
        print(f"{len(late)} tests failed by a time-out and run again, alone:", *late, sep="\n  ", flush=True)
        second = notes_file.with_suffix(".again.jsonl")
        second.unlink(missing_ok=True)
        run_again(late, second)
        flakes = passed(late, read_notes(second))
    for test in flakes:
        file = record(folder, test, failures[test], now)
        print(f"FLAKY: {test} failed by a time-out and passed alone; traceback in {file}")
        print(f"       list it in {known_file} with first_seen = {now:%Y-%m-%d}, or mend it")
    hung = stacks_of(notes_file)
    for file in hung:
        print(f"HUNG: a process was ended; its threads stood here:\n{file.read_text(encoding='utf-8')}")
    if status == 1 and failures and set(flakes) == set(failures) and not hung:
        status = 0
    red = faults(flakes, known, now.date())
    for fault in red:
        print(f"RED: {fault}")
    return status or int(bool(red))


def passed(tests: list[str], notes: list[Note]) -> list[str]:
    """Return those of the tests that ran and failed in no phase."""
    failed = {note.test for note in notes if note.outcome == "failed"}
    called = {note.test for note in notes if note.phase == "call" and note.outcome == "passed"}
    return [test for test in tests if test in called - failed]


def by_test(notes: list[Note]) -> dict[str, list[Note]]:
    """Sort notes by the name of the test, in the order of the run."""
    found: dict[str, list[Note]] = {}
    for note in notes:
        found.setdefault(note.test, []).append(note)
    return found


def print_slowest(notes: list[Note]) -> None:
    """Print the tests that took longest, the seconds of their phases, and the fixture that took most of the setup."""
    tests = by_test([note for note in notes if note.phase != "collect"])
    slowest = sorted(tests.items(), key=lambda item: -sum(note.seconds for note in item[1]))[:SLOWEST]
    if slowest:
        print(f"the {len(slowest)} slowest of {len(tests)} tests:")
    for test, phases in slowest:
        print(f"  {sum(note.seconds for note in phases):6.1f} s  {test}  ({', '.join(map(_reason, phases))})")


def _reason(note: Note) -> str:
    through = f" by {note.fixture}" if note.fixture and note.seconds >= 1 else ""
    return f"{note.phase} {note.seconds:.1f}{through}"


if __name__ == "__main__":
    sys.exit(judge(Path(sys.argv[1]), int(sys.argv[2])))
