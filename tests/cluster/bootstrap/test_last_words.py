"""What is quoted of a process that ended is what tells why."""

from __future__ import annotations

import io
import logging
import shutil
import signal
import sys
from pathlib import Path

import pytest

from cluster.bootstrap.last_words import MOST, last_words
from cluster.bootstrap.process import ChildProcess
from cluster.errors import BootstrapError
from cluster.telemetry.logs import JsonFormatter, TextFormatter


def lines(formatter: logging.Formatter, *levels: int) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    for number, level in enumerate(levels):
        handler.emit(logging.makeLogRecord({"levelno": level, "levelname": logging.getLevelName(level),
                                            "msg": f"some.event_{number}", "name": "router"}))  # fmt: skip
    return stream.getvalue()


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_errors_are_quoted_and_no_news(formatter: logging.Formatter) -> None:
    news = [logging.INFO] * 20
    log = lines(formatter, *news, logging.WARNING, logging.ERROR, *news)
    assert "event_21" in last_words(log)
    assert 1 == len(last_words(log).splitlines())
    assert "event_20" in last_words(lines(formatter, *news, logging.WARNING, *news))
    assert "" == last_words(lines(formatter, *news))


def test_a_traceback_is_quoted_as_it_is() -> None:
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no'
    assert traceback == last_words(lines(JsonFormatter(), logging.INFO, logging.WARNING) + traceback + "\n")


def test_the_end_of_much_is_quoted_by_the_line() -> None:
    words = last_words("".join(f"line {number} {'x' * 90}\n" for number in range(100)))
    assert words.startswith("line 80 ")
    assert words.endswith(f"line 99 {'x' * 90}")
    assert "x" * MOST == last_words("x" * 3 * MOST)


async def test_a_process_that_was_killed_says_by_what_and_quotes_no_news(tmp_path: Path) -> None:
    news = lines(JsonFormatter(), *[logging.INFO] * 20).strip()
    code = f"import os, signal; print({news!r}, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    child = await ChildProcess.start("x", [sys.executable, "-c", code], tmp_path / "x.log")
    assert -signal.SIGKILL == await child.wait()
    assert {"ended": "killed by SIGKILL", "log_file": str(tmp_path / "x.log")} == child.obituary()
    with pytest.raises(BootstrapError, match=r"^x ended: killed by SIGKILL; its log does not say why: \S*/x.log$"):
        child.check()


async def test_a_full_disk_is_named_where_a_process_could_write_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await ChildProcess.start("x", [sys.executable, "-c", "raise SystemExit(1)"], tmp_path / "x.log")
    await child.wait()
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: full)
    with pytest.raises(
        BootstrapError, match=r"^x ended: status 1; the disk of \S+ is full, so its log does not say why"
    ):
        child.check()
