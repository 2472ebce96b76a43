"""First work of every engine process: it ties its life to that of its replica, reports how far its start is, and on a
CPU it stops to spin.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from typing import Any

from deployments.engines.vllm import stages

REPLICA_PID_VARIABLE = "PENSTOCK_REPLICA_PID"
"""Variable that a replica sets before it starts its engine. Without it no process is tied to a replica."""

NAP_VARIABLE = "PENSTOCK_ENGINE_NAP_US"
"""Variable with the microseconds between two checks of the shared memory between engine core and workers.

vLLM 0.32 checks it in a loop around `sched_yield` for a second after the last message. Where that loop takes every
core, the replica's frontend, the router and Redis wait behind it for up to seconds. If the variable is unset, vLLM
works unchanged.
"""

CPU_ENGINE_NAP_US = 50
"""Short against steps of a millisecond and more: a step waits for two naps."""

SPARE_SLOT_VARIABLE = "PENSTOCK_SPARE_ADAPTER_SLOT"
"""Variable that is set where the layers of a model need one more slot for LoRA adapters than vLLM uses.

If some requests use an adapter and some use none, vLLM 0.32 on a CPU gives the last slot's adapter to the latter. With
the variable that slot stays empty.
"""

_PR_SET_PDEATHSIG = 1
"""Constant from <linux/prctl.h>."""


def register() -> None:
    """Prepare this engine process: tie it to its replica, report its stages, end its spinning. vLLM calls it in every
    process.
    """
    _allow_amx()
    stages.listen()
    if nap_us := os.environ.get(NAP_VARIABLE):
        _nap_between_looks(float(nap_us) / 1e6)
    if os.environ.get(SPARE_SLOT_VARIABLE):
        _keep_last_slot_empty()
    follow_replica()


def follow_replica() -> None:
    """Make the kernel kill this engine process when its parent dies.

    Otherwise a SIGKILL of the replica would leave EngineCore and its workers behind, and they would use up cores. Both
    are children of a process that is itself tied, so the whole tree ends. The replica's own process has no
    multiprocessing parent and is left alone.
    """
    if not os.environ.get(REPLICA_PID_VARIABLE):
        return
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None or str(os.getpid()) == os.environ[REPLICA_PID_VARIABLE]:
        return
    _kill_me_with_my_parent()
    if os.getppid() != parent.pid:
        # The parent died before the call above, so the kernel will not send the signal.
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_me_with_my_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = getattr(libc, "prctl", None)
    if prctl is None:  # not Linux
        return
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def _nap_between_looks(seconds: float) -> None:
    # Relies on the module calling its own name `sched_yield` between two checks, and nothing else while it waits.
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = lambda: time.sleep(seconds)


def _keep_last_slot_empty() -> None:
    # Relies on `_create_lora_modules` taking the number of the layers' slots from `lora_slots`.
    from vllm.lora.model_manager import LoRAModelManager

    create: Any = LoRAModelManager._create_lora_modules
    if getattr(create, "with_spare_slot", False):
        return

    def create_with_spare_slot(self: Any) -> None:
        self.spare_slots = 1
        try:
            create(self)
        finally:
            self.spare_slots = 0

    create_with_spare_slot.with_spare_slot = True  # type: ignore[attr-defined]
    manager: Any = LoRAModelManager
    manager.spare_slots = 0
    manager.lora_slots = property(lambda self: self.lora_config.max_loras + self.spare_slots)
    manager._create_lora_modules = create_with_spare_slot


def _allow_amx() -> None:
    """Ask the kernel for the CPU's tile registers. If it refuses, keep vLLM from using them.

    Linux lets a process use them only after it has asked. PyTorch asks in the process that calls this. vLLM 0.32 runs
    its AMX attention wherever the CPU knows the instructions, and a worker that never asked dies of SIGILL in its first
    step.
    """
    import torch

    if not torch.cpu._is_amx_tile_supported() or torch.cpu._init_amx():
        return
    # vLLM decides by this function; it then takes AVX-512.
    torch.cpu._is_amx_tile_supported = lambda: False
