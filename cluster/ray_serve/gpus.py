"""Check of the GPUs that pools need."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from cluster.errors import BootstrapError
from cluster.plural import counted
from cluster.settings import EngineKind, PoolSettings


def built_for_cpu() -> bool:
    """Return whether the installed vLLM is a build for CPUs only."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        # The CPU build on the package index has another name.
        return True


def check_gpus(pools: Mapping[str, PoolSettings], gpus: int, *, grows: bool = False) -> None:
    """Check that the replicas of all pools have their GPUs, where the installed vLLM needs some. Serve waits for GPUs
    that are missing, and a replica of a machine without any finds no device.

    Args:
        pools: settings by name.
        gpus: number of GPUs that Ray has.
        grows: whether machines may still come.

    Raises:
        BootstrapError: there are fewer.
    """
    vllm = {name: pool for name, pool in pools.items() if pool.engine is EngineKind.VLLM}
    needed = sum(pool.replicas * pool.ranks for pool in vllm.values())
    if needed <= gpus or grows or built_for_cpu():
        return
    parts = ", ".join(f"{name}: {_words(pool)}" for name, pool in vllm.items())
    wanted = counted(needed, "GPU is needed", "GPUs are needed")
    remedy = (
        "lower replicas or tensor_parallel_size, or change CUDA_VISIBLE_DEVICES"
        if gpus
        else "nvidia-smi shows whether a driver works; without GPUs: pip install 'penstock-llm[cpu]'"
    )
    raise BootstrapError("pools", f"{wanted} ({parts}), and Ray finds {gpus or 'none'}; {remedy}")


def _words(pool: PoolSettings) -> str:
    return f"{counted(pool.replicas, 'replica')} with {counted(pool.ranks, 'GPU')} each"
