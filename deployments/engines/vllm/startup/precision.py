"""The precision of a CPU engine whose settings leave it open."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from cluster.settings import PoolSettings

_NATIVE = re.compile(r"\b(avx512_bf16|amx_bf16|bf16|svebf16)\b")
_MEMORY_SHARE = 0.25
"""Largest share of the machine's memory for weights in float32, which are twice as large. Above it the dtype stays."""


def settled(pool: PoolSettings, model: Path | str) -> PoolSettings:
    """Return the settings with the dtype that "auto" stands for on this machine's CPU.

    Without instructions for bfloat16 a core multiplies 16-bit matrices two to four times slower than float32. Only
    single sequences, bound by reading the weights, are about even.
    """
    if pool.vllm.dtype != "auto" or pool.vllm.quantization is not None or has_bfloat16(cpu_flags()):
        return pool
    size = weights_bytes(model)
    if not size or 2 * size > _MEMORY_SHARE * psutil.virtual_memory().total:
        return pool
    return pool.model_copy(update={"vllm": pool.vllm.model_copy(update={"dtype": "float32"})})


def has_bfloat16(flags: str) -> bool:
    """Return whether the CPU's feature flags name instructions for bfloat16."""
    return _NATIVE.search(flags) is not None


def cpu_flags() -> str:
    """Return the feature flags of the first core; empty where the kernel does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def weights_bytes(model: Path | str) -> int:
    """Return the size of the weight files in a model's folder; 0 without a folder or weight files."""
    return sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
