"""A replica in a process of its own says why it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.settings import load_settings
from deployments.process import main


def test_a_setting_that_cannot_work_is_status_two_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "secret"
    flags = {"cluster": {"secret_file": str(missing)}, "pools": {"demo": {"engine": "sim"}}}
    file = tmp_path / "settings.json"
    file.write_text(load_settings(flags=flags, environ={}).model_dump_json())
    words = ["--settings-json", str(file), "--pool", "demo", "--ready-file", str(tmp_path / "ready.json")]
    assert 2 == main(words)
    assert f"penstock replica: cluster secret {missing} cannot be read: No such file" in capsys.readouterr().err
    assert not (tmp_path / "ready.json").exists()
