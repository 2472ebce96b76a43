from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from deployments.engines.vllm.plugin import REPLICA_PID_VARIABLE, register

pytestmark = pytest.mark.slow

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


@pytest.fixture
def cpu() -> Any:
    """What PyTorch knows of the processor. Its import takes seconds, so not when tests are collected."""
    import torch

    return torch.cpu


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


TILES = textwrap.dedent(
    """
    import ctypes
    from deployments.engines.vllm.plugin import register

    def may_use_tiles():
        permitted = ctypes.c_uint64()
        # arch_prctl(ARCH_GET_XCOMP_PERM): bit 18 is the tiles' data.
        assert ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(permitted)) == 0
        return bool(permitted.value >> 18 & 1)

    before = may_use_tiles()
    register()
    print(before, may_use_tiles())
    """
)


def test_engine_processes_may_use_the_tile_registers(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cpu._is_amx_tile_supported():
        pytest.skip("this CPU has no AMX")
    monkeypatch.delenv(REPLICA_PID_VARIABLE, raising=False)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    ran = subprocess.run(
        [sys.executable, "-c", TILES], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("allowed", [True, False])
def test_where_the_kernel_refuses_the_tile_registers_vllm_takes_another_path(
    cpu: Any, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    monkeypatch.delenv(REPLICA_PID_VARIABLE, raising=False)
    monkeypatch.setattr(cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(cpu, "_init_amx", lambda: allowed)
    register()
    # `vllm.v1.attention.backends.cpu_attn` chooses its kernels by this.
    assert cpu._is_amx_tile_supported() is allowed


def test_without_amx_nobody_asks(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> bool:
        raise AssertionError

    monkeypatch.delenv(REPLICA_PID_VARIABLE, raising=False)
    monkeypatch.setattr(cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(cpu, "_init_amx", asked)
    register()
