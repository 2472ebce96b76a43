"""How a benchmark ends: a status, and a line instead of a traceback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import pytest

from cluster.errors import SettingsError
from loadtest.ending import FAILED, INTERRUPTED, end

ROOT = Path(__file__).resolve().parents[2]


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
    modules = re.findall(r"-m loadtest\.(\w+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert len(modules) > 10
    for module in modules:
        path = ROOT / "loadtest" / f"{module}.py"
        source = (path if path.exists() else ROOT / "loadtest" / module / "__main__.py").read_text(encoding="utf-8")
        assert f'    end("{module.replace("_", "-")}", main)\n' in source, module
