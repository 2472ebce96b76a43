"""pytest plugin: ends a process whose test hangs where pytest-timeout can't help.

pytest-timeout raises once, in the main thread. That ends no teardown that waits for another thread, and no C code. Here
a thread of `faulthandler` writes the stacks of all threads to a file and ends the process. `tests.again` prints the
stacks. Without them a run would stand still until somebody ends it, and name no test.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.selection import timeout_s

GRACE_S = 120.0
"""Time that a test has for its end after pytest-timeout, seconds."""


def stacks_of(notes: Path) -> list[Path]:
    """Return the files with stacks of processes that were ended, of the run with these notes."""
    return sorted(file for file in notes.parent.glob(f"{notes.stem}.hung.*") if file.stat().st_size)


def pytest_configure(config: pytest.Config) -> None:
    notes = config.getoption("--notes")
    # The process that only collects reports runs no test.
    if notes and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(_Watchdog(config, Path(notes)))


class _Watchdog:
    """Timer of the present test."""

    def __init__(self, config: pytest.Config, notes: Path) -> None:
        self._config = config
        self._file = notes.with_name(f"{notes.stem}.hung.{os.getpid()}")
        self._seconds = GRACE_S
        self._out: TextIO | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._seconds = timeout_s(self._config, item) + GRACE_S
        self._start()
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        # pytest has just cancelled the timer, because a debugger may want to wait.
        self._start()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        # Threads that never end would keep the process.
        self._seconds = GRACE_S
        self._start()

    def _start(self) -> None:
        if self._out is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._out = self._file.open("w", encoding="utf-8")
        faulthandler.dump_traceback_later(self._seconds, file=self._out, exit=True)
