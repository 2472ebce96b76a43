"""pytest plugin: notes for `tests.again` on how long each test took, and whether it failed by a time-out."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import TimedOutError

_PYTEST_TIMEOUT = ("Timeout (>", "from pytest-timeout")
"""How the message of pytest-timeout begins and how it goes on."""
_LEFT_OVER = re.compile(r"unclosed transport|unclosed <socket|subprocess \d+ is still running")
_longest: list[tuple[float, str]] = []
"""Of each fixture that was set up for the present test: seconds and name."""


@dataclass(frozen=True)
class Note:
    """What one phase of a test gave."""

    test: str
    phase: str
    """setup, call, teardown, or collect, which has the name of a file."""
    outcome: str
    """passed, failed or skipped."""
    seconds: float = 0.0
    timed_out: bool = False
    """Whether it says nothing about content: a time-out, or what an earlier test left behind."""
    fixture: str = ""
    """The fixture that took most of the setup."""
    text: str = ""
    """Traceback of a failure."""


def read_notes(file: Path) -> list[Note]:
    """Return what runs wrote into a file; nothing when there is none."""
    if not file.exists():
        return []
    return [Note(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def timed_out(error: BaseException) -> bool:
    """Return whether an error says only that something took too long. An assertion about content that was under way
    when the time-out came makes it more than that.
    """
    claims = (each for each in _chain(error) if isinstance(each, (AssertionError, pytest.fail.Exception)))
    return _is_timeout(error) and all(_is_timeout(each) for each in claims)


def is_left_over(error: BaseException) -> bool:
    """Return whether pytest found only sockets or processes that an earlier test left to the garbage collector.

    It reports them in the test that happens to run then. If that is the test that left them, it fails again alone.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_left_over(each) for each in error.exceptions)
    cause = error.__cause__
    left = isinstance(cause, ResourceWarning) and _LEFT_OVER.match(str(cause)) is not None
    return isinstance(error, pytest.PytestUnraisableExceptionWarning) and left


def _is_timeout(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_timeout(each) for each in error.exceptions)
    if isinstance(error, pytest.fail.Exception):
        return all(part in str(error) for part in _PYTEST_TIMEOUT)
    return isinstance(error, (TimedOutError, TimeoutError, subprocess.TimeoutExpired))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Walk an error, what it was raised from, and what was handled when it was raised."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        pending += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--notes", metavar="FILE", help="append a line of JSON about each phase of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--notes")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(file)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _longest.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        _longest.append((time.perf_counter() - began, fixturedef.argname))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Only properties reach the process that writes.
    if call.excinfo is not None and (timed_out(call.excinfo.value) or is_left_over(call.excinfo.value)):
        report.user_properties.append(("timed_out", True))
    if call.when == "setup" and _longest:
        report.user_properties.append(("fixture", max(_longest)[1]))
    return report


class _Writer:
    """Appends notes to a file as reports arrive."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = dict(report.user_properties)
        self._write(
            Note(
                test=report.nodeid,
                phase=report.when or "",
                outcome=report.outcome,
                seconds=round(report.duration, 3),
                timed_out=said.get("timed_out") is True,
                fixture=str(said.get("fixture", "")),
                text=report.longreprtext if report.failed else "",
            )
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(Note(test=report.nodeid, phase="collect", outcome=report.outcome, text=report.longreprtext))

    def _write(self, note: Note) -> None:
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(note)) + "\n")
