"""Data sheets of accelerators. Prices are not here: they differ by a factor of three, so they are a flag."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean

GIB, MIB = 1 << 30, 1 << 20


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

    def flops(self, precision: str) -> float:
        """Return the operations per second at which weights of this precision are multiplied."""
        return {"fp8": self.fp8, "fp4": self.fp4}.get(precision, self.bf16)

    @property
    def step_limits(self) -> tuple[int, int]:
        """Default limits of a step in vLLM: tokens, sequences."""
        return (8192, 1024) if self.large else (2048, 256)


def _gpu(
    name: str, memory: float, bandwidth: float, flops: tuple[int, int, int], link: float, *, seen: bool = False
) -> Gpu:
    """Build an entry of the table.

    Args:
        name: the short name.
        memory: bytes.
        bandwidth: of the memory, TB/s.
        flops: of bf16, fp8 and fp4, TFLOP/s.
        link: to its peers, GB/s.
        seen: whether the prior's coefficients were fitted on it.
    """
    bf16, fp8, fp4 = (each * 1e12 for each in flops)
    large = memory >= 70 * GIB and not name.startswith("a100")
    return Gpu(name, memory, bandwidth * 1e12, bf16, fp8, fp4, link * 1e9, seen, large)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", 80 * GIB, 2.039, (312, 312, 312), 300),
        _gpu("a100-40", 40 * GIB, 1.555, (312, 312, 312), 300),
        _gpu("h100", 80 * GIB, 3.35, (989, 1978, 1978), 450, seen=True),
        _gpu("h100-pcie", 80 * GIB, 2.0, (756, 1513, 1513), 32),
        _gpu("h200", 143_771 * MIB, 4.8, (989, 1978, 1978), 450, seen=True),
        _gpu("h20", 96 * GIB, 4.0, (148, 296, 296), 450),
        _gpu("b200", 183_359 * MIB, 7.7, (2250, 4500, 9000), 900, seen=True),
        _gpu("gb200", 183_359 * MIB, 7.7, (2250, 4500, 9000), 900),
        _gpu("b300", 268 * GIB, 7.7, (2250, 4500, 13500), 900),
        _gpu("l40s", 46_068 * MIB, 0.864, (362, 733, 733), 32),
        _gpu("l4", 23_034 * MIB, 0.3, (121, 242, 242), 32),
        _gpu("a10g", 23_028 * MIB, 0.6, (70, 70, 70), 32),
        _gpu("rtx4090", 25_250_627_584, 1.008, (165, 330, 330), 32),
        _gpu("rtxpro6000", 97_887 * MIB, 1.597, (503, 1007, 2015), 64),
        _gpu("mi300x", 192 * GIB, 5.3, (1307, 2614, 2614), 448),
    )
}


def find_gpu(name: str) -> Gpu | None:
    """Return an accelerator by its name or a system's, such as "h100_sxm"; None for an unknown one."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower()).removeprefix("nvidia-").removeprefix("geforce-")
    plain = re.sub(r"-(sxm\d?|80gb|80|hbm3e?|141gb|180gb|192gb|nvl\d*)\b", "", plain)
    return GPUS.get(plain) or GPUS.get(plain.replace("-", ""))


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
