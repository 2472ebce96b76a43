from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from deployments.engines.vllm.plugin import REPLICA_PID_VARIABLE, register

PARENT = textwrap.dedent(
    """
    import multiprocessing, os, sys
    from deployments.engines.vllm.plugin import register

    def child(ready):
        register()
        ready.send(os.getpid())
        ready.recv()

    if __name__ == "__main__":
        os.environ["PENSTOCK_REPLICA_PID"] = str(os.getpid())
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=child, args=(theirs,))
        process.start()
        print(ours.recv(), flush=True)
        sys.stdin.read()
    """
)


def test_outside_of_a_replica_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPLICA_PID_VARIABLE, raising=False)
    register()


def test_replica_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPLICA_PID_VARIABLE, str(os.getpid()))
    register()


@pytest.mark.skipif(sys.platform != "linux", reason="a Linux mechanism")
def test_child_dies_with_a_killed_parent(tmp_path_factory: pytest.TempPathFactory) -> None:
    import psutil

    script = tmp_path_factory.mktemp("parent") / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        psutil.wait_procs([child], timeout=10)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
