"""No fault of the table is forgotten, and no scenario is of a kind that shows nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.coverage import ROWS, Row
from tests.chaos.scenario import Scenario
from tests.chaos.scenarios import ALL

ROOT = Path(__file__).parents[2]


def test_the_rows_are_the_thirty_of_the_table() -> None:
    assert list(range(1, 31)) == [row.number for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_every_fault_has_a_scenario_or_a_reason(row: Row) -> None:
    assert row.elsewhere or any(row.number in scenario.faults for scenario in ALL)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_tests_that_are_named_exist(row: Row) -> None:
    words = re.split(r"[,;\s]+", row.elsewhere)
    assert [] == [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()]


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_a_scenario_names_its_fault_or_is_the_one_without(scenario: Scenario) -> None:
    assert bool(scenario.faults) == (scenario.name != "undisturbed")
    assert 1 == sum(other.name == scenario.name for other in ALL)


def test_the_table_of_who_is_dead_names_a_test_in_each_row() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Who is dead")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "shown by" not in line]
    rows = [row for row in rows if "every test" not in row]
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = [re.findall(r"`([\w/.]*test_[\w.]+)`", row) for row in rows]

    assert len(rows) >= 11
    assert [] == [row for row, names in zip(rows, named, strict=True) if not names]
    missing = [name for names in named for name in names if not ((ROOT / name).exists() or f"def {name}(" in sources)]
    assert [] == missing
