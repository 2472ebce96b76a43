"""A run of Locust that stands still is given up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import GeneratorError
from loadtest.load import runner
from loadtest.load.driver.target import Target
from loadtest.load.runner import RunOptions, _Follow
from loadtest.load.schedule.scenario import SCENARIOS

pytestmark = pytest.mark.slow


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    """A process that the kernel has stopped, as one in the background that reads from a terminal."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        child.send_signal(signal.SIGSTOP)
        yield child
        child.kill()


@pytest.mark.parametrize(("begun", "limit"), [(True, "_SILENT_S"), (False, "_STARTING_S")])
def test_a_run_without_progress_is_given_up(
    begun: bool, limit: str, stopped: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, limit, 0.25)
    path = tmp_path / "progress.jsonl"
    if begun:
        path.write_text(json.dumps({"elapsed_s": 1.0}) + "\n", encoding="utf-8")
    told: list[object] = []
    follow = _Follow(stopped, path, SCENARIOS["smoke"], RunOptions(Target(("127.0.0.1:1",), "")), told.append)
    with pytest.raises(GeneratorError, match=rf"Locust, process {stopped.pid}, has shown no progress for 0\.\d+ s"):
        follow.to_end()
    assert begun is bool(told)
