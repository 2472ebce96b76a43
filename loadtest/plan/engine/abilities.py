"""Precisions that an accelerator can run: refused, run in another way that the plan tells, or in units of their own.

The limits are those of vLLM 0.32: `get_min_capability` of its quantization configs, of the kernels behind them, and
`check_if_supports_dtype` of its platforms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.errors import SettingsError
from loadtest.plan.engine.gpus import AMD, Gpu
from loadtest.plan.engine.precision import PRECISIONS, canonical, weights_of
from loadtest.plan.engine.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class _Need:
    """Compute capabilities that a precision of weights needs."""

    least: int
    """The lowest one on which kernels exist."""
    units: int
    """The lowest one whose kernels are the usual ones."""
    fallback: str
    """What runs between the two."""


_MARLIN = "weights only: they are widened to 16 bits before they are multiplied (Marlin kernels)"
_GPTQ = "GPTQ checkpoints only, through Exllama kernels"
_NEEDS = {
    "bf16": _Need(60, 80, "float16 takes its place"),
    "fp8": _Need(75, 89, _MARLIN),
    "int8": _Need(60, 75, _GPTQ),
    "int4": _Need(60, 75, _GPTQ),
    "fp4": _Need(75, 100, _MARLIN),
    "mxfp4": _Need(80, 100, _MARLIN),
}
WHEELS = 75
"""Lowest compute capability that vLLM's own packages are built for."""
_SOURCE = ", with a vLLM built from source"
CACHE_8_BITS = 80
"""Lowest compute capability with attention kernels for a KV cache of 8 bits."""


@dataclass(frozen=True, slots=True)
class Ability:
    """What an accelerator makes of a precision."""

    refused: str = ""
    """Why nothing runs it, with the field, the limit and the value; empty where something does."""
    fallback: str = ""
    """How it runs where the accelerator has no units for it; empty where it has, or needs none."""


def ability(shape: ModelShape, gpu: Gpu, precision: str, *, kv_element_bytes: float = 2.0) -> Ability:
    """Return what an accelerator makes of a model's weights in a precision, and of its KV cache.

    Raises:
        SettingsError: the precision is unknown.
    """
    name = weights_of(shape, precision).precision
    if gpu.capability == AMD:
        return _of_amd(gpu, name)
    need, has = _NEEDS[name], _written(gpu.capability)
    if gpu.capability < need.least:
        return Ability(f"precision: {name} needs compute capability {_written(need.least)}, and {gpu.name} has {has}")
    if not gpu.has_bf16 and not shape.float16:
        return Ability(
            f"precision: {shape.name} is not stable in float16, and bfloat16 needs compute capability "
            f"{_written(_NEEDS['bf16'].units)}; {gpu.name} has {has}"
        )
    if kv_element_bytes < 2 and gpu.capability < CACHE_8_BITS:
        return Ability(
            f"kv-cache-dtype: fp8 needs compute capability {_written(CACHE_8_BITS)}, and {gpu.name} has {has}"
        )
    if gpu.capability >= need.units:
        return Ability()
    return Ability(
        fallback=f"{gpu.name} has compute capability {has}, and units for {name} come with {_written(need.units)}: "
        f"{need.fallback}{_SOURCE if gpu.capability < WHEELS else ''}"
    )


def broken_blocks(shape: ModelShape, ranks: int, precision: str, groups: int = 1) -> str | None:
    """Return why published blocks of weights that share a scale can't be split over ranks; None if they can.

    Args:
        shape: the model.
        ranks: tensor parallel size.
        precision: of the weights; blocks are those of the published ones.
        groups: that share the experts, which then are not split.
    """
    if not shape.block or ranks == 1 or canonical(precision) != shape.native:
        return None
    of_head = shape.head_dim if shape.latent is None else shape.latent.value_dim
    heads = 0 if shape.wide else shape.heads * of_head
    for width in () if shape.experts_only else (heads, *shape.inner):
        if width // ranks % shape.block:
            return _broken(width, ranks, shape.block)
    width = shape.experts.width if shape.experts is not None and groups == 1 else 0
    # Scales of experts may be taken for smaller blocks.
    if width // ranks % shape.block and math.gcd(shape.block, width // ranks, shape.hidden) < _LEAST_BLOCK:
        return _broken(width, ranks, shape.block)
    return None


def _broken(width: int, ranks: int, block: int) -> str:
    return (
        f"weight_block_size is {block}, and a width of {width:,} split over {ranks} GPUs, {width / ranks:g} each, has "
        "no whole blocks"
    )


_LEAST_BLOCK = 32
"""Smallest side of a block that kernels for experts take in place of the published one."""


def _of_amd(gpu: Gpu, name: str) -> Ability:
    if name == "fp4":
        return Ability(f"precision: fp4 (NVFP4) needs an accelerator of NVIDIA, got {gpu.name}; AMD's format is mxfp4")
    if name == "fp8" and gpu.fp8 <= gpu.bf16:
        return Ability(f"precision: fp8 needs CDNA 3 (mi300x or later), got {gpu.name}")
    if name == "mxfp4" and gpu.fp4 <= gpu.fp8:
        wide = f"units for mxfp4 come with CDNA 4 (mi350x): {gpu.name} widens weights to 16 bits first"
        return Ability(fallback=wide)
    return Ability()


def _written(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def check_abilities(
    shape: ModelShape, gpus: Sequence[Gpu], precisions: Iterable[str], *, kv_element_bytes: float = 2.0
) -> None:
    """Refuse a choice of which no accelerator runs any precision.

    Raises:
        SettingsError: it is one, or a precision is unknown.
    """
    found = [
        ability(shape, gpu, canonical(each), kv_element_bytes=kv_element_bytes) for gpu in gpus for each in precisions
    ]
    if not found or any(not each.refused for each in found):
        return
    runs = {
        gpu.name: [each for each in PRECISIONS if not ability(shape, gpu, each).refused and each != "mxfp4"]
        for gpu in gpus
    }
    ways = "; ".join(f"{name} runs {', '.join(each)}" for name, each in runs.items() if each)
    raise SettingsError("; ".join(dict.fromkeys(each.refused for each in found)) + (f"; {ways}" if ways else ""))
