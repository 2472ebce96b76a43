"""A start that can't say where it listens ends before it starts, in words; one that can writes a whole file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cluster.cli.main import main as penstock
from cluster.errors import SettingsError
from cluster.ready_file import check_ready_file, write_ready_file
from deployments.process import main as replica
from router.__main__ import main as router

Main = Callable[[Sequence[str]], int]
BY_HAND = ["--settings-json", "/no/settings.json", "--pool", "demo"]
STARTS: dict[str, tuple[Main, list[str]]] = {
    "up": (penstock, ["up", "--engine", "sim"]),
    "console": (penstock, ["console", "--port", "0"]),
    "autoscaler": (penstock, ["autoscaler"]),
    "router": (router, []),
    "replica": (replica, BY_HAND),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing/ready.json", "cannot be written: No such file or directory"),
        ("file/ready.json", "cannot be written: Not a directory"),
        ("folder", "must be a regular file"),
    ],
)
def test_a_ready_file_that_cannot_be_written_is_named_before_anything_starts(
    start: str, name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    main, words = STARTS[start]

    assert 2 == main([*words, "--ready-file", str(tmp_path / name)])
    assert f": --ready-file: {tmp_path / name} {problem}\n" in capsys.readouterr().err


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    with pytest.raises(SettingsError, match=rf"^--ready-file: {re.escape(str(link))} must be a regular file$"):
        write_ready_file(link, {"port": 1})
    assert link.is_symlink()


def test_a_check_leaves_nothing_behind_and_the_file_replaces_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    check_ready_file(path)
    assert [] == list(tmp_path.iterdir())

    path.write_text("old")
    write_ready_file(path, {"port": 1})
    assert ([path], {"port": 1}) == (list(tmp_path.iterdir()), json.loads(path.read_text()))


def test_a_folder_that_went_away_meanwhile_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--ready-file: .*/ready\.json cannot be written: No such file"):
        write_ready_file(tmp_path / "gone" / "ready.json", {})
