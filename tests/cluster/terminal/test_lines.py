"""Progress in output that is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cluster.terminal import lines
from cluster.terminal.lines import ProgressLines


def told(console: Console, monkeypatch: pytest.MonkeyPatch) -> str:
    now = [100.0]
    monkeypatch.setattr(lines.time, "monotonic", lambda: now[0])
    tell = ProgressLines(console, every_s=5.0)
    for second in range(13):
        now[0] = 100.0 + second
        tell(f"step [{second}]")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "5 s: step [5]\n10 s: step [10]\n" == told(Console(file=io.StringIO()), monkeypatch)


def test_a_terminal_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "" == told(Console(file=io.StringIO(), force_terminal=True), monkeypatch)
