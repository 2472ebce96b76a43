"""`penstock doctor` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.cli.main import main

Captured = pytest.CaptureFixture[str]


def test_a_machine_that_can_run_the_cluster(tmp_path: Path, capsys: Captured) -> None:
    words = ["--engine", "sim", "--port", "0", "--http-port", "0", "--state-dir", str(tmp_path / "state")]
    assert 0 == main(["doctor", *words])
    out = capsys.readouterr().out
    assert "ok    settings" in out
    assert ": 0 bad, " in out.splitlines()[-1]
    # Nothing was made.
    assert not (tmp_path / "state").exists()


def test_json_has_every_finding_and_the_exit_status_says_that_something_is_bad(
    tmp_path: Path, capsys: Captured
) -> None:
    assert 1 == main(["doctor", "--json", "--model", "/no/such/model", "--state-dir", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    (model,) = (each for each in found["findings"] if each["subject"] == "model of demo")
    assert ("bad", True, True) == (model["health"], "there is no folder" in model["text"], bool(model["remedy"]))


def test_settings_with_problems_are_findings_and_the_rest_is_looked_at(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[router]\nport = 99999\n[pools.demo]\nmodle = "x"\n', encoding="utf-8")
    assert 1 == main(["doctor", "--settings", str(file)])
    out = capsys.readouterr().out
    assert "bad   settings" in out
    assert "router.port" in out
    assert "modle" in out
    assert "python" in out


def test_a_settings_file_that_is_not_there_is_a_finding(tmp_path: Path, capsys: Captured) -> None:
    assert 1 == main(["doctor", "--settings", str(tmp_path / "none.toml")])
    assert "cannot be read" in capsys.readouterr().out
