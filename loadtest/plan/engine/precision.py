"""Precisions of weights: bytes per parameter, and the units that multiply them."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from loadtest.plan.engine.shapes import ModelShape

_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.55, "mxfp4": 0.53125}
"""Bytes with scales: 4-bit floats share one byte per 16 (NVIDIA) or 32 (MX) values, integers a 16-bit float per 128."""
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp16": "bf16",
    "nvfp4": "fp4",
    "w4a16": "int4",
    "awq": "int4",
    "gptq": "int4",
}
_WITHIN = ("mxfp4", "fp4", "fp8", "int4", "w4a16", "int8", "bf16")
"""Words within longer names, the ones that contain others first."""
PRECISIONS = tuple(sorted(_BYTES))


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of a model at a precision, all ranks together."""

    precision: str
    total_bytes: float
    expert_bytes: float
    """Part of the total that belongs to routed experts."""
    embedding_bytes: float
    """Part of the total that no step reads as a whole."""
    arithmetic: str
    """Units that do the work on dense weights: bf16, fp8 or fp4."""
    expert_arithmetic: str
    """The same for routed experts."""
    wide: int = 0
    """Dense parameters that are in 16 bits where the others are not."""
    vocabulary_bytes: float = 0.0
    """Bytes beside the total: engines keep the embedding and the output layer in 16 bits, whatever the precision."""


def weights_of(shape: ModelShape, precision: str, *, has_fp4: bool = True) -> Weights:
    """Size a model's weights.

    Args:
        shape: the architecture.
        precision: of `PRECISIONS` or an alias.
        has_fp4: whether the accelerator multiplies 4-bit floats. Otherwise they are widened first.

    Raises:
        SettingsError: the precision is unknown.
    """
    precision = canonical(precision)
    if precision == "fp4" and shape.native == "mxfp4":
        precision = "mxfp4"
    each = _BYTES[precision]
    routed = shape.experts.parameters if shape.experts else 0
    # Some checkpoints leave all weights but the experts as they were trained.
    experts_only = routed > 0 and (precision == "mxfp4" or (shape.experts_only and precision == shape.native))
    rest = 2.0 if experts_only else each
    units = precision if precision == "fp8" or (precision in ("fp4", "mxfp4") and has_fp4) else "bf16"
    units = "fp4" if units == "mxfp4" else units
    wide = shape.wide if precision == shape.native else 0
    return Weights(
        precision,
        routed * each + (shape.parameters - routed) * rest + wide * (2.0 - each),
        routed * each,
        shape.embedding * rest,
        "bf16" if experts_only else units,
        units,
        wide,
        shape.vocabulary * (2.0 - rest),
    )


def canonical(precision: str) -> str:
    """Return the name in `PRECISIONS`.

    Raises:
        SettingsError: the precision is unknown.
    """
    plain = precision.strip().lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in _BYTES:
        near = did_you_mean(precision, PRECISIONS)
        raise SettingsError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}{near}")
    return plain


def precision_of(text: str) -> str:
    """Return the name in `PRECISIONS` of a precision as files of points write it, such as fp8_block.

    Raises:
        SettingsError: the precision is unknown.
    """
    plain = text.lower()
    return canonical(next((each for each in _WITHIN if each in plain), text))


def is_made(native: str, precision: str) -> bool:
    """Return whether engines make weights in a precision of published ones at their start, if they are told so."""
    return (native, precision) == ("bf16", "fp8")
