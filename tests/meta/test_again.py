"""Only time-outs are run again, and a flake is never silent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests import again
from tests.support.flakes import Known, load_known
from tests.support.notes import Note, is_left_over, read_notes, timed_out
from tests.support.waiting import Deadline, TimedOutError, until, until_sync

ROOT = Path(__file__).parents[2]
ONE, TWO, THREE = (f"tests/test_x.py::test_{name}" for name in ("one", "two", "three"))


class Run:
    """A run of the suite that failed, and what its tests do when they run again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known = folder / "flaky.toml"
        self.known.write_text("")
        self.notes: list[Note] = []
        self.passes: set[str] = set()
        """Tests that pass when they run again."""
        self.again: list[str] = []
        """Tests that did run again."""

    def timed_out(self, *tests: str) -> None:
        self.notes += [Note(test, "call", "failed", timed_out=True, text=f"trace of {test}") for test in tests]

    def failed(self, test: str, phase: str = "call") -> None:
        self.notes.append(Note(test, phase, "failed"))

    def list_known(self, test: str, expires: date) -> None:
        self.known.write_text(f'[[flaky]]\ntest = "{test}"\nfirst_seen = 2026-01-01\nexpires = {expires}\n')

    def judge(self, status: int = 1) -> int:
        file = self.folder / "notes.jsonl"
        write(file, self.notes)
        return again.judge(file, status, self._rerun, known_file=self.known, folder=self.folder / "flakes")

    def _rerun(self, tests: list[str], notes: Path) -> None:
        self.again += tests
        outcomes = {test: "passed" if test in self.passes else "failed" for test in tests}
        write(notes, [Note(test, "call", outcome) for test, outcome in outcomes.items()])

    @property
    def records(self) -> list[Path]:
        return sorted((self.folder / "flakes").glob("*"))


def write(file: Path, notes: list[Note]) -> None:
    file.write_text("".join(json.dumps(asdict(note)) + "\n" for note in notes))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def later(days: int) -> date:
    return date.today() + timedelta(days=days)


