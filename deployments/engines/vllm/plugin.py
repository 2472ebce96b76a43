"""What every engine process does first: ties itself to the life of its replica, and on a CPU stops spinning."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time

REPLICA_PID_VARIABLE = "PENSTOCK_REPLICA_PID"
"""Set by a replica before it starts its engine; without it no process is tied to anything."""

NAP_VARIABLE = "PENSTOCK_ENGINE_NAP_US"
"""Microseconds between two looks at the shared memory in which engine core and workers hand steps over. vLLM 0.32 looks
in a loop around `sched_yield` for a second after the last message; where that takes every core, the replica's front,
the router and Redis wait behind it for up to seconds. Unset keeps vLLM's way."""

CPU_ENGINE_NAP_US = 50
"""Two naps a step, against steps of a millisecond and more."""

_PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


def register() -> None:
    """Make the kernel kill this engine process when its parent dies, and end its spinning. vLLM calls it everywhere.

    A SIGKILL of the replica would otherwise leave EngineCore and its workers behind, eating cores. Both are children of
    a process that is itself tied, so the whole tree goes. The replica's own process has no multiprocessing parent and
    is left alone.
    """
    _allow_amx()
    if nap_us := os.environ.get(NAP_VARIABLE):
        _nap_between_looks(float(nap_us) / 1e6)
    if not os.environ.get(REPLICA_PID_VARIABLE):
        return
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None or str(os.getpid()) == os.environ[REPLICA_PID_VARIABLE]:
        return
    _kill_me_with_my_parent()
    if os.getppid() != parent.pid:
        # It died before the call above, so the kernel will not tell.
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_me_with_my_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = getattr(libc, "prctl", None)
    if prctl is None:  # not Linux
        return
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def _nap_between_looks(seconds: float) -> None:
    # Relies on the module calling its own name `sched_yield` between two looks, and nothing else while it waits.
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = lambda: time.sleep(seconds)


def _allow_amx() -> None:
    """Ask the kernel for the CPU's tile registers, and keep vLLM from them where it refuses.

    Linux lets a process use them only after it has asked. PyTorch asks in the process that calls this; vLLM 0.32 runs
    its AMX attention wherever the CPU knows the instructions, and a worker that never asked dies of SIGILL in its first
    step.
    """
    import torch

    if not torch.cpu._is_amx_tile_supported() or torch.cpu._init_amx():
        return
    # What vLLM decides by: it then takes AVX-512.
    torch.cpu._is_amx_tile_supported = lambda: False
