"""No engine process outlives the process that hosts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.engines.vllm.plugin import REPLICA_PID_VARIABLE
from deployments.engines.vllm.startup import processes, sockets
from tests.deployments.engines.conftest import pool_json
from tests.support.waiting import until_sync

ROOT = Path(__file__).parents[3]
REPORT = "REPORT "


@contextmanager
def hosted_engine(model: Path, ranks: int, log: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.deployments.engines.host", pool_json(model, ranks)],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if line.startswith(REPORT)), "")
        assert line, log.read_text()[-4000:]
        yield process, json.loads(line.removeprefix(REPORT))
    finally:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


@pytest.mark.engine
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "how"), [(2, signal.SIGKILL), (1, signal.SIGTERM)], ids=["tp2-kill", "tp1-term"])
def test_engine_dies_with_its_host(tiny_model: Path, tmp_path: Path, ranks: int, how: signal.Signals) -> None:
    with hosted_engine(tiny_model, ranks, tmp_path / "host.log") as (process, report):
        assert report["tokens"] == 8
        assert report["gpu_seconds"] > 0
        host = psutil.Process(process.pid)
        children = host.children(recursive=True)
        # EngineCore, its workers and multiprocessing's resource tracker.
        assert len(children) >= 2 + ranks - 1
        (folder,) = Path(tempfile.gettempdir()).glob(f"penstock-engine-{process.pid}-*")
        assert all(each.is_socket() for each in folder.iterdir())
        assert any(folder.iterdir())
        host.send_signal(how)
        _, alive = psutil.wait_procs([host, *children], timeout=20)
        assert alive == []
        # The next engine on this machine does it.
        sockets.remove_folder(sockets.make_folder())
        assert not folder.exists()


@pytest.mark.slow
def test_a_starting_replica_reaps_what_a_dead_one_left() -> None:
    """SIGKILL of a host whose engine process had not asked yet to follow it; its living neighbour's stays."""
    script = "import os, subprocess, sys, time\n" + (
        "os.environ[sys.argv[1]] = str(os.getpid())\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    hosts = [
        subprocess.Popen([sys.executable, "-c", script, REPLICA_PID_VARIABLE], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    children = [psutil.Process(int(host.stdout.readline())) for host in hosts if host.stdout]
    try:
        hosts[0].kill()
        hosts[0].wait()
        until_sync(lambda: children[0] in processes.orphans())
        assert children[1] not in processes.orphans()
        processes.reap_orphans()
        assert [False, True] == [child.is_running() for child in children]
    finally:
        for each in (*hosts, *children):
            with suppress(psutil.Error):
                each.kill()
        for host in hosts:
            host.communicate()