def test_a_time_out_that_passes_alone_leaves_the_run_green_and_a_record(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.timed_out(ONE)
    run.passes = {ONE}
    assert 0 == run.judge()
    assert [ONE] == run.again
    [record] = run.records
    assert f"trace of {ONE}" in record.read_text()
    assert f"FLAKY: {ONE}" in capsys.readouterr().out


def test_a_time_out_that_fails_again_is_red_and_no_flake(run: Run) -> None:
    run.timed_out(ONE)
    assert 1 == run.judge()
    assert [] == run.records


def test_a_failure_about_content_is_never_run_again(run: Run) -> None:
    run.failed(ONE)
    run.passes = {ONE}
    assert 1 == run.judge()
    assert [] == run.again


def test_beside_a_failure_about_content_a_flake_is_recorded_and_the_run_stays_red(run: Run) -> None:
    run.failed(ONE)
    run.timed_out(TWO)
    run.passes = {ONE, TWO}
    assert 1 == run.judge()
    assert [TWO] == run.again
    assert 1 == len(run.records)


def test_a_test_that_timed_out_and_then_failed_in_its_teardown_is_not_run_again(run: Run) -> None:
    run.timed_out(ONE)
    run.failed(ONE, "teardown")
    run.passes = {ONE}
    assert 1 == run.judge()
    assert [] == run.again


def test_two_flakes_may_be_chance_and_the_third_is_red(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.passes = {ONE, TWO, THREE}
    run.timed_out(ONE, TWO)
    assert 0 == run.judge()
    run.timed_out(THREE)
    assert 1 == run.judge()
    assert "RED: 3 tests failed by a time-out" in capsys.readouterr().out


def test_a_listed_test_that_flakes_again_is_red(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.list_known(ONE, later(10))
    assert 0 == run.judge(0)
    run.timed_out(ONE)
    run.passes = {ONE}
    assert 1 == run.judge()
    assert f"RED: {ONE}" in capsys.readouterr().out


@pytest.mark.parametrize(("days", "status"), [(0, 0), (-1, 1)])
def test_an_entry_that_expired_is_red_though_everything_passed(run: Run, days: int, status: int) -> None:
    run.list_known(ONE, later(days))
    assert status == run.judge(0)


def test_more_time_outs_than_chance_explains_are_not_run_again(run: Run) -> None:
    tests = [f"{ONE}{number}" for number in range(again.MOST + 1)]
    run.timed_out(*tests)
    run.passes = set(tests)
    assert 1 == run.judge()
    assert [] == run.again


@pytest.mark.parametrize("status", [2, 3, 4])
def test_a_run_that_did_not_end_stays_red(run: Run, status: int) -> None:
    run.timed_out(ONE)
    run.passes = {ONE}
    assert status == run.judge(status)


def test_a_failed_run_without_a_failed_test_is_red(run: Run) -> None:
    assert 1 == run.judge()


def test_files_that_cannot_be_collected_are_red(run: Run) -> None:
    run.failed("tests/test_x.py", "collect")
    run.timed_out(ONE)
    run.passes = {ONE}
    assert 1 == run.judge()


def test_the_slowest_tests_are_named_with_what_made_them_slow(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.notes = [
        *(Note(f"{TWO}{number}", "call", "passed", 0.5) for number in range(20)),
        Note(ONE, "setup", "passed", 3.0, fixture="stack"),
        Note(ONE, "call", "passed", 0.25),
    ]
    assert 0 == run.judge(0)
    lines = capsys.readouterr().out.splitlines()
    assert "the 10 slowest of 21 tests:" == lines[0]
    assert f"     3.2 s  {ONE}  (setup 3.0 by stack, call 0.2)" == lines[1]


@pytest.mark.parametrize(
    "entry",
    [
        'test = "a"\nfirst_seen = 2026-01-01',
        'test = "a"\nfirst_seen = 2026-01-01\nexpires = "soon"',
        'test = "a"\nfirst_seen = 2026-01-01\nexpires = 2026-02-01\nwhy = "?"',
        'test = "a"\nfirst_seen = 2026-01-01\nexpires = 2026-02-01\n'
        '[[flaky]]\ntest = "a"\nfirst_seen = 2026-01-01\nexpires = 2026-02-01',
    ],
)
def test_the_list_of_known_flakes_is_checked(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "flaky.toml"
    file.write_text(f"[[flaky]]\n{entry}\n")
    with pytest.raises(ValueError, match=r"flaky\.toml"):
        load_known(file)


def test_every_listed_test_exists() -> None:
    def exists(known: Known) -> bool:
        file, _, name = known.test.partition("::")
        return f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()

    assert [] == [known for known in load_known(ROOT / "tests/flaky.toml") if not exists(known)]


# --- what counts as a time-out ---


def raised(work: Callable[[], object]) -> BaseException:
    """Return what a piece of work raises."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def waits_for_ever() -> None:
    asyncio.run(until(lambda: False, 0.01))


async def _never() -> None:
    async with asyncio.timeout(0.01):
        await asyncio.Event().wait()


def claims() -> None:
    assert [] == [1]


def claims_and_then_waits() -> None:
    try:
        claims()
    finally:
        waits_for_ever()


def claims_of_what_a_wait_left() -> None:
    try:
        waits_for_ever()
    except TimedOutError:
        claims()


def two_at_once() -> None:
    raise ExceptionGroup("both", [TimeoutError(), TimedOutError()])


def one_of_two() -> None:
    raise ExceptionGroup("both", [TimeoutError(), AssertionError()])


@pytest.mark.parametrize(
    ("late", "work"),
    [
        (True, waits_for_ever),
        (True, lambda: until_sync(lambda: False, 0.01)),
        (True, lambda: asyncio.run(_never())),
        (True, lambda: asyncio.run(asyncio.wait_for(_never(), 1))),
        (True, lambda: subprocess.run(["sleep", "9"], timeout=0.01, check=True)),
        (True, lambda: pytest.fail("Timeout (>120.0s) from pytest-timeout.")),
        (True, two_at_once),
        (False, one_of_two),
        (False, claims),
        (False, claims_and_then_waits),
        (False, claims_of_what_a_wait_left),
        (False, lambda: pytest.fail("no such thing")),
        (False, lambda: {}["absent"]),
    ],
)
def test_only_what_took_too_long_is_a_time_out(late: bool, work: Callable[[], object]) -> None:
    assert late == timed_out(raised(work))


def test_a_wait_lasts_longer_when_the_machine_became_slow() -> None:
    deadline = Deadline(0.2, factor=1.0, slowness=lambda: 4.0)
    until_sync(lambda: deadline._waited() > 0.2)
    deadline.passed()
    assert 4.0 == deadline._factor
    until_sync(deadline.passed)
    assert deadline._waited() > 0.8


# --- the whole of it, with pytest ---

SUITE = """
from pathlib import Path

from tests.support.waiting import until

RUNS = Path(__file__).with_name("runs.txt")


def count(name):
    with RUNS.open("a") as out:
        out.write(name + "\\n")
    return RUNS.read_text().count(name + "\\n")


async def test_late():
    runs = count("late")
    await until(lambda: runs == 2, 0.01)


def test_wrong():
    if count("wrong") == 1:
        assert "expected" == "found"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "beside", "status", "runs"),
    [("late", (), 0, ["late", "late"]), ("late or wrong", ("-n", "1"), 1, ["late", "late", "wrong"])],
    ids=["alone", "side by side"],
)
def test_a_suite_is_judged_by_what_pytest_noted(
    tmp_path: Path, chosen: str, beside: tuple[str, ...], status: int, runs: list[str]
) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    (tmp_path / "flaky.toml").write_text("")
    notes = tmp_path / "notes.jsonl"
    plugins = ("-p", "tests.support.notes", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--rootdir", tmp_path)

    def pytest_run(tests: list[str], file: Path, *more: str) -> int:
        command = [sys.executable, "-m", "pytest", "-q", *plugins, f"--notes={file}", *more, *tests]
        return subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode

    def run_again(tests: list[str], file: Path) -> None:
        pytest_run([str(tmp_path / test) for test in tests], file)

    first = pytest_run([str(suite)], notes, "-k", chosen, *beside)
    assert 1 == first
    known = tmp_path / "flaky.toml"
    assert status == again.judge(notes, first, run_again, known_file=known, folder=tmp_path / "flakes")
    assert runs == sorted((tmp_path / "runs.txt").read_text().split())
    [record] = (tmp_path / "flakes").glob("*")
    assert "the condition did not hold" in record.read_text()
    assert {True} == {note.timed_out for note in read_notes(notes) if note.outcome == "failed" and "late" in note.test}


HANGING = """
import threading, time

import pytest

from tests.support import watchdog

watchdog.GRACE_S = 0.5


@pytest.fixture
def never():
    yield
    # pytest-timeout has raised in the test, and does not come again.
    threading.Event().wait()


@pytest.mark.timeout(1)
def test_hangs(never):
    time.sleep(60)

"""


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_and_shown_with_its_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite, known, notes = (tmp_path / name for name in ("test_suite.py", "flaky.toml", "notes.jsonl"))
    suite.write_text(HANGING)
    known.write_text("")
    plugins = [f"-ptests.support.{name}" for name in ("notes", "watchdog")]
    options = (*plugins, "-n1", "-p", "no:cacheprovider", "--rootdir", tmp_path, f"--notes={notes}")
    command = [sys.executable, "-m", "pytest", "-q", *options, suite]
    assert 0 != subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL, timeout=60).returncode

    assert 1 == again.judge(notes, 1, lambda tests, file: None, known_file=known, folder=tmp_path / "flakes")
    shown = capsys.readouterr().out
    assert "HUNG: a process was ended" in shown
    assert "in never" in shown


def unraisable(cause: BaseException) -> BaseException:
    error = pytest.PytestUnraisableExceptionWarning("Exception ignored in: ...")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (unraisable(ResourceWarning("unclosed transport <_SelectorSocketTransport fd=31>")), True),
        (ExceptionGroup("two", [unraisable(ResourceWarning("unclosed <socket.socket fd=31>"))]), True),  # type: ignore[list-item]
        (unraisable(ResourceWarning("subprocess 5498 is still running")), True),
        (unraisable(ValueError("1 != 2")), False),
        (unraisable(ResourceWarning("unclosed file")), False),
        (AssertionError("1 != 2"), False),
    ],
)
def test_only_sockets_and_processes_of_an_earlier_test_are_left_over(error: BaseException, expected: bool) -> None:
    assert expected is is_left_over(error)
