"""Ties every engine process to the life of its replica."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

REPLICA_PID_VARIABLE = "PENSTOCK_REPLICA_PID"
"""Set by a replica before it starts its engine; without it the plugin does nothing."""

_PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


def register() -> None:
    """Make the kernel kill this engine process when its parent dies. Loaded by vLLM in each of its processes.

    A SIGKILL of the replica would otherwise leave EngineCore and its workers behind, eating cores. Both are children of
    a process that is itself tied, so the whole tree goes. The replica's own process has no multiprocessing parent and
    is left alone.
    """
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
