"""Ray is started where it is needed, or asked for, and nowhere else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.without_ray import RaylessCluster, local_cluster, needs_ray
from cluster.cli.main import build_parser
from cluster.cli.options import settings_from
from cluster.errors import BootstrapError
from cluster.settings import Settings, load_settings

SIM = {"engine": "sim"}
SCALED = {**SIM, "autoscale": {"mode": "advisory", "max_replicas": 2}}


def settings(pools: dict[str, Any], **cluster: Any) -> Settings:
    return load_settings(flags={"cluster": cluster, "pools": pools}, environ={})


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (False, settings({"a": SIM})),
        (False, settings({"a": {**SIM, "replicas": 9}, "b": SIM})),
        (True, settings({"a": SIM, "b": {}})),
        (True, settings({"a": SIM, "b": SCALED})),
        (True, settings({"a": SIM}, ray="always")),
        (True, settings({"a": SIM}, ray_address="http://127.0.0.1:8265")),
    ],
    ids=["sim", "two pools", "vllm", "autoscaler", "asked for", "existing Ray"],
)
def test_ray_is_used_where_something_needs_it(wanted: bool, given: Settings) -> None:
    assert wanted is needs_ray(given)
    assert (LocalCluster if wanted else RaylessCluster) is type(local_cluster(given, lambda _step, _text: None))


@pytest.mark.parametrize(
    ("flags", "wanted"), [(["--engine", "sim"], False), (["--engine", "sim", "--ray"], True), ([], True)]
)
def test_a_flag_asks_for_ray(flags: list[str], wanted: bool, tmp_path: Path) -> None:
    options = build_parser().parse_args(["up", *flags, "--state-dir", str(tmp_path)])
    assert wanted is needs_ray(settings_from(options))


ENDS = (sys.executable, "-c", "import sys; sys.exit('the tokenizer is missing')")


@pytest.mark.slow
async def test_a_replica_that_does_not_start_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ChildProcess] = []
    start = ChildProcess.start

    async def instead(
        name: str, command: Sequence[str], log_file: Path, environ: Mapping[str, str] | None = None
    ) -> ChildProcess:
        process = await start(name, ENDS if name == "replica demo-1" else command, log_file, environ)
        started.append(process)
        return process

    monkeypatch.setattr(ChildProcess, "start", instead)
    flags = {"cluster": {"state_dir": tmp_path}, "router": {"port": 0}, "pools": {"demo": {**SIM, "replicas": 2}}}
    cluster = RaylessCluster(load_settings(flags=flags, environ={}), lambda _step, _text: None)
    with pytest.raises(BootstrapError, match=r"(?s)^replica demo-1 ended: .*the tokenizer is missing"):
        await cluster.start()
    assert started
    assert not [process.name for process in started if process.running]
    await asyncio.gather(*(process.wait() for process in started))
