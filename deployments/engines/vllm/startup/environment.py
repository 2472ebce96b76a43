"""Environment of an engine's processes. It is known before vLLM is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cluster.settings import PoolSettings
from deployments.engines.vllm.plugin import CPU_ENGINE_NAP_US, NAP_VARIABLE, REPLICA_PID_VARIABLE, SPARE_SLOT_VARIABLE
from deployments.engines.vllm.startup.arguments import core_binding, enforces_eager, works_in_core


def engine_environment(pool: PoolSettings, cpu_cores: Sequence[int] | None, *, on_cpu: bool) -> dict[str, str]:
    """Return the variables of an engine that this process starts.

    Args:
        pool: the settings.
        cpu_cores: cores for the engine's ranks on a CPU; None takes those that this process may use.
        on_cpu: whether vLLM's platform is the CPU.
    """
    variables = {REPLICA_PID_VARIABLE: str(os.getpid())}
    if not on_cpu:
        return variables
    cores = core_binding(cpu_cores, pool.tensor_parallel_size, sorted(os.sched_getaffinity(0)))
    variables |= {NAP_VARIABLE: str(CPU_ENGINE_NAP_US), "VLLM_CPU_OMP_THREADS_BIND": cores}
    if pool.vllm.adapter_slots:
        variables[SPARE_SLOT_VARIABLE] = "1"
    if works_in_core(pool, on_cpu=on_cpu):
        # What vLLM sets for a worker in a process of its own: OpenMP reads it once, when a process loads it.
        threads = len(cores.split(","))
        variables |= {"OMP_NUM_THREADS": str(threads), "OMP_PLACES": f"{{{cores}}}", "OMP_PROC_BIND": "true"}
        # Of Intel's OpenMP: milliseconds that a thread waits for more work before it sleeps, and no pause instruction.
        variables |= {"KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    else:
        # Ray sets it to the actor's CPUs. EngineCore would then run its small tensors on several threads. The binding
        # sets the workers' threads.
        variables["OMP_NUM_THREADS"] = "1"
    if enforces_eager(pool, on_cpu=on_cpu):
        # Otherwise the first request for log probabilities would run a C++ compiler, which stops all others for over
        # half a minute.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


@contextmanager
def inherited(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the engine's processes inherit while they start."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
