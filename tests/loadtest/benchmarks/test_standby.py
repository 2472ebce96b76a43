"""The benchmark of standbys: its table, and one short load through all of its policies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from cluster.errors import SettingsError
from loadtest.benchmarks import standby
from loadtest.benchmarks.autoscaler.contest import ContestResult
from loadtest.benchmarks.standby import OURS, WITH, table_of


def result(policy: str, seed: int, attainment: float, hours: float) -> ContestResult:
    return ContestResult("azure", policy, seed, 0.0, attainment, hours, 0, 1.0, 0, 0.0)


def test_the_table_has_differences_on_the_same_draws() -> None:
    found = [result(OURS, seed, 0.9, 2.0 * seed) for seed in (1, 2)]
    found += [result(name, seed, 0.92, 2.2 * seed) for name in WITH for seed in (2, 1)]
    console = Console(width=200, record=True)
    console.print(table_of(found))
    text = console.export_text()
    assert "90.0%" in text
    assert len(WITH) == text.count("+2.0 ±0.0, 110")


def test_an_unknown_load_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["bench-standby", "--data", str(tmp_path), "--scenarios", "azure,flood"])
    with pytest.raises(SettingsError, match=r"scenario must be one of azure, .* got flood"):
        standby.main()
