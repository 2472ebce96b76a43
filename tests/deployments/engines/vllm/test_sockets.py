"""Folders of engines' sockets go with their engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deployments.engines.vllm.startup import sockets


def test_folders_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "short_folder", lambda _rest: tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = tmp_path / f"penstock-engine-{gone.pid}-abc"
    dead.mkdir()
    (dead / "socket").touch()
    strange = tmp_path / "penstock-engine-of-somebody"
    strange.mkdir()

    first, second = sockets.make_folder(), sockets.make_folder()

    assert first != second
    assert set(tmp_path.iterdir()) == {first, second, strange}
    sockets.remove_folder(first)
    assert set(tmp_path.iterdir()) == {second, strange}
