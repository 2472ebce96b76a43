"""Data sheets of accelerators. Prices are not here: they differ by a factor of three, so they are a flag."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean

GIB, MIB = 1 << 30, 1 << 20
NETWORK = 50e9
"""Bandwidth per accelerator between servers, bytes per second and direction: one port of 400 Gb/s for each."""
AMD = 0
"""Compute capability of accelerators that have none."""
_SLOW_LINK = 70e9
"""Links up to this one are PCIe. Without peer access a reduction over them passes through the host's memory."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data sheet of one accelerator."""

    name: str
    memory: float
    """Bytes that the driver reports."""
    bandwidth: float
    """Bandwidth of the memory, bytes per second."""
    bf16: float
    """Dense operations per second."""
    fp8: float
    """The same for fp8. Without a unit for fp8 it is that of bf16."""
    fp4: float
    link: float
    """Bandwidth to its peers, bytes per second and direction."""
    in_calibration: bool = False
    """Whether the prior's coefficients were fitted on it."""
    large: bool = True
    """Whether vLLM's defaults count it as large: a step of 8,192 tokens and 1,024 sequences."""
    blackwell: bool = False
    """Whether it is of NVIDIA's Blackwell generation for data centres, whose kernels are others."""
    arithmetic: float = 1.0
    """Factor on the time of arithmetic, beside what the prior takes for data-centre accelerators: a data sheet counts
    boost clocks that power limits allow some cards and not others."""
    domain: int = 8
    """Accelerators that reach each other over `link`: a server, or a rack of NVLink."""
    vendor_names: tuple[tuple[str, ...], ...] = ()
    """Names that tools print, as words: each must be there."""
    capability: int = AMD
    """Compute capability of CUDA in tenths, such as 89 for 8.9; `AMD` for AMD's."""

    def flops(self, precision: str) -> float:
        """Return the operations per second at which weights of this precision are multiplied."""
        return {"fp8": self.fp8, "fp4": self.fp4}.get(precision, self.bf16)

    @property
    def step_limits(self) -> tuple[int, int]:
        """Default limits of a step in vLLM: tokens, sequences."""
        return (8192, 1024) if self.large else (2048, 256)

    @property
    def slow_link(self) -> bool:
        """Whether accelerators reach each other over PCIe only."""
        return self.domain > 1 and self.link <= _SLOW_LINK

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies bfloat16. Those before Ampere take other 16-bit floats, and engines must be told."""
        return self.capability == AMD or self.capability >= 80

    def reduce_bandwidth(self, ranks: int) -> float:
        """Return the bandwidth at which so many accelerators reduce. Measured on two cards behind PCIe it is half of
        the part that NVLink reaches.
        """
        if ranks > self.domain:
            return min(self.link, NETWORK)
        return self.link / 2 if self.link <= _SLOW_LINK else self.link


def _gpu(
    name: str,
    capability: int,
    memory: float,
    bandwidth: float,
    flops: tuple[float, float, float],
    link: float,
    *named: str,
    seen: bool = False,
    blackwell: bool = False,
    arithmetic: float = 1.0,
    domain: int = 8,
) -> Gpu:
    """Build an entry of the table.

    Args:
        name: the short name.
        capability: see `Gpu`.
        memory: bytes.
        bandwidth: of the memory, TB/s.
        flops: of bf16, fp8 and fp4, TFLOP/s.
        link: to its peers, GB/s.
        named: other names, as words that all must be there.
        seen: whether the prior's coefficients were fitted on it.
        blackwell: see `Gpu`.
        arithmetic: see `Gpu`.
        domain: see `Gpu`.
    """
    bf16, fp8, fp4 = (each * 1e12 for each in flops)
    large = memory >= 70 * GIB and not name.startswith(("a100", "a800"))
    words = tuple(tuple(each.split()) for each in (name.replace("-", " "), *named))
    return Gpu(
        name, memory, bandwidth * 1e12, bf16, fp8, fp4, link * 1e9, seen, large, blackwell, arithmetic, domain, words,
        capability,
    )  # fmt: skip


GPUS = {
    gpu.name: gpu
    for gpu in (
        # Turing, Volta and Ampere multiply in 16 bits; 8-bit floats are widened first.
        _gpu("t4", 75, 15_360 * MIB, 0.32, (65, 65, 65), 16),
        _gpu("v100", 70, 32_768 * MIB, 0.9, (125, 125, 125), 150, "v100 32gb"),
        _gpu("v100-pcie", 70, 32_768 * MIB, 0.9, (112, 112, 112), 16, "v100 pcie 32gb"),
        _gpu("a10", 86, 23_028 * MIB, 0.6, (125, 125, 125), 32),
        _gpu("a10g", 86, 23_028 * MIB, 0.6, (70, 70, 70), 32),
        _gpu("a30", 80, 24_576 * MIB, 0.933, (165, 165, 165), 100),
        _gpu("a40", 86, 46_068 * MIB, 0.696, (150, 150, 150), 32),
        _gpu("a6000", 86, 49_140 * MIB, 0.768, (155, 155, 155), 32, "rtx a6000", "rtxa6000"),
        _gpu("rtx3090", 86, 24_576 * MIB, 0.936, (71, 71, 71), 32, "rtx 3090", "3090"),
        _gpu("a100", 80, 80 * GIB, 2.039, (312, 312, 312), 300, "a100 80gb"),
        _gpu("a100-40", 80, 40 * GIB, 1.555, (312, 312, 312), 300, "a100 40gb", "a100 40g"),
        _gpu("a100-pcie", 80, 80 * GIB, 1.935, (312, 312, 312), 32, "a100 80gb pcie"),
        _gpu("a100-40-pcie", 80, 40 * GIB, 1.555, (312, 312, 312), 32, "a100 pcie 40gb"),
        _gpu("a800", 80, 80 * GIB, 2.039, (312, 312, 312), 200, "a800 80gb"),
        _gpu("a800-pcie", 80, 80 * GIB, 1.935, (312, 312, 312), 32, "a800 80gb pcie"),
        # Ada. Llama-3.1-8B in fp8 with vLLM 0.10, submitted to MLPerf for one L40S and one H100 by the same house, took
        # 1.5 times the arithmetic of the data sheet's ratio. L4 and RTX 6000 have still less power per operation.
        _gpu("l4", 89, 23_034 * MIB, 0.3, (121, 242, 242), 32, arithmetic=1.5),
        _gpu("l20", 89, 46_068 * MIB, 0.864, (119.5, 239, 239), 32),
        _gpu("l40", 89, 46_068 * MIB, 0.864, (181, 362, 362), 32),
        _gpu("l40s", 89, 46_068 * MIB, 0.864, (362, 733, 733), 32, arithmetic=1.5),
        _gpu("rtx4090", 89, 25_250_627_584, 1.008, (165, 330, 330), 32, "rtx 4090", "4090", arithmetic=0.70),
        _gpu(
            "rtx6000ada", 89, 49_140 * MIB, 0.96, (364, 728, 728), 32,
            "rtx 6000 ada", "rtx 6000 ada generation", arithmetic=1.5,
        ),
        # Hopper
        _gpu("h100", 90, 80 * GIB, 3.35, (989, 1978, 1978), 450, "h100 80gb hbm3", seen=True),
        _gpu("h100-pcie", 90, 80 * GIB, 2.0, (756, 1513, 1513), 32),
        _gpu("h100-nvl", 90, 95_830 * MIB, 3.9, (835, 1671, 1671), 300, domain=2),
        _gpu("h800", 90, 80 * GIB, 3.35, (989, 1978, 1978), 200),
        _gpu("h800-pcie", 90, 80 * GIB, 2.0, (756, 1513, 1513), 32),
        _gpu("h200", 90, 143_771 * MIB, 4.8, (989, 1978, 1978), 450, seen=True),
        _gpu("h200-nvl", 90, 143_771 * MIB, 4.8, (835, 1671, 1671), 450, domain=4),
        _gpu("h20", 90, 96 * GIB, 4.0, (148, 296, 296), 450, "h20 96gb"),
        _gpu("h20-141", 90, 143_771 * MIB, 4.8, (148, 296, 296), 450, "h20 141gb", "h20 3e"),
        _gpu(
            "gh200", 90, 97_871 * MIB, 4.0, (989, 1978, 1978), 450,
            "gh200 120gb", "gh200 480gb", "gh200 96gb", domain=1,
        ),
        _gpu("gh200-144", 90, 146_831 * MIB, 4.9, (989, 1978, 1978), 450, "gh200 144g", "gh200 144gb", domain=1),
        # Blackwell
        _gpu("b200", 100, 183_359 * MIB, 7.7, (2250, 4500, 9000), 900, seen=True, blackwell=True),
        _gpu("gb200", 100, 183_359 * MIB, 7.7, (2250, 4500, 9000), 900, blackwell=True, domain=72),
        _gpu("b300", 103, 268 * GIB, 7.7, (2250, 4500, 13500), 900, "b300 ac", seen=True, blackwell=True),
        _gpu("gb300", 103, 268 * GIB, 7.7, (2250, 4500, 13500), 900, blackwell=True, domain=72),
        _gpu("rtx5090", 120, 32_607 * MIB, 1.792, (209.5, 419, 1676), 64, "rtx 5090", "5090"),
        _gpu(
            "rtxpro6000", 120, 97_887 * MIB, 1.597, (503, 1007, 2015), 64,
            "rtx pro 6000", "rtx pro 6000 blackwell", arithmetic=0.89,
        ),
        _gpu("gb10", 121, 122_500 * MIB, 0.273, (125, 250, 500), 25, "dgx spark", domain=1),
        # AMD
        _gpu("mi210", AMD, 64 * GIB, 1.638, (181, 181, 181), 100),
        _gpu("mi300x", AMD, 192 * GIB, 5.3, (1307, 2614, 2614), 448, "mi300x oam"),
        _gpu("mi325x", AMD, 256 * GIB, 6.0, (1307, 2614, 2614), 448, "mi325x oam"),
        _gpu("mi350x", AMD, 288 * GIB, 8.0, (2307, 4614, 9228), 538, "mi350x oam"),
        _gpu("mi355x", AMD, 288 * GIB, 8.0, (2516, 5033, 10066), 538, "mi355x oam"),
    )
}  # fmt: skip

_MAKERS = {"nvidia", "geforce", "tesla", "amd", "instinct", "quadro", "graphics", "device"}
_EMPTY = re.compile(r"(sxm\d?|hbm\d?e?|pcie|server|workstation|edition|max|q|generation|oam)$|(?P<memory>\d+)g?b?$")
"""Words that tell no two entries of the table apart unless one of them has them, and sizes of the memory."""
_SAME_MEMORY = 0.15


def find_gpu(name: str) -> Gpu | None:
    """Return an accelerator by its short name, a system's, such as "h100_sxm", or the one that nvidia-smi or rocm-smi
    prints; None for an unknown one.
    """
    words = [each for each in re.split(r"[^a-z0-9]+", name.strip().lower()) if each and each not in _MAKERS]
    plain = "".join(words)
    best: tuple[int, Gpu] | None = None
    for gpu in GPUS.values():
        if plain == gpu.name.replace("-", ""):
            return gpu
        for own in gpu.vendor_names:
            if _is_called(words, own, gpu) and (best is None or len(own) > best[0]):
                best = len(own), gpu
    return best[1] if best else None


def _is_called(words: Iterable[str], own: tuple[str, ...], gpu: Gpu) -> bool:
    """Return whether a name has all words of an entry's, and beside them only words that fit it."""
    left = list(words)
    for each in own:
        if each not in left:
            return False
        left.remove(each)
    return all(_fits(each, gpu) for each in left)


def _fits(word: str, gpu: Gpu) -> bool:
    found = _EMPTY.match(word)
    if found is None:
        return False
    size = found["memory"]
    return size is None or abs(int(size) * GIB / gpu.memory - 1) < _SAME_MEMORY


def load_gpu(name: str) -> Gpu:
    """Return an accelerator by its name.

    Raises:
        SettingsError: the name is not in the table.
    """
    gpu = find_gpu(name)
    if gpu is None:
        near = did_you_mean(name, GPUS)
        raise SettingsError(f"gpu: {name!r} is not in the table; known: {', '.join(sorted(GPUS))}{near}")
    return gpu
