"""`penstock up` ends with a status that says why."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from unittest.mock import AsyncMock, Mock

import pytest
from rich.console import Console

from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.ready import RouterProcess
from cluster.bootstrap.state_dir import PID_FILE, claimed, is_held
from cluster.cli import demo, up
from cluster.cli import main as command_line
from cluster.cli.demo import run_demo
from cluster.cli.down import run_down
from cluster.cli.up import _show, run_up
from cluster.errors import BootstrapError
from cluster.settings import Settings, load_settings
from cluster.terminal.console import screen


class Watched(LocalCluster):
    """A cluster that is up at once and whose watch ends."""

    end: ClassVar[Exception]
    stopped: ClassVar[int]

    @property
    def target(self) -> str:
        return "127.0.0.1:1"

    async def start(self) -> None:
        """There is nothing to start."""

    async def watch(self) -> None:
        logging.getLogger("cluster.bootstrap.local").error("router.ended", extra={"router": "router-1"})
        raise self.end

    async def stop(self) -> None:
        type(self).stopped += 1


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    Watched.stopped = 0
    monkeypatch.setattr(up, "local_cluster", Watched)
    return Watched


def flags(folder: Path) -> Sequence[str]:
    return ("up", "--engine", "sim", "--state-dir", str(folder))


def options(folder: Path) -> argparse.Namespace:
    return command_line.build_parser().parse_args(flags(folder))


def test_what_nobody_expected_comes_out_after_an_orderly_stop(tmp_path: Path, watched: type[Watched]) -> None:
    watched.end = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        run_up(options(tmp_path))
    assert (1, False) == (watched.stopped, is_held(tmp_path))


def test_a_process_that_ends_is_named(
    tmp_path: Path, watched: type[Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    watched.end = BootstrapError("router 0", "it ended with status 1")
    assert 1 == command_line.main(flags(tmp_path))
    assert (1, True) == (watched.stopped, "router 0" in capsys.readouterr().err)


@pytest.mark.parametrize("starts", [True, False])
def test_a_console_that_starts_is_shown(
    starts: bool,
    tmp_path: Path,
    watched: type[Watched],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It takes seconds, and people take silence for a hang."""
    page = AsyncMock(url="http://127.0.0.1:1")
    page.start.side_effect = None if starts else BootstrapError("console", "it ended")
    monkeypatch.setattr(up, "LocalConsole", lambda *_: page)
    monkeypatch.setattr(Watched, "run_dir", tmp_path, raising=False)
    watched.end = BootstrapError("redis", "it ended")
    command_line.main([*flags(tmp_path), "--console"])
    said = capsys.readouterr()
    shown = said.out.splitlines()[:2]
    assert ["console: starting", f"console {'ready' if starts else 'stopped'}"] == [
        line.strip(" ✓").rpartition(" 0")[0] or line.strip() for line in shown
    ]
    assert starts == ("http://127.0.0.1:1" in said.out)


def test_news_come_with_their_time_and_details(
    tmp_path: Path, watched: type[Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    watched.end = BootstrapError("redis", "it ended with status 1")
    command_line.main(flags(tmp_path))
    assert re.search(r"^\d\d:\d\d:\d\d error   router.ended router=router-1$", capsys.readouterr().err, re.MULTILINE)


def test_it_says_where_routers_and_the_autoscaler_have_their_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load_settings(flags={"cluster": {"state_dir": str(tmp_path)}, "router": {"host": "::1"}}, environ={})
    cluster = LocalCluster(settings, lambda _step, _text: None)
    cluster.routers = [RouterProcess(Mock(), f"router-{port}", 50051, port, 8000) for port in (40001, 40002)]
    _show(cluster, screen())
    said = capsys.readouterr().out
    assert "serving demo on [::1]:50051; Ctrl-C stops" in said
    assert "routers' metrics: [::1]:40001, [::1]:40002" in said
    assert "autoscaler" not in said
    cluster.autoscaler_port = 40003
    _show(cluster, screen())
    assert "autoscaler's metrics: 127.0.0.1:40003" in capsys.readouterr().out


PENSTOCK = """
import pathlib, signal, sys, time
from cluster.bootstrap.state_dir import claimed
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with claimed(pathlib.Path(sys.argv[1])):
    print("up", flush=True)
    time.sleep(60)
"""


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold the folder in a process of its own."""
    command = [sys.executable, "-c", PENSTOCK, str(folder), "penstock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "up\n" == process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_a_signal_ends_has_the_status_of_that_signal(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Starting(Watched):
        async def start(self) -> None:
            signal.raise_signal(number)
            # Another one while it ends makes no difference.
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    monkeypatch.setattr(up, "local_cluster", Starting)
    assert (128 + number, 1) == (run_up(options(tmp_path)), Starting.stopped)
    monkeypatch.setattr(demo, "local_cluster", Starting)
    words = ["demo", "--engine", "sim", "--state-dir", str(tmp_path)]
    assert 128 + number == run_demo(command_line.build_parser().parse_args(words))


def test_a_folder_is_held_by_one_and_free_after_a_kill(tmp_path: Path, watched: type[Watched]) -> None:
    watched.end = RuntimeError("it was up")
    with running(tmp_path) as process:
        with pytest.raises(BootstrapError, match=f"process {process.pid} already runs one"):
            run_up(options(tmp_path))
        process.kill()
        process.wait()
    # In a container the next one has the same pid.
    (tmp_path / PID_FILE).write_text(str(os.getpid()), encoding="utf-8")
    with pytest.raises(RuntimeError, match="it was up"):
        run_up(options(tmp_path))


def test_down_finds_the_folder_in_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_CLUSTER__STATE_DIR", str(tmp_path / "state"))
    with running(tmp_path / "state") as process:
        assert 0 == run_down(command_line.build_parser().parse_args(["down"]))
        assert 0 == process.wait()
    assert "stopped" in capsys.readouterr().out
    assert 0 == run_down(command_line.build_parser().parse_args(["down"]))
    assert "no cluster runs in" in capsys.readouterr().out


def test_down_ends_nobody_who_only_has_the_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill = Mock()
    monkeypatch.setattr(os, "kill", kill)
    with claimed(tmp_path):
        (tmp_path / PID_FILE).write_text("1", encoding="utf-8")
        with pytest.raises(BootstrapError, match="not as a process of this machine"):
            run_down(command_line.build_parser().parse_args(["down", "--state-dir", str(tmp_path)]))
    kill.assert_not_called()


def test_a_demo_holds_its_folder_and_reads_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[router]\ndrain_s = 7\n", encoding="utf-8")
    started: list[tuple[float, bool]] = []

    async def stand_in(settings: Settings, _prompt: str, _console: Console) -> int:
        started.append((settings.router.drain_s, is_held(settings.cluster.state_dir)))
        return 0

    monkeypatch.setattr(demo, "_demo", stand_in)
    words = ["demo", "--settings", str(file), "--engine", "sim", "--state-dir", str(tmp_path)]
    assert 0 == run_demo(command_line.build_parser().parse_args(words))
    assert [(7.0, True)] == started
    with claimed(tmp_path), pytest.raises(BootstrapError, match="already runs one") as caught:
        run_demo(command_line.build_parser().parse_args(words))
    assert f"`penstock down --state-dir {tmp_path}` stops it" in str(caught.value)
