"""Tests of child processes: their group, session and end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from cluster.bootstrap.process import ChildProcess
from tests.support.waiting import until

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)"
"""Beginning of a program that does not end at SIGTERM."""


async def running(folder: Path, code: str) -> ChildProcess:
    child = await ChildProcess.start("x", [sys.executable, "-c", code], folder / "x.log")
    await until(lambda: "ready" in child.log_tail())
    return child


@pytest.mark.skipif(sys.platform != "linux", reason="the scheduler of Linux divides cores among sessions")
async def test_a_child_has_a_group_of_its_own_in_the_session_of_its_parent(tmp_path: Path) -> None:
    child = await running(tmp_path, f"{STUBBORN}; time.sleep(60)")
    assert child.pid == os.getpgid(child.pid)
    assert os.getsid(0) == os.getsid(child.pid)
    child.kill()
    assert -signal.SIGKILL == await child.wait()


async def test_a_child_that_does_not_end_is_killed_with_its_group(tmp_path: Path) -> None:
    grandchild = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN + '; time.sleep(60)'!r}])"
    child = await running(tmp_path, f"{grandchild}; {STUBBORN.replace('ready', 'up')}; time.sleep(60)")
    await until(lambda: "up" in child.log_tail())
    family = psutil.Process(child.pid).children()
    assert family
    await child.stop(0.1)
    await until(lambda: not any(each.is_running() for each in family))


async def test_a_child_can_be_killed_at_once(tmp_path: Path) -> None:
    child = await ChildProcess.start("x", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "x.log")
    child.kill()
    assert -signal.SIGKILL == await child.wait()
