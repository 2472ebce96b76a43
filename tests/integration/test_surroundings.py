"""A whole cluster where people start one: on a terminal, and as process 1 of a container."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.container import contained
from tests.support.ports import free_port
from tests.support.terminal import PENSTOCK, Terminal
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

START_S = 180.0


def test_a_demo_ends_on_a_terminal(tmp_path: Path) -> None:
    with Terminal(*PENSTOCK, "demo", "--engine", "sim", "--state-dir", str(tmp_path)) as terminal:
        terminal.until("everything is stopped", seconds=START_S)
        assert 0 == terminal.ended(), terminal.said


def test_a_cluster_in_a_container_ends_on_sigterm_and_leaves_no_zombies(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "said"
    words = ("up", "--engine", "sim", "--ray", "--port", str(port), "--state-dir", str(tmp_path / "state"))
    with log.open("wb") as said:
        started = contained([*PENSTOCK, *words])
        with subprocess.Popen(started, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as process:
            until_sync(lambda: "serving demo on" in log.read_text() or process.poll() is not None, START_S)
            assert process.poll() is None, log.read_text()
            [first] = psutil.Process(process.pid).children()

            def zombies() -> list[int]:
                family = first.children(recursive=True)
                return [each.pid for each in family if each.is_running() and each.status() == psutil.STATUS_ZOMBIE]

            asked = [sys.executable, "-m", "cluster.cli.main", "generate", "hi", "--max-tokens", "4"]
            answer = subprocess.run(
                [*asked, "--target", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=60, check=False
            )
            assert 0 == answer.returncode, answer.stderr
            # Ray's own processes leave children behind when they end, which only process 1 can collect.
            victim = next(
                each for each in first.children(recursive=True) if each.children() and each.ppid() != first.pid
            )
            orphans = victim.children(recursive=True)
            victim.kill()
            until_sync(lambda: not victim.is_running() and not zombies())
            assert orphans
            first.send_signal(signal.SIGTERM)
            assert 0 == process.wait(120), log.read_text()
