"""`penstock up` ends with a status that says why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest

from cluster.bootstrap.local import LocalCluster, RouterProcess
from cluster.cli import main as command_line
from cluster.cli import up
from cluster.cli.console import screen
from cluster.cli.up import PID_FILE, _show, run_up
from cluster.errors import BootstrapError
from cluster.settings import load_settings


class Watched(LocalCluster):
    """Is a cluster that is up at once and whose watch ends."""

    end: ClassVar[Exception]
    stopped: ClassVar[int]

    @property
    def target(self) -> str:
        return "127.0.0.1:1"

    async def start(self) -> None:
        """There is nothing to start."""

    async def watch(self) -> None:
        raise self.end

    async def stop(self) -> None:
        type(self).stopped += 1


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    Watched.stopped = 0
    monkeypatch.setattr(up, "LocalCluster", Watched)
    return Watched


def flags(folder: Path) -> Sequence[str]:
    return ("up", "--engine", "sim", "--state-dir", str(folder))


def options(folder: Path) -> argparse.Namespace:
    return command_line.build_parser().parse_args(flags(folder))


def test_what_nobody_expected_comes_out_after_an_orderly_stop(tmp_path: Path, watched: type[Watched]) -> None:
    watched.end = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        run_up(options(tmp_path))
    assert (1, False) == (watched.stopped, (tmp_path / PID_FILE).exists())


def test_a_process_that_ends_is_named(
    tmp_path: Path, watched: type[Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    watched.end = BootstrapError("router 0", "it ended with status 1")
    assert 1 == command_line.main(flags(tmp_path))
    assert (1, True) == (watched.stopped, "router 0" in capsys.readouterr().err)


def test_it_says_where_routers_have_their_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(flags={"cluster": {"state_dir": str(tmp_path)}, "router": {"host": "::1"}}, environ={})
    cluster = LocalCluster(settings, lambda _step, _text: None)
    cluster.routers = [RouterProcess(Mock(), f"router-{port}", 50051, port) for port in (40001, 40002)]
    _show(cluster, screen())
    said = capsys.readouterr().out
    assert "serving demo on [::1]:50051; Ctrl-C stops" in said
    assert "routers' metrics: [::1]:40001, [::1]:40002" in said
