"""How a benchmark ends: a status, and a line instead of a traceback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import pytest

from cluster.errors import SettingsError
from loadtest.benchmarks.ending import FAILED, INTERRUPTED, end

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (SettingsError("there is no load"), FAILED, "there is no load"),
    ],
)
def test_what_stops_it_is_a_line(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> NoReturn:
        raise error

    with pytest.raises(SystemExit) as ended:
        end("bench-this", main)

    assert status == ended.value.code
    assert f"bench-this: {line}\n" == capsys.readouterr().err


@pytest.mark.parametrize("status", [0, 1])
def test_the_status_is_the_benchmarks(status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        end("bench-this", lambda: status)
    assert status == ended.value.code


def test_all_that_make_runs_ends_so() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*\n\t.* -m loadtest\.benchmarks\.(\w+)", makefile, re.MULTILINE)
    assert len(targets) > 10
    for target, module in targets:
        path = ROOT / "loadtest" / "benchmarks" / f"{module}.py"
        path = path if path.exists() else path.with_suffix("") / "__main__.py"
        assert f'    end("{target}", main)\n' in path.read_text(encoding="utf-8"), module
